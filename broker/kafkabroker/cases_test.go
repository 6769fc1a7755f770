package kafkabroker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/kafkabroker"
)

// cases are what only Kafka can get wrong.
func cases(t *testing.T, k kafka) {
	for name, test := range map[string]func(*testing.T, kafka){
		"an offset is committed only behind finished work":                        contiguous,
		"gaps in offsets stall nothing":                                           gaps,
		"a lane that is given up waits for what is in work, and for no more":      revocation,
		"a late completion settles nothing after the lane has gone and come back": lateCompletion,
		"a topic that was made again has new messages":                            recreatedTopic,
		"null and empty keys, values and headers stay apart":                      nulls,
		"a source does not run ahead without bounds":                              ahead,
		"what a dead member may have begun is marked, and only that":              suspects,
		"a clean stop marks nothing":                                              cleanStop,
		"a topic that is not there yet is waited for":                             laterTopic,
		"the source tells how long its topics keep records":                       told,
		"an offset that is no longer there is followed by the first that is":      deletedRecords,
		"a member whose partitions were lost goes on with them when they return":  blackout,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

func TestCasesOnAFakeCluster(t *testing.T) {
	k := fake(t)
	t.Run("cases", func(t *testing.T) { cases(t, k) })
}

// bench is a topic with a group, and helpers that fail the test.
type bench struct {
	*testing.T
	k            kafka
	ctx          context.Context
	topic, group string
	publisher    *kafkabroker.Publisher
}

func newBench(t *testing.T, k kafka, partitions int32) *bench {
	ctx, cancel := context.WithTimeout(t.Context(), 2*brokertest.Patience)
	t.Cleanup(cancel)
	return &bench{t, k, ctx, k.topic(t, partitions), name("group"), k.publisher(t)}
}

func (b *bench) source(edit ...func(*kafkabroker.SourceConfig)) *kafkabroker.Source {
	b.Helper()
	s := b.k.source(b.T, b.group, b.topic, edit...)
	b.Cleanup(func() { b.close(s) })
	return s
}

func (b *bench) close(s *kafkabroker.Source) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		b.Errorf("close the source: %v", err)
	}
}

func (b *bench) publish(from, to int) {
	b.Helper()
	var m []broker.Message
	for i := from; i < to; i++ {
		m = append(m, broker.Message{Topic: b.topic, Body: fmt.Append(nil, i), OrderingKey: fmt.Append(nil, "key", i)})
	}
	if err := b.publisher.Publish(b.ctx, m...); err != nil {
		b.Fatalf("publish: %v", err)
	}
}

func (b *bench) receive(s broker.Source, n int) []*broker.Delivery {
	b.Helper()
	var got []*broker.Delivery
	for len(got) < n {
		d, err := s.Receive(b.ctx, n-len(got))
		if err != nil && (b.ctx.Err() != nil || errors.Is(err, broker.ErrClosed)) {
			b.Fatalf("received %d of %d: %v", len(got), n, err)
		}
		got = append(got, d...)
	}
	return got
}

// nothing fails the test if s hands anything over soon.
func (b *bench) nothing(s broker.Source) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 500*time.Millisecond)
	defer cancel()
	if d, err := s.Receive(ctx, 1); err == nil {
		b.Fatalf("received %q", d[0].Message.Body)
	}
}

func settle(ctx context.Context, s broker.Source, a broker.Action, d ...*broker.Delivery) error {
	var x []broker.Settlement
	for _, one := range d {
		x = append(x, broker.Settlement{Delivery: one, Action: a})
	}
	return s.Settle(ctx, x)
}

func (b *bench) ack(s broker.Source, d ...*broker.Delivery) {
	b.Helper()
	if err := settle(b.ctx, s, broker.Ack, d...); err != nil {
		b.Fatalf("acknowledge: %v", err)
	}
}

// committed is the group's offset of a partition; -1: none.
func (b *bench) committed(partition int32) int64 {
	b.Helper()
	a := b.k.admin(b.T)
	defer a.Close()
	offsets, err := a.FetchOffsets(b.ctx, b.group)
	if err != nil {
		b.Fatalf("fetch the group's offsets: %v", err)
	}
	o, ok := offsets.Lookup(b.topic, partition)
	if !ok {
		return -1
	}
	return o.At
}

func (b *bench) wantCommitted(want int64) {
	b.Helper()
	if got := b.committed(0); got != want {
		b.Errorf("offset %d is committed, want %d", got, want)
	}
}

func text(d []*broker.Delivery) string {
	var all []string
	for _, x := range d {
		all = append(all, string(x.Message.Body))
	}
	return strings.Join(all, " ")
}

func contiguous(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 6)
	s := b.source()
	d := b.receive(s, 5)
	b.wantCommitted(0) // it says that work has begun
	b.ack(s, d[1], d[3])
	b.wantCommitted(0)
	b.ack(s, d[0])
	b.wantCommitted(2)
	b.ack(s, d[2])
	b.wantCommitted(4)
	if err := settle(b.ctx, s, broker.Retry, d[4]); err != nil {
		t.Fatal(err)
	}
	b.wantCommitted(4)
	if got := text(b.receive(s, 2)); got != "4 5" {
		t.Errorf("received %q after a retry, want 4 5", got)
	}
	b.close(s)
	b.wantCommitted(4)
}

func gaps(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	producer, err := kgo.NewClient(kgo.SeedBrokers(k.brokers...), kgo.TransactionalID(name("tx")), kgo.DefaultProduceTopic(b.topic))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	// Each transaction ends with a marker, which takes an offset of its own.
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for j := range 3 {
			if err := producer.ProduceSync(b.ctx, kgo.StringRecord(fmt.Sprint(i, "-", j))).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := producer.EndTransaction(b.ctx, end); err != nil {
			t.Fatal(err)
		}
	}
	s := b.source()
	d := b.receive(s, 6)
	if got, want := text(d), "0-0 0-1 0-2 2-0 2-1 2-2"; got != want {
		t.Errorf("received %q, want %q: nothing of what was aborted", got, want)
	}
	b.ack(s, d...)
	b.publish(100, 101)
	last := b.receive(s, 1)
	b.ack(s, last...)
	// 4 transactions of 3 records and a marker, and one record.
	b.wantCommitted(17)
}

// hand is a Consumer's stand-in: it says which lanes were revoked, and waits
// until the test lets go.
type hand struct {
	mu      sync.Mutex
	revoked []string
	over    bool // ctx had ended: the lanes were gone
	called  chan struct{}
	release chan struct{}
}

func newHand() *hand { return &hand{called: make(chan struct{}, 100), release: make(chan struct{})} }

func (h *hand) revoke(ctx context.Context, lanes []string) {
	h.mu.Lock()
	h.revoked = append(h.revoked, lanes...)
	h.over = ctx.Err() != nil
	h.mu.Unlock()
	h.called <- struct{}{}
	select {
	case <-h.release:
	case <-ctx.Done():
	}
}

func revocation(t *testing.T, k kafka) {
	b := newBench(t, k, 2)
	b.publish(0, 40)
	first, h := b.source(), newHand()
	first.OnRevoke(h.revoke)
	held := b.receive(first, 20) // of both partitions
	second := b.source()
	got := make(chan []*broker.Delivery, 1)
	go func() {
		d, _ := second.Receive(b.ctx, 100)
		got <- d
	}()
	<-h.called
	h.mu.Lock()
	lane := h.revoked[0]
	if len(h.revoked) != 1 || h.over {
		t.Fatalf("revoked %q, over %v: want one lane, in good order", h.revoked, h.over)
	}
	h.mu.Unlock()
	// The message in work is finished while the other member waits.
	held = slices.DeleteFunc(held, func(d *broker.Delivery) bool { return d.Lane != lane })
	if len(held) < 2 {
		t.Fatalf("only %d deliveries of lane %s in hand", len(held), lane)
	}
	select {
	case d := <-got:
		t.Fatalf("the other member received %q while a message of the lane was in work", text(d))
	case <-time.After(300 * time.Millisecond):
	}
	b.ack(first, held[0])
	close(h.release)
	d := <-got
	if len(d) == 0 || string(d[0].Message.Body) != string(held[1].Message.Body) || d[0].Lane != lane {
		t.Fatalf("the other member received %q, want what came after %q", text(d), held[0].Message.Body)
	}
	if err := settle(b.ctx, first, broker.Ack, held[1]); !errors.Is(err, broker.ErrLost) {
		t.Errorf("a late completion was settled with %v, want ErrLost", err)
	}
	b.ack(second, d...)
}

func lateCompletion(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 5)
	first := b.source()
	held := b.receive(first, 3)
	b.close(first)
	again := b.source()
	d := b.receive(again, 3)
	for _, late := range held {
		if err := settle(b.ctx, again, broker.Ack, late); !errors.Is(err, broker.ErrLost) {
			t.Errorf("a completion of another life was settled with %v, want ErrLost", err)
		}
	}
	b.wantCommitted(0)
	b.ack(again, d[0])
	b.wantCommitted(1)
}

func recreatedTopic(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 3)
	s := b.source()
	before := b.receive(s, 3)
	b.ack(s, before...)
	k.deleteTopic(t, b.topic)
	deadline := time.Now().Add(20 * time.Second)
	for { // deletion takes its time on a real server
		a := k.admin(t)
		_, err := a.CreateTopic(b.ctx, 1, 1, nil, b.topic)
		a.Close()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("make the topic again: %v", err)
		}
	}
	p := k.publisher(t) // a producer keeps to the topic that it knew, too
	for i := range 2 {
		if err := p.Publish(b.ctx, broker.Message{Topic: b.topic, Body: fmt.Append(nil, "new", i)}); err != nil {
			t.Fatal(err)
		}
	}
	after := b.receive(s, 2)
	if got := text(after); got != "new0 new1" {
		t.Fatalf("received %q of the new topic", got)
	}
	ids := map[string]bool{}
	for _, d := range append(before, after...) {
		ids[d.Message.ID] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d different ids of 5 messages: %v", len(ids), ids)
	}
}

func nulls(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	bodies := [][]byte{nil, {}, []byte("\x00\xff")}
	for _, key := range bodies {
		for _, body := range bodies {
			err := b.publisher.Publish(b.ctx, broker.Message{
				Topic: b.topic, OrderingKey: key, Body: body,
				Headers: broker.Headers{{Name: "h", Value: body}, {Name: "h", Value: key}},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	same := func(what string, got, want []byte) {
		if string(got) != string(want) || (got == nil) != (want == nil) {
			t.Errorf("%s is %#v, want %#v", what, got, want)
		}
	}
	d := b.receive(b.source(), 9)
	for i, x := range d {
		key, body, m := bodies[i/3], bodies[i%3], x.Message
		same("key", m.OrderingKey, key)
		same("body", m.Body, body)
		same("first header", m.Headers[0].Value, body)
		same("second header", m.Headers[1].Value, key)
	}
}

func ahead(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 200)
	s := b.source(func(c *kafkabroker.SourceConfig) { c.MaxAhead = 50 })
	first := b.receive(s, 1)
	for n := 1; n < 200; {
		d := b.receive(s, 1)
		b.ack(s, d...)
		n++
	}
	// One fetch brought more than may be ahead; the next one waits.
	b.wantCommitted(0)
	b.publish(200, 210)
	b.nothing(s)
	b.ack(s, first...)
	if got := text(b.receive(s, 10)); !strings.HasPrefix(got, "200 201") {
		t.Errorf("received %q when the first was done", got)
	}
}

// silence makes a source unreachable for its group, as the death of its
// process does.
type silence struct {
	*wires
	mu   sync.Mutex
	dead bool
}

var errDead = errors.New("this member is dead")

func (s *silence) option(c *kafkabroker.SourceConfig) {
	c.Options = append(c.Options, kgo.Dialer(s.dial))
}

func (s *silence) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return nil, errDead
	}
	return s.wires.dial(ctx, network, addr)
}

func (s *silence) fall() {
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	s.cut()
}

func (s *silence) end() {
	s.mu.Lock()
	s.dead = false
	s.mu.Unlock()
}

// closeLater closes a source of which nobody hears any more.
func closeLater(t testing.TB, s broker.Source) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
}

func suspects(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 1200)
	dead := &silence{wires: &wires{}}
	first := b.k.source(t, b.group, b.topic, dead.option)
	d := b.receive(first, 20)
	b.ack(first, d[:10]...)
	dead.fall()
	closeLater(t, first)
	second := b.source()
	marked := b.receive(second, 1190)
	for i, x := range marked {
		n := i + 10 // in hand were 10 to 19, and a note reaches a little further
		if must := n < 20; must && !x.Redelivered {
			t.Errorf("%s was in the dead member's hand and is not marked", x.Message.Body)
		}
		if x.Redelivered && n >= 20+100 {
			t.Fatalf("%s is marked, which the dead member cannot have begun", x.Message.Body)
		}
	}
	b.ack(second, marked...)
	b.publish(2000, 2001)
	if d := b.receive(second, 1); d[0].Redelivered {
		t.Error("what came later is marked")
	}
}

func cleanStop(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 30)
	first := b.source()
	d := b.receive(first, 20)
	b.ack(first, d[:10]...)
	if err := settle(b.ctx, first, broker.Retry, d[10:]...); err != nil {
		t.Fatal(err)
	}
	b.close(first)
	for i, x := range b.receive(b.source(), 20) {
		if x.Redelivered || string(x.Message.Body) != fmt.Sprint(i+10) {
			t.Errorf("received %s, marked %v; want %d, not marked", x.Message.Body, x.Redelivered, i+10)
		}
	}
}

func laterTopic(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	k.deleteTopic(t, b.topic)
	b.topic = name("later")
	s := b.source()
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	if d, err := s.Receive(ctx, 1); err == nil {
		t.Fatalf("received %q of no topic", text(d))
	}
	k.makeTopic(t, b.topic, 1)
	t.Cleanup(func() { k.deleteTopic(t, b.topic) })
	b.publish(0, 1)
	b.ack(s, b.receive(s, 1)...)
}

func deletedRecords(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 10)
	s := b.source()
	b.ack(s, b.receive(s, 2)...)
	b.close(s)
	a := k.admin(t)
	defer a.Close()
	upTo := kadm.Offsets{}
	upTo.AddOffset(b.topic, 0, 6, -1)
	if _, err := a.DeleteRecords(b.ctx, upTo); err != nil {
		t.Fatal(err)
	}
	again := b.source()
	d := b.receive(again, 4)
	if got := text(d); got != "6 7 8 9" {
		t.Errorf("received %q, want 6 7 8 9", got)
	}
	b.ack(again, d...)
	b.wantCommitted(10)
}

func blackout(t *testing.T, k kafka) {
	b := newBench(t, k, 1)
	b.publish(0, 10)
	line := &silence{wires: &wires{}}
	s, h := b.k.source(t, b.group, b.topic, line.option), newHand()
	close(h.release)
	s.OnRevoke(h.revoke)
	t.Cleanup(func() { b.close(s) })
	held := b.receive(s, 5)
	b.ack(s, held[0])
	line.fall()
	other := b.source()
	d := b.receive(other, 9)
	if got := text(d); got != "1 2 3 4 5 6 7 8 9" {
		t.Fatalf("the other member received %q", got)
	}
	b.ack(other, d[:4]...)
	line.end()
	// It hears that the lane was lost, and joins again.
	<-h.called
	h.mu.Lock()
	if !h.over {
		t.Error("the lane was given up in good order, although it was lost")
	}
	h.mu.Unlock()
	if err := settle(b.ctx, s, broker.Ack, held[1:]...); !errors.Is(err, broker.ErrLost) {
		t.Errorf("late completions were settled with %v, want ErrLost", err)
	}
	b.ack(other, d[4:]...)
	b.close(other)
	b.publish(20, 22)
	got := b.receive(s, 2)
	if text(got) != "20 21" {
		t.Errorf("received %q, want 20 21", text(got))
	}
	b.ack(s, got...)
}
