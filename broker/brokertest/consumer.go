package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
)

// The tests of this file run a Consumer on the broker, with a store in memory.

// shop is a Consumer's surroundings.
type shop struct {
	*bench
	batch sekali.Batch
	store *memstore.Store
	mu    sync.Mutex
	calls []string      // of the handler, by the body
	more  chan struct{} // closed, and replaced, at every event
	seen  map[sekali.EventKind]int
}

func newShop(t *testing.T, h Harness, batch sekali.Batch, o Options) *shop {
	return &shop{bench: open(t, h, o), batch: batch, store: memstore.New(), more: make(chan struct{}), seen: map[sekali.EventKind]int{}}
}

// Observe makes it the Consumer's observer.
func (s *shop) Observe(e sekali.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 1
	if e.Kind == sekali.Settled {
		n = e.Count
	}
	s.seen[e.Kind] += n
	close(s.more)
	s.more = make(chan struct{})
}

// await waits until something has happened n times.
func (s *shop) await(kind sekali.EventKind, n int) {
	s.t.Helper()
	s.until(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.seen[kind] >= n
	})
}

// until looks at every event whether something is so.
func (s *shop) until(so func() bool) {
	s.t.Helper()
	for {
		s.mu.Lock()
		more, seen := s.more, fmt.Sprint(s.seen)
		s.mu.Unlock()
		if so() {
			return
		}
		select {
		case <-more:
		case <-s.ctx.Done():
			s.t.Fatalf("it did not come to that: %d effects, and these events: %s", s.store.Keys(), seen)
		}
	}
}

// run starts a Consumer. Its key is the body; its effect is counted by it.
func (s *shop) run(source broker.Source, edit func(*sekali.Config[*memstore.Tx])) (stop func()) {
	s.t.Helper()
	cfg := sekali.Config[*memstore.Tx]{
		Name: "stock-service", Source: source, Store: s.store, Observer: s, Batch: s.batch,
		Key:     func(m *sekali.Message) (string, error) { return string(m.Body), nil },
		Backoff: sekali.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
		Handle:  s.sell,
	}
	if edit != nil {
		edit(&cfg)
	}
	c, err := sekali.NewConsumer(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("Run returned %v", err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

func (s *shop) sell(_ context.Context, tx *memstore.Tx, m *sekali.Message) error {
	s.mu.Lock()
	s.calls = append(s.calls, string(m.Body))
	s.mu.Unlock()
	tx.Add(string(m.Body), 1)
	return nil
}

// exact fails the test unless each message had its effect once.
func (s *shop) exact(bodies []string) {
	s.t.Helper()
	for _, body := range bodies {
		if n := s.store.Counter(body); n != 1 {
			s.t.Errorf("%q had its effect %d times", body, n)
		}
	}
}

// watched is a source that tells of each settlement before it is made.
type watched struct {
	broker.Source
	before func([]broker.Settlement)
}

func (w watched) Unwrap() any { return w.Source }

func (w watched) Settle(ctx context.Context, x []broker.Settlement) error {
	w.before(x)
	return w.Source.Settle(ctx, x)
}

func ackAfterCommit(t *testing.T, h Harness, batch sekali.Batch) {
	s := newShop(t, h, batch, Options{})
	stop := s.run(watched{s.Source(t), func(x []broker.Settlement) {
		for _, one := range x {
			if n := s.store.Counter(string(one.Delivery.Message.Body)); one.Action == broker.Ack && n != 1 {
				t.Errorf("%s is acknowledged with an effect of %d", one.Delivery.Message.Body, n)
			}
		}
	}}, nil)
	all := s.publish(50)
	s.await(sekali.Settled, 50)
	stop()
	s.exact(all)
	s.drained()
}

func letterBeforeAck(t *testing.T, h Harness, batch sekali.Batch) {
	s := newShop(t, h, batch, Options{})
	sink := &reluctant{Sink: s.store.DeadLetters(), refusals: 3}
	stop := s.run(watched{s.Source(t), func(x []broker.Settlement) {
		for _, one := range x {
			if one.Action == broker.Ack && string(one.Delivery.Message.Body) == "bad" && !sink.wrote() {
				t.Error("acknowledged before its dead letter was written")
			}
		}
	}}, func(c *sekali.Config[*memstore.Tx]) {
		c.DeadLetters = sink
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			if string(m.Body) == "bad" {
				return sekali.Permanent(errors.New("it can never be processed"))
			}
			return s.sell(ctx, tx, m)
		}
	})
	bad := s.message()
	bad.Body = []byte("bad")
	s.send(bad)
	s.await(sekali.DeadLettered, 1)
	s.await(sekali.Settled, 1)
	stop()
	if letters, err := s.store.DeadLetters().List(s.ctx, deadletter.Filter{}); err != nil || len(letters) != 1 || string(letters[0].Message.Body) != "bad" {
		t.Errorf("dead letters: %+v, %v", letters, err)
	}
	s.drained()
}

// reluctant is a sink that refuses some times.
type reluctant struct {
	deadletter.Sink
	mu       sync.Mutex
	refusals int
	written  bool
}

func (r *reluctant) Put(ctx context.Context, l deadletter.Letter) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusals > 0 {
		r.refusals--
		return errors.New("the table is full")
	}
	r.written = true
	return r.Sink.Put(ctx, l)
}

func (r *reluctant) wrote() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written
}

func drainOnStop(t *testing.T, h Harness, batch sekali.Batch) {
	s := newShop(t, h, batch, Options{})
	inWork, release := make(chan struct{}), make(chan struct{})
	all := s.publish(40)
	stop := s.run(s.Source(t), func(c *sekali.Config[*memstore.Tx]) {
		c.Workers = 1
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			if string(m.Body) == all[5] {
				close(inWork)
				<-release
			}
			return s.sell(ctx, tx, m)
		}
	})
	<-inWork
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	select {
	case <-stopped:
		t.Fatal("stopped while a message was in work")
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	<-stopped
	if n := s.store.Counter(all[5]); n != 1 {
		t.Errorf("what was in work at the stop had its effect %d times", n)
	}
	// What it had in hand comes again, and nothing that it finished.
	before := s.store.Keys()
	s.run(s.Source(t), nil)
	s.until(func() bool { return s.store.Keys() == 40 })
	s.exact(all)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) != 40 || before >= 40 {
		t.Errorf("%d calls of handlers, %d before the stop; want 40, some of them after it", len(s.calls), before)
	}
}

func reconnects(t *testing.T, h Harness, batch sekali.Batch) {
	// What was on its way when the connection broke comes again after AckWait.
	s := newShop(t, h, batch, Options{AckWait: 2 * time.Second})
	if s.Cut == nil {
		return
	}
	s.run(s.Source(t), nil)
	var all []string
	for range 5 {
		all = append(all, s.publish(20)...)
		s.await(sekali.Finished, len(all)-10)
		s.Cut()
	}
	s.until(func() bool { return s.store.Keys() == len(all) })
	s.exact(all)
}

func bodiesArrive(t *testing.T, h Harness, batch sekali.Batch) {
	s := newShop(t, h, batch, Options{})
	want := [][]byte{nil, {}, []byte("\x00\xff\xfe"), []byte("{}"), bytes.Repeat([]byte("x"), 100_000)}
	var mu sync.Mutex
	got := map[string][]byte{}
	s.run(s.Source(t), func(c *sekali.Config[*memstore.Tx]) {
		c.Key = sekali.Header("n")
		c.Handle = func(_ context.Context, _ *memstore.Tx, m *sekali.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got[m.Key()] = m.Body
			return nil
		}
	})
	for i, body := range want {
		m := s.message()
		m.Body, m.Headers = body, broker.Headers{{Name: "n", Value: fmt.Append(nil, i)}}
		s.send(m)
	}
	s.await(sekali.Finished, len(want))
	mu.Lock()
	defer mu.Unlock()
	for i, body := range want {
		if b := got[fmt.Sprint(i)]; !bytes.Equal(b, body) || h.Features.NullBody && (b == nil) != (body == nil) {
			t.Errorf("body %d came to the handler as %#v, want %#v", i, b, body)
		}
	}
}

func orderInALane(t *testing.T, h Harness, batch sekali.Batch) {
	s := newShop(t, h, batch, Options{Lanes: true})
	var calls atomic.Int32
	s.run(s.Source(t), func(c *sekali.Config[*memstore.Tx]) {
		c.Workers = 8
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			if calls.Add(1)%5 == 0 {
				return errors.New("not yet")
			}
			return s.sell(ctx, tx, m)
		}
	})
	want := s.keyed(20, "a", "b", "c")
	s.until(func() bool { return s.store.Keys() == 60 })
	got := map[string][]string{}
	for _, body := range s.store.Log() {
		key, _, _ := strings.Cut(body, "/")
		got[key] = append(got[key], body)
	}
	for key := range want {
		s.same(got[key], want[key])
	}
}

// killed: what a source had in hand whose process died comes again, with a
// hint if the broker has one. What was acknowledged does not.
func killed(t *testing.T, h Harness) {
	s := newShop(t, h, sekali.Batch{}, Options{AckWait: 1500 * time.Millisecond})
	if s.Kill == nil {
		return
	}
	all := s.publish(6)
	first := s.Source(t)
	held := s.receive(first, 4)
	s.settle(first, broker.Ack, held[0])
	s.Kill(first)
	second := s.source()
	var got []*broker.Delivery
	for range 5 { // one after another: they don't come at one time
		d := s.receive(second, 1)
		s.settle(second, broker.Ack, d...)
		got = append(got, d...)
	}
	want := slices.DeleteFunc(all, func(b string) bool { return b == string(held[0].Message.Body) })
	s.sameSet(bodies(got), want)
	inHand := bodies(held[1:])
	for _, d := range got {
		hint := d.Redelivered || d.Attempt > 1
		if was := slices.Contains(inHand, string(d.Message.Body)); was && !hint && (h.Features.Redelivered || h.Features.Attempts) {
			t.Errorf("%s was in a dead hand, and there is no hint", d.Message.Body)
		}
	}
	s.close(second)
	s.drained()
}
