//go:build !fast

package outbox_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/kafkatest"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/internal/rabbittest"
	"github.com/sekali/sekali/outbox"
)

// bus is a real broker, with a topic of the test's own and a reader of it.
type bus struct {
	topic   string
	nowhere string // a topic that the broker refuses
	open    func(t *testing.T) broker.Publisher

	mu     sync.Mutex
	copies []broker.Message
	more   chan struct{}
}

// read collects what comes until the test ends.
func (b *bus) read(t *testing.T, source broker.Source) {
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			deliveries, err := source.Receive(ctx, 100)
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("receive: %v", err)
				}
				return
			}
			var settled []broker.Settlement
			b.mu.Lock()
			for _, d := range deliveries {
				b.copies = append(b.copies, d.Message.Clone())
				settled = append(settled, broker.Settlement{Delivery: d, Action: broker.Ack})
			}
			close(b.more)
			b.more = make(chan struct{})
			b.mu.Unlock()
			if err := source.Settle(ctx, settled); err != nil && ctx.Err() == nil {
				t.Errorf("settle: %v", err)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		if err := source.Close(context.Background()); err != nil {
			t.Errorf("close the source: %v", err)
		}
	})
}

// ids returns the ids of all copies, and fails the test if one has another
// than its body says: the helper makes them equal.
func (b *bus) ids(t *testing.T) (ids []string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.copies {
		id, _ := m.Headers.Get(outbox.IDHeader)
		if string(id) != string(m.Body) {
			t.Errorf("a copy of %q has the id %q", m.Body, id)
		}
		ids = append(ids, string(id))
	}
	return ids
}

// wait waits until all of these have come.
func (b *bus) wait(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		b.mu.Lock()
		more := b.more
		b.mu.Unlock()
		got := b.ids(t)
		missing := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(got, id) })
		if len(missing) == 0 {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q did not come; %q did", missing, got)
		}
	}
}

func closing[P broker.Publisher](t *testing.T, p P, err error) broker.Publisher {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

func reading[S broker.Source](t *testing.T, b *bus, source S, err error) *bus {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b.more = make(chan struct{})
	b.read(t, source)
	return b
}

func onJetStream(t *testing.T) *bus {
	url := natstest.RealURL(t)
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	name := "OUTBOX_" + rand.Text()
	// Without a window for duplicates, so that every copy is seen.
	stream := jetstream.StreamConfig{Name: name, Subjects: []string{name}, Duplicates: 100 * time.Millisecond}
	if _, err := js.CreateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = js.DeleteStream(context.Background(), name) })
	b := &bus{topic: name, nowhere: "nowhere." + name, open: func(*testing.T) broker.Publisher { return natsbroker.NewPublisher(js) }}
	source, err := natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: name, Consumer: "reader"})
	return reading(t, b, source, err)
}

func onKafka(t *testing.T) *bus {
	topic := kafkatest.Topic(t, 3)
	b := &bus{topic: topic, nowhere: "no topic may have this name", open: func(t *testing.T) broker.Publisher {
		p, err := kafkabroker.NewPublisher(kgo.SeedBrokers(kafkatest.Brokers(t)...))
		return closing(t, p, err)
	}}
	source, err := kafkabroker.NewSource(kafkabroker.SourceConfig{URL: kafkatest.URL(t), Group: topic, Topics: []string{topic}})
	return reading(t, b, source, err)
}

func onRabbitMQ(t *testing.T) *bus {
	queue := rabbittest.Queue(t, rabbittest.Connect(t), "quorum", amqp.Table{})
	b := &bus{topic: queue, nowhere: rabbittest.Name(), open: func(t *testing.T) broker.Publisher {
		p, err := rabbitbroker.NewPublisher(rabbittest.URL(t))
		return closing(t, p, err)
	}}
	source, err := rabbitbroker.NewSource(rabbitbroker.SourceConfig{URL: rabbittest.URL(t), Queue: queue})
	return reading(t, b, source, err)
}

// Every kind of failure that outboxes had, on each database with each broker.
func TestTheOutboxOnEveryDatabaseWithEveryBroker(t *testing.T) {
	databases := map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{
		"PostgreSQL": dbtest.Postgres, "MariaDB": dbtest.MySQL, "SQLite": dbtest.SQLite,
	}
	brokers := map[string]func(*testing.T) *bus{"JetStream": onJetStream, "Kafka": onKafka, "RabbitMQ": onRabbitMQ}
	for database, openDatabase := range databases {
		for name, openBroker := range brokers {
			t.Run(database+" with "+name, func(t *testing.T) {
				for what, test := range map[string]func(*testing.T, *shop, *bus){
					"an event that commits after one with a higher id comes":         lateCommit,
					"a number that never commits stops nothing":                      permanentGap,
					"a long transaction of somebody else stops nothing":              longTransaction,
					"an event that can never be published is parked and others flow": parkedOnBroker,
					"a relay that dies before it records leaves copies of one id":    diesUnrecorded,
					"relays that overlap keep a key's events in order":               overlap,
				} {
					t.Run(what, func(t *testing.T) {
						t.Parallel()
						s, b := newShop(t, openDatabase(t)), openBroker(t)
						s.topic = b.topic
						test(t, s, b)
					})
				}
			})
		}
	}
}

// oneWriter tells that the database lets one transaction write at a time.
func (s *shop) oneWriter() bool { return s.dialect == "sqlite" }

// lateCommit: on SQLite, with one writer at a time, the second has to wait, and
// ids follow commits.
func lateCommit(t *testing.T, s *shop, b *bus) {
	s.relay(outbox.RelayConfig{Publisher: b.open(t)})
	first, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.addIn(first, "a/1")
	if s.oneWriter() {
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		s.add("b/1")
		b.wait(t, "a/1", "b/1")
		return
	}
	s.add("b/1", "c/1")
	b.wait(t, "b/1", "c/1")
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	b.wait(t, "a/1")
	if s.row("a/1").ID >= s.row("b/1").ID {
		t.Error("its id is not the lower one: the test shows nothing")
	}
}

func permanentGap(t *testing.T, s *shop, b *bus) {
	s.relay(outbox.RelayConfig{Publisher: b.open(t)})
	s.add("a/1")
	gone, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.addIn(gone, "a/2")
	if err := gone.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.add("a/3")
	b.wait(t, "a/1", "a/3")
	if slices.Contains(b.ids(t), "a/2") {
		t.Error("what was rolled back was published")
	}
}

func longTransaction(t *testing.T, s *shop, b *bus) {
	if _, err := s.db.ExecContext(s.ctx, `CREATE TABLE report (n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	long, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback()
	begin := `INSERT INTO report VALUES (1)` // it has a number among the transactions
	if s.oneWriter() {
		begin = `SELECT n FROM report` // a writer would keep others out
	}
	if _, err := long.ExecContext(s.ctx, begin); err != nil {
		t.Fatal(err)
	}
	s.relay(outbox.RelayConfig{Publisher: b.open(t)})
	s.add("a/1", "b/1")
	s.add("a/2")
	b.wait(t, "a/1", "b/1", "a/2")
	s.until("all are recorded", func() bool { return s.row("a/2").Status == outbox.Published })
}

func parkedOnBroker(t *testing.T, s *shop, b *bus) {
	s.topic = b.nowhere
	s.add("bad/1")
	s.topic = b.topic
	s.add("bad/2", "good/1", "x")
	w := newWatch()
	s.relay(outbox.RelayConfig{Publisher: b.open(t), MaxAttempts: 2, Observer: w.observe})
	b.wait(t, "good/1", "x", "bad/2")
	w.wait(t, 1, outbox.GivenUp)
	if r := s.row("bad/1"); r.Status != outbox.Parked || r.Error == "" || r.Attempts != 2 {
		t.Errorf("it is %+v", r)
	}
	s.until("the parked one alone is left", func() bool {
		stats, err := s.store.Outbox().Stats(s.ctx)
		return err == nil && stats.Parked == 1 && stats.Pending == 0
	})
}

// deaf are rows of a relay whose process dies before it records anything.
type deaf struct {
	outbox.Rows
	died chan struct{}
	once sync.Once
}

func (d *deaf) Done(ctx context.Context, _ string, _ []int64, _ []outbox.Failure) error {
	d.once.Do(func() { close(d.died) })
	<-ctx.Done()
	return errors.New("it is dead")
}

func (d *deaf) Leave(context.Context, string) error { return nil } // the dead say nothing

func diesUnrecorded(t *testing.T, s *shop, b *bus) {
	s.add("a/1", "a/2", "b/1")
	dead := &deaf{Rows: s.store.Outbox(), died: make(chan struct{})}
	stop := s.runOn(dead, outbox.RelayConfig{Publisher: b.open(t), DrainTimeout: time.Millisecond})
	<-dead.died
	stop()
	b.wait(t, "a/1", "a/2", "b/1")
	s.relay(outbox.RelayConfig{Publisher: b.open(t)})
	s.until("all are recorded", func() bool {
		return s.row("a/2").Status == outbox.Published && s.row("b/1").Status == outbox.Published
	})
	s.until("the copies have come", func() bool { return len(b.ids(t)) >= 6 })
	if got := firsts(b.ids(t), "a"); got != "a/1 a/2" {
		t.Errorf("the order was %s", got)
	}
}

func overlap(t *testing.T, s *shop, b *bus) {
	const keys, events, relays = 5, 20, 3
	for range relays {
		s.relay(outbox.RelayConfig{Publisher: b.open(t), Batch: 20})
	}
	var want []string
	for i := range events {
		var some []string
		for key := range keys {
			some = append(some, fmt.Sprintf("k%d/%d", key, i))
		}
		s.add(some...)
		want = append(want, some...)
		if i == events/2 { // one more comes, and takes lanes over
			s.relay(outbox.RelayConfig{Publisher: b.open(t), Batch: 20})
		}
	}
	b.wait(t, want...)
	for key := range keys {
		var in []string
		for i := range events {
			in = append(in, fmt.Sprintf("k%d/%d", key, i))
		}
		if got := firsts(b.ids(t), fmt.Sprintf("k%d", key)); got != strings.Join(in, " ") {
			t.Errorf("key %d: %s", key, got)
		}
	}
}
