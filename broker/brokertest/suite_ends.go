package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
)

func closeTwice(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	b.publish(1)
	s := b.Source(t)
	d := b.receive(s, 1)
	b.close(s)
	b.close(s)
	if _, err := s.Receive(b.ctx, 1); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Receive after Close returned %v", err)
	}
	if err := s.Settle(b.ctx, settlements(broker.Ack, d...)); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Settle after Close returned %v", err)
	}
}

func closeEndsReceive(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	s := b.source()
	b.publish(1)
	b.settle(s, broker.Ack, b.receive(s, 1)...) // it is connected now
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Receive(b.ctx, 1); !errors.Is(err, broker.ErrClosed) {
			t.Errorf("Receive returned %v", err)
		}
	})
	// There is no event that tells that a Receive waits. Another one that waits
	// in vain gives it the time.
	short, cancel := context.WithTimeout(b.ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := b.source().Receive(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Receive on an empty queue returned %v", err)
	}
	begun := time.Now()
	b.close(s)
	wg.Wait()
	if took := time.Since(begun); took > Patience/10 {
		t.Errorf("Close took %v", took)
	}
}

func delayed(t *testing.T, h Harness) {
	const delay = 700 * time.Millisecond
	b := open(t, h, Options{})
	s := b.source()
	taker, ok := broker.As[broker.DelayedRetry](s)
	if !ok || taker.MaxDelay() < delay {
		t.Fatal("declared, but MaxDelay does not allow it")
	}
	b.publish(1)
	d := b.receive(s, 1)
	begun := time.Now()
	if err := s.Settle(b.ctx, []broker.Settlement{{Delivery: d[0], Action: broker.Retry, Delay: delay}}); err != nil {
		t.Fatalf("settle: %v", err)
	}
	other := b.publish(1)
	b.same(bodies(b.receive(s, 1)), other)
	again := b.receive(s, 1)
	b.same(bodies(again), bodies(d))
	if took := time.Since(begun); took < delay {
		t.Errorf("came after %v, before its delay of %v was over", took, delay)
	}
}

func expires(t *testing.T, h Harness) {
	const ackWait = 1500 * time.Millisecond
	b := open(t, h, Options{AckWait: ackWait})
	first, second := b.source(), b.source()
	keeper, ok := broker.As[broker.KeepAliver](first)
	if !ok || keeper.KeepAliveEvery() <= 0 || keeper.KeepAliveEvery() > ackWait/2 {
		t.Fatal("deliveries expire, but the source cannot keep them alive, or asks for it too seldom")
	}
	b.publish(2)
	d := b.receive(first, 2)
	kept, dropped := d[0], d[1]
	for _, x := range d {
		if x.Expired() {
			t.Fatalf("%q had expired when it arrived", x.Message.Body)
		}
	}

	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(keeper.KeepAliveEvery())
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := keeper.KeepAlive(b.ctx, []*broker.Delivery{kept}); err != nil {
					t.Errorf("keep alive: %v", err)
				}
			}
		}
	})
	// Three times over: the kept one would have gone in the first.
	var again []*broker.Delivery
	for range 3 {
		again = b.receive(second, 1)
		b.same(bodies(again), bodies([]*broker.Delivery{dropped}))
	}
	close(stop)
	wg.Wait()
	if !dropped.Expired() {
		t.Error("another source has it, but the first one's has not expired")
	}
	if kept.Expired() {
		t.Error("the one kept alive has expired")
	}
	if h.Features.Attempts && again[0].Attempt != 4 || h.Features.Redelivered && !again[0].Redelivered {
		t.Errorf("came as attempt %d, redelivered %v", again[0].Attempt, again[0].Redelivered)
	}
	b.settle(first, broker.Ack, kept)
	// The late retry of one that is over does not take it from its new holder:
	// what comes next is the new message.
	if err := first.Settle(b.ctx, settlements(broker.Retry, dropped)); err != nil && !errors.Is(err, broker.ErrLost) {
		t.Errorf("late retry: %v", err)
	}
	want := b.publish(1)
	next := b.receive(first, 1)
	b.same(bodies(next), want)
	b.settle(first, broker.Ack, next...)
	b.settle(second, broker.Ack, again...)
	b.close(second)
	b.drained()
}

// keyed publishes n messages in turn to each of keys, and returns the bodies
// of each key in order.
func (b *bench) keyed(n int, keys ...string) map[string][]string {
	b.t.Helper()
	want := map[string][]string{}
	for i := range n {
		for _, key := range keys {
			m := b.message()
			m.OrderingKey, m.Body = []byte(key), fmt.Appendf(nil, "%s/%d", key, i)
			b.send(m)
			want[key] = append(want[key], string(m.Body))
		}
	}
	return want
}

func laneOrder(t *testing.T, h Harness) {
	b := open(t, h, Options{Lanes: true})
	want := b.keyed(20, "a", "b", "c")
	s := b.source()
	got := map[string][]string{}
	for done, turn := 0, 0; done < 60; turn++ {
		d, err := s.Receive(b.ctx, 8)
		if err != nil {
			t.Fatalf("receive after %d: %v", done, err)
		}
		stopped := map[string]bool{} // lanes in which a message was returned
		var settle []broker.Settlement
		for i, x := range d {
			if x.Lane == "" {
				t.Fatal("a source with lanes handed over a delivery without one")
			}
			action := broker.Ack
			if stopped[x.Lane] || (turn+i)%5 == 3 {
				stopped[x.Lane], action = true, broker.Retry
			} else {
				key, _, _ := strings.Cut(string(x.Message.Body), "/")
				got[key] = append(got[key], string(x.Message.Body))
				done++
			}
			settle = append(settle, broker.Settlement{Delivery: x, Action: action})
		}
		if err := s.Settle(b.ctx, settle); err != nil {
			t.Fatalf("settle: %v", err)
		}
	}
	for key := range want {
		b.same(got[key], want[key])
	}
}

func lanePinned(t *testing.T, h Harness) {
	b := open(t, h, Options{Lanes: true})
	first, second := b.source(), b.source()
	for _, s := range []broker.Source{first, second} {
		if p, ok := broker.As[broker.PinsLanes](s); !ok || !p.PinsLanes() {
			t.Fatal("declared, but PinsLanes denies it")
		}
	}
	want := b.keyed(2, "a")["a"]
	held := b.receive(first, 1)
	b.same(bodies(held), want[:1])
	short, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	if d, err := second.Receive(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while the lane's first was in another hand: received %q, %v", bodies(d), err)
	}
	b.settle(first, broker.Ack, held...)
	b.close(first)
	b.same(bodies(b.receive(second, 1)), want[1:])
}

// cut cuts the connection under deliveries in hand. Whether an acknowledgement
// of one of them counts afterwards is the broker's affair: if it does not, the
// message comes again. It must not count for another message.
func cut(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	if b.Cut == nil {
		return
	}
	all := b.publish(10)
	s := b.source()
	held := b.receive(s, 4)
	b.Cut()
	late := s.Settle(b.ctx, settlements(broker.Ack, held[0]))
	all = append(all, b.publish(1)...)
	seen := map[string]bool{}
	take := func(s broker.Source) {
		d := b.receive(s, 1)
		b.settle(s, broker.Ack, d...)
		body := string(d[0].Message.Body)
		if late == nil && body == string(held[0].Message.Body) {
			t.Errorf("%q came again although its acknowledgement was confirmed", body)
		}
		seen[body] = true
	}
	missing := func(except []string) bool {
		return slices.ContainsFunc(all, func(x string) bool { return !seen[x] && !slices.Contains(except, x) })
	}
	for missing(bodies(held)) { // the same source goes on
		take(s)
	}
	b.close(s) // gives back what it held, if the cut did not
	second := b.source()
	done := bodies(held[:1])
	if late != nil {
		done = nil
	}
	for missing(done) {
		take(second)
	}
	if h.Features.Positions {
		last := b.publish(1)
		all = append(all, last...)
		for missing(done) { // what was done beyond what was held comes again
			take(second)
		}
	}
	b.close(second)
	b.drained()
}
