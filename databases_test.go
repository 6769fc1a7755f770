package sekali_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// The tests of this file run the whole on a real database and a real broker:
// TestSQLite here, on an embedded JetStream; the others, which need servers,
// in servers_test.go.

// stack is a database and what is needed to work on it.
type stack[Tx any] struct {
	kind  string // for racers: how another process opens it
	db    *dbtest.DB
	store store.Store[Tx]
	exec  func(ctx context.Context, tx Tx, statement string) error
	nats  string // URL
	batch int    // how many messages in a transaction at most; 0: the default
}

func execSQL(ctx context.Context, tx *sql.Tx, statement string) error {
	_, err := tx.ExecContext(ctx, statement)
	return err
}

func TestSQLite(t *testing.T) {
	db := dbtest.SQLite(t)
	whole(t, stack[*sql.Tx]{kind: "sqlite", db: db, store: sqlstore.New(db.SQL, sqlite.Dialect), exec: execSQL, nats: natstest.Start(t)})
}

// whole is all that must hold on every database.
func whole[Tx any](t *testing.T, s stack[Tx]) {
	for _, statement := range []string{
		`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`,
		`CREATE TABLE sales (sale VARCHAR(60) NOT NULL)`,
	} {
		if _, err := s.db.SQL.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("the same message twice has its effect once", s.inBatches(stack[Tx].twice))
	t.Run("two consumers with the same message at once have one effect", s.inBatches(stack[Tx].atOnce))
	t.Run("what was done is read back by another process, with causes and ages", s.inBatches(stack[Tx].counted))
	t.Run("a handler that fails leaves no row and the next delivery works", s.inBatches(stack[Tx].fails))
	t.Run("a poison message is a dead letter in the consumer's database", s.inBatches(stack[Tx].poison))
	t.Run("a context cancelled at any moment leaves no half effect", s.cancelled)
	t.Run("a topic that is replayed after its keys were pruned has no effect twice", s.inBatches(stack[Tx].replayed))
	t.Run("two processes that race for a thousand keys have a thousand effects", s.race)
}

// inBatches runs a test of a Consumer in batches of several sizes.
func (s stack[Tx]) inBatches(run func(stack[Tx], *testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		for _, s.batch = range []int{1, 7, 100} {
			t.Run(fmt.Sprintf("batches of %d", s.batch), func(t *testing.T) { run(s, t) })
		}
	}
}

func (s stack[Tx]) restock(t *testing.T) {
	t.Helper()
	for _, statement := range []string{
		`DELETE FROM stock`, `DELETE FROM sales`, `DELETE FROM processed_messages`,
		`INSERT INTO stock (sku, quantity) VALUES ('KOPI-250', 100000)`,
	} {
		if _, err := s.db.SQL.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
}

func (s stack[Tx]) number(t *testing.T, query string) (n int) {
	t.Helper()
	if err := s.db.SQL.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// want reads the effect and the keys back from the database.
func (s stack[Tx]) want(t *testing.T, sold, keys int) {
	t.Helper()
	if got := 100000 - s.number(t, `SELECT quantity FROM stock`); got != sold {
		t.Errorf("stock fell by %d, want %d", got, sold)
	}
	if got := s.number(t, `SELECT COUNT(*) FROM processed_messages`); got != keys {
		t.Errorf("there are %d rows in processed_messages, want %d", got, keys)
	}
}

func (s stack[Tx]) sell(ctx context.Context, tx Tx, _ *sekali.Message) error {
	return s.exec(ctx, tx, `UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI-250'`)
}

// orders is a stream of a test's own.
type orders struct {
	t    *testing.T
	js   jetstream.JetStream
	name string
}

func (s stack[Tx]) orders(t *testing.T) orders {
	t.Helper()
	conn := natstest.Connect(t, s.nats)
	js, err := jetstream.New(conn.Conn)
	if err != nil {
		t.Fatal(err)
	}
	o := orders{t, js, fmt.Sprintf("ORDERS_%x", rand.Uint64())}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: o.name, Subjects: []string{o.name}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = js.DeleteStream(context.Background(), o.name) })
	return o
}

// publish sends a message per key. The broker does not see that two are alike.
func (o orders) publish(keys ...string) {
	o.t.Helper()
	for _, key := range keys {
		err := natsbroker.NewPublisher(o.js).Publish(o.t.Context(), broker.Message{
			Topic: o.name, Body: []byte("an order"), Headers: broker.Headers{{Name: "idempotency-key", Value: []byte(key)}},
		})
		if err != nil {
			o.t.Fatal(err)
		}
	}
}

// waitAcknowledged waits until the broker has nothing left for the consumer.
func (o orders) waitAcknowledged() {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	for {
		c, err := o.js.Consumer(ctx, o.name, "stock-service")
		if err != nil {
			o.t.Fatal(err)
		}
		if info := c.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
			return
		}
	}
}

// running is a Consumer at work.
type running struct {
	events *events
	stop   func()
}

func (s stack[Tx]) consume(t *testing.T, o orders, h sekali.Handler[Tx], options ...func(*sekali.Config[Tx])) running {
	t.Helper()
	source, err := natsbroker.NewSource(o.js, natsbroker.SourceConfig{Stream: o.name, Consumer: "stock-service", AckWait: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := running{events: newEvents()}
	cfg := sekali.Config[Tx]{
		Name: "stock-service", Source: source, Store: s.store, Key: sekali.Header("idempotency-key"), Handle: h, Batch: sekali.Batch{Size: s.batch},
		Backoff: sekali.Backoff{Initial: time.Millisecond, Max: 5 * time.Millisecond}, Observer: r.events,
	}
	for _, option := range options {
		option(&cfg)
	}
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (s stack[Tx]) twice(t *testing.T) {
	s.restock(t)
	o := s.orders(t)
	r := s.consume(t, o, s.sell)
	o.publish("order-42:paid", "order-42:paid", "ORDER-42:paid", "order-42:påid")
	r.events.wait(t, 4, kind(sekali.Finished))
	o.waitAcknowledged()
	r.stop()
	s.want(t, 3, 3)
}

func (s stack[Tx]) atOnce(t *testing.T) {
	s.restock(t)
	here, there := s.orders(t), s.orders(t)
	entered, hold := make(chan struct{}), make(chan struct{})
	first := s.consume(t, here, func(ctx context.Context, tx Tx, m *sekali.Message) error {
		close(entered)
		<-hold
		return s.sell(ctx, tx, m)
	})
	second := s.consume(t, there, s.sell)
	here.publish("order-42:paid")
	<-entered
	there.publish("order-42:paid")
	second.events.wait(t, 1, kind(sekali.Received))
	close(hold)
	first.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Processed })
	second.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate })
	here.waitAcknowledged()
	there.waitAcknowledged()
	first.stop()
	second.stop()
	s.want(t, 1, 1)
}

func (s stack[Tx]) counted(t *testing.T) {
	s.restock(t)
	if _, err := s.db.SQL.Exec(`DELETE FROM consumer_stats`); err != nil {
		t.Fatal(err)
	}
	o := s.orders(t)
	r := s.consume(t, o, func(ctx context.Context, tx Tx, m *sekali.Message) error {
		if m.Key() == "bad" {
			return sekali.Permanent(errors.New("no"))
		}
		return s.sell(ctx, tx, m)
	})
	o.publish("a", "b", "c")
	r.events.wait(t, 3, kind(sekali.Finished))
	o.publish("a", "bad")
	r.events.wait(t, 4, kind(sekali.Finished))
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	o.waitAcknowledged()
	r.stop()
	keeper, ok := store.As[interface{ Stats() store.Stats }](s.store)
	if !ok {
		t.Fatalf("a %T keeps no statistics", s.store)
	}
	minutes, err := keeper.Stats().Stats(t.Context(), "stock-service", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var got store.Counts
	for _, m := range minutes {
		got = got.Plus(m.Counts)
	}
	ages := int64(0)
	for _, n := range got.Ages {
		ages += n
	}
	if within, ok := got.Within(1); ages != 1 || !ok || within > time.Minute {
		t.Errorf("the ages are %v", got.Ages)
	}
	got.Ages = [store.NumAges]int64{}
	if want := (store.Counts{Processed: 3, Repeated: 1, DeadLetters: 1}); got != want {
		t.Errorf("the counts are %+v, want %+v", got, want)
	}
}

func (s stack[Tx]) fails(t *testing.T) {
	s.restock(t)
	o := s.orders(t)
	sad := s.consume(t, o, func(ctx context.Context, tx Tx, m *sekali.Message) error {
		return errors.Join(s.sell(ctx, tx, m), errors.New("no courier"))
	}, func(c *sekali.Config[Tx]) {
		c.Backoff = sekali.Backoff{Initial: time.Hour, Max: time.Hour}
		// With an order to keep it waits in the process, not at the broker.
		c.Order, c.OrderInProcessOnly = func(*sekali.Message) string { return "e" }, true
	})
	o.publish("order-42:paid")
	sad.events.wait(t, 1, kind(sekali.AttemptFailed))
	s.want(t, 0, 0)
	sad.stop() // gives it back
	s.want(t, 0, 0)
	glad := s.consume(t, o, s.sell)
	glad.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Processed })
	o.waitAcknowledged()
	glad.stop()
	s.want(t, 1, 1)
}

func (s stack[Tx]) poison(t *testing.T) {
	s.restock(t)
	o := s.orders(t)
	r := s.consume(t, o, func(ctx context.Context, tx Tx, m *sekali.Message) error {
		if m.Key() == "poison" {
			return s.exec(ctx, tx, `UPDATE no_such_table SET quantity = 0`)
		}
		return s.sell(ctx, tx, m)
	}, func(c *sekali.Config[Tx]) { c.MaxAttempts = 2 })
	o.publish("poison", "a", "b")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.events.wait(t, 2, kind(sekali.Finished))
	o.waitAcknowledged()
	r.stop()
	s.want(t, 2, 2)
	if n := s.number(t, `SELECT COUNT(*) FROM dead_letters WHERE message_key = 'poison' AND attempts = 2 AND status = 'open'`); n != 1 {
		t.Errorf("there are %d letters of the poison message", n)
	}
}

// cancelled: 1,000 rounds, each cancelled at a random moment.
func (s stack[Tx]) cancelled(t *testing.T) {
	s.restock(t)
	inbox := sekali.NewInbox(s.store, "stock-service")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	var processed atomic.Int32
	for worker := range 4 {
		wg.Go(func() {
			chance := rand.New(rand.NewPCG(seed, uint64(worker)))
			for round := range 250 {
				key := fmt.Sprintf("%d-%d", worker, round)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(chance.IntN(6000))*time.Microsecond)
				outcome, err := inbox.Process(ctx, key, func(ctx context.Context, tx Tx) error {
					return s.exec(ctx, tx, `INSERT INTO sales (sale) VALUES ('`+key+`')`)
				})
				cancel()
				switch {
				case err == nil && (outcome == sekali.Processed || outcome == sekali.Duplicate):
					processed.Add(1)
				case err == nil || outcome != 0:
					t.Errorf("round %s: outcome %v with error %v", key, outcome, err)
				}
			}
		})
	}
	wg.Wait()
	keys := s.number(t, `SELECT COUNT(*) FROM processed_messages`)
	sales := s.number(t, `SELECT COUNT(*) FROM sales`)
	matched := s.number(t, `SELECT COUNT(*) FROM processed_messages p JOIN sales s ON s.sale = p.message_key`)
	if keys != sales || keys != matched || int(processed.Load()) > keys {
		t.Errorf("%d keys, %d sales, %d matched, %d reported as processed", keys, sales, matched, processed.Load())
	}
	t.Logf("%d of 1,000 rounds were committed", keys)
}

// racerEnv makes the test binary a racer: "kind url".
const racerEnv = "SEKALI_TEST_RACER"

const racedKeys = 1000

func (s stack[Tx]) race(t *testing.T) {
	s.restock(t)
	var wg sync.WaitGroup
	var processed atomic.Int32
	for range 2 {
		wg.Go(func() {
			racer := exec.CommandContext(t.Context(), os.Args[0])
			racer.Env = append(os.Environ(), racerEnv+"="+s.kind+" "+s.db.URL)
			output, err := racer.CombinedOutput()
			if err != nil {
				t.Errorf("a racer failed: %v\n%s", err, output)
			}
			lines := bufio.NewScanner(strings.NewReader(string(output)))
			for lines.Scan() {
				if lines.Text() == "processed" {
					processed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	s.want(t, racedKeys, racedKeys)
	if processed.Load() != racedKeys {
		t.Errorf("the two report %d messages as processed, want %d", processed.Load(), racedKeys)
	}
}

// runRacer processes all keys, in an order of its own, with four goroutines.
func runRacer[Tx any](s store.Store[Tx], exec func(context.Context, Tx, string) error) error {
	inbox := sekali.NewInbox(s, "stock-service")
	keys := make(chan int)
	go func() {
		for _, k := range rand.Perm(racedKeys) {
			keys <- k
		}
		close(keys)
	}()
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 4 {
		wg.Go(func() {
			for k := range keys {
				outcome, err := inbox.Process(context.Background(), fmt.Sprint(k), func(ctx context.Context, tx Tx) error {
					return exec(ctx, tx, `UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI-250'`)
				})
				if err != nil {
					failed.Store(&err)
				}
				if outcome == sekali.Processed {
					fmt.Println("processed")
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// racer is the life of a racer's process.
func racer(kind, url string) error {
	if kind == "sqlite" {
		db, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(url, "sqlite:")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
		if err != nil {
			return err
		}
		defer db.Close()
		return runRacer(sqlstore.New(db, sqlite.Dialect), execSQL)
	}
	return serverRacer(kind, url)
}
