//go:build !fast

package rabbitbroker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/rabbittest"
)

// bench is a queue with helpers that fail the test.
type bench struct {
	*testing.T
	ctx       context.Context
	conn      *amqp.Connection
	queue     string
	publisher *rabbitbroker.Publisher
}

func newBench(t *testing.T, kind rabbitbroker.Kind, arguments amqp.Table) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*brokertest.Patience)
	t.Cleanup(cancel)
	conn := rabbittest.Connect(t)
	return &bench{t, ctx, conn, rabbittest.Queue(t, conn, string(kind), arguments), newPublisher(t)}
}

// source returns a source whose connections w can cut.
func (b *bench) source(w *rabbittest.Wires, edit ...func(*rabbitbroker.SourceConfig)) *rabbitbroker.Source {
	b.Helper()
	cfg := rabbitbroker.SourceConfig{Queue: b.queue}
	if w != nil {
		cfg.Client = w.Client()
	}
	for _, e := range edit {
		e(&cfg)
	}
	return newSource(b.T, cfg)
}

// publish publishes from, from+1 … to-1.
func (b *bench) publish(from, to int) {
	b.Helper()
	var m []broker.Message
	for i := from; i < to; i++ {
		m = append(m, broker.Message{ID: fmt.Sprint("id-", i), Topic: b.queue, Body: fmt.Append(nil, i)})
	}
	if err := b.publisher.Publish(b.ctx, m...); err != nil {
		b.Fatalf("publish: %v", err)
	}
}

// receive waits for n deliveries, going on after errors that pass.
func (b *bench) receive(s broker.Source, n int) []*broker.Delivery {
	b.Helper()
	var got []*broker.Delivery
	for len(got) < n {
		d, err := s.Receive(b.ctx, n-len(got))
		if err != nil && (b.ctx.Err() != nil || errors.Is(err, broker.ErrClosed)) {
			b.Fatalf("received %d of %d (%s): %v", len(got), n, text(got), err)
		}
		got = append(got, d...)
	}
	return got
}

// nothing fails the test if s hands anything over soon.
func (b *bench) nothing(s broker.Source) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	if d, err := s.Receive(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
		b.Fatalf("received %s and %v, want nothing", text(d), err)
	}
}

// trouble waits for an error that passes.
func (b *bench) trouble(s broker.Source) error {
	b.Helper()
	d, err := s.Receive(b.ctx, 1)
	if err == nil || b.ctx.Err() != nil || errors.Is(err, broker.ErrClosed) {
		b.Fatalf("received %s and %v, want an error that passes", text(d), err)
	}
	return err
}

func (b *bench) settle(s broker.Source, a broker.Action, d ...*broker.Delivery) {
	b.Helper()
	if err := settle(b.ctx, s, a, 0, d...); err != nil {
		b.Fatalf("settle: %v", err)
	}
}

func (b *bench) close(s broker.Source) {
	b.Helper()
	if err := s.Close(b.ctx); err != nil {
		b.Fatalf("close: %v", err)
	}
}

// left returns what a further source gets before what is published now.
func (b *bench) left() string {
	b.Helper()
	s := b.source(nil)
	defer b.close(s)
	b.publish(9999, 10000)
	var got []string
	for {
		d := b.receive(s, 1)
		b.settle(s, broker.Ack, d...)
		if body := string(d[0].Message.Body); body != "9999" {
			got = append(got, body)
			continue
		}
		slices.Sort(got)
		return strings.Join(got, " ")
	}
}

func settle(ctx context.Context, s broker.Source, a broker.Action, delay time.Duration, d ...*broker.Delivery) error {
	var x []broker.Settlement
	for _, one := range d {
		x = append(x, broker.Settlement{Delivery: one, Action: a, Delay: delay})
	}
	return s.Settle(ctx, x)
}

func text(d []*broker.Delivery) string {
	bodies := make([]string, len(d))
	for i := range d {
		bodies[i] = string(d[i].Message.Body)
	}
	return strings.Join(bodies, " ")
}

func onBoth(t *testing.T, test func(t *testing.T, kind rabbitbroker.Kind)) {
	t.Parallel()
	for _, kind := range []rabbitbroker.Kind{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func TestAStaleAcknowledgementSettlesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b, w := newBench(t, kind, nil), &rabbittest.Wires{}
		b.publish(0, 3)
		s := b.source(w)
		old := b.receive(s, 3)
		w.Cut()
		now := b.receive(s, 3) // with the same tags, on another channel
		for _, d := range old {
			if !d.Expired() {
				t.Errorf("%s may still be begun", d.Message.Body)
			}
		}
		if err := settle(b.ctx, s, broker.Ack, 0, old...); !errors.Is(err, broker.ErrLost) {
			t.Errorf("the stale acknowledgement returned %v", err)
		}
		if err := settle(b.ctx, s, broker.Retry, 0, old...); err != nil {
			t.Errorf("what is back anyway was given back with %v", err)
		}
		b.nothing(s)
		// One is ours among stale ones: it is settled.
		if err := settle(b.ctx, s, broker.Ack, 0, old[0], now[0], old[1]); !errors.Is(err, broker.ErrLost) {
			t.Errorf("settling a mixture returned %v", err)
		}
		want := text(now[1:])
		b.close(s)
		if got := b.left(); got != want {
			t.Errorf("what is left is %q, want %q", got, want)
		}
	})
}

func TestOutOfOrderSettlementsAcknowledgeExactlyWhatWasSettled(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		const n = 120
		b.publish(0, n)
		s := b.source(nil)
		held := b.receive(s, n)
		rand.Shuffle(n, func(i, j int) { held[i], held[j] = held[j], held[i] })
		var want []string
		for len(held) > n/4 {
			some := rand.N(10) + 1
			b.settle(s, broker.Ack, held[:some]...)
			held = held[some:]
		}
		b.settle(s, broker.Ack, held[0], held[0]) // twice over
		b.settle(s, broker.Ack, held[0])
		held = held[1:]
		for _, d := range held {
			want = append(want, string(d.Message.Body))
		}
		b.close(s)
		left := strings.Fields(b.left())
		for _, body := range want {
			if !slices.Contains(left, body) {
				t.Errorf("%s was acknowledged, and nobody had settled it", body)
			}
		}
		// A server that is behind writing keeps what a quorum queue's channel has
		// acknowledged in memory, and forgets it with the channel: it comes again.
		if kind == rabbitbroker.Classic && len(left) != len(want) {
			t.Errorf("what is left is %q, want %q", left, want)
		}
	})
}

func TestMixedSettlementsGiveBackExactlyWhatWasGivenBack(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		b.publish(0, 20)
		s := b.source(nil)
		held := b.receive(s, 20)
		var x []broker.Settlement
		for i, d := range held[:10] {
			x = append(x, broker.Settlement{Delivery: d, Action: broker.Action(i % 2)}) // odd ones go back
		}
		if err := s.Settle(b.ctx, x); err != nil {
			t.Fatal(err)
		}
		again := b.receive(s, 5)
		if got := text(again); got != "1 3 5 7 9" {
			t.Errorf("given back were %s", got)
		}
		b.settle(s, broker.Ack, append(again, held[10:]...)...)
		b.close(s)
		if got := b.left(); got != "" {
			t.Errorf("what is left is %q", got)
		}
	})
}

func TestWhatWasSettledIsWithTheServerWhenSettleReturns(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		for i := range 10 {
			w := &rabbittest.Wires{}
			b.publish(i*10, i*10+10)
			s := b.source(w)
			b.settle(s, broker.Ack, b.receive(s, 10)...)
			w.Kill()
		}
		if got := b.left(); got != "" {
			t.Errorf("came again: %q", got)
		}
	})
}

// mute is a connection of which the server stops hearing anything.
type mute struct{ is atomic.Bool }

func (m *mute) dial(network, addr string) (net.Conn, error) {
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	return &voice{c, m}, err
}

type voice struct {
	net.Conn
	m *mute
}

func (v *voice) Write(p []byte) (int, error) {
	if v.m.is.Load() {
		return len(p), nil
	}
	return v.Conn.Write(p)
}

func TestSettleDoesNotReturnBeforeTheServerHasAnswered(t *testing.T) {
	t.Parallel()
	b, m := newBench(t, rabbitbroker.Quorum, nil), &mute{}
	b.publish(0, 3)
	s := b.source(nil, func(c *rabbitbroker.SourceConfig) { c.Client.Dial = m.dial })
	held := b.receive(s, 3)
	m.is.Store(true)
	short, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	if err := settle(short, s, broker.Ack, 0, held...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	m.is.Store(false)
	// Nothing stays half settled: the source gave the channel up.
	again := b.receive(s, 3)
	if text(again) != "0 1 2" || !again[0].Redelivered {
		t.Errorf("came again: %s, redelivered %v", text(again), again[0].Redelivered)
	}
}

func TestNoMoreThanPrefetchIsInHand(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	b.publish(0, 10)
	s := b.source(nil, func(c *rabbitbroker.SourceConfig) { c.Prefetch = 4 })
	d := b.receive(s, 4)
	b.nothing(s)
	b.settle(s, broker.Ack, d[3])
	if got := text(b.receive(s, 1)); got != "4" {
		t.Errorf("received %s, want 4", got)
	}
	b.nothing(s)
}

func TestACountAndAFlagTellThatAMessageCameBefore(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		b.publish(0, 1)
		s := b.source(nil)
		for i, want := range []int{1, 2, 3} {
			if i > 0 && kind == rabbitbroker.Classic {
				want = 0 // it counts nothing
			}
			d := b.receive(s, 1)
			if d[0].Attempt != want || d[0].Redelivered != (i > 0) || d[0].Message.ID != "id-0" || d[0].Lane != "" {
				t.Errorf("arrival %d: attempt %d, redelivered %v, id %q, lane %q", i+1, d[0].Attempt, d[0].Redelivered, d[0].Message.ID, d[0].Lane)
			}
			if _, has := d[0].Message.Headers.Get("x-delivery-count"); has {
				t.Error("the server's count is a header")
			}
			b.settle(s, broker.Retry, d...)
		}
	})
}
