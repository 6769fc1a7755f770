// Package brokertest is the suite that every broker passes. A broker joins by
// a Harness that opens a queue and says what the broker can do.
//
// The suite waits for events, with a deadline; only where a broker's time-out
// itself is under test does it wait for that, with a short AckWait.
package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
)

// Harness is how the suite gets at a broker.
type Harness struct {
	// Open makes a queue that no other test uses. What it opens it closes with
	// t.Cleanup.
	Open func(t *testing.T, o Options) Queue
	// Features of the broker. What is not declared is not tested.
	Features Features
}

// Options of a queue.
type Options struct {
	// AckWait is how long a delivery may stay unsettled; 0: the default, which
	// must be longer than Patience.
	AckWait time.Duration
	// Lanes asks for a source with lanes.
	Lanes bool
}

// Queue is a place to publish to, and its one consumer.
type Queue struct {
	// Topic to publish to.
	Topic string
	// Publisher publishes to Topic.
	Publisher broker.Publisher
	// Source opens a further source of the consumer.
	Source func(t *testing.T) broker.Source
	// Cut cuts the connections of all sources, as a failing network does. nil
	// where there are none.
	Cut func()
	// Kill ends a source as the death of its process does: unsaid. nil where
	// that cannot be played.
	Kill func(s broker.Source)
	// Nowhere is a topic on which nothing listens, where publishing to one is
	// an error; empty where it is not.
	Nowhere string
}

// Features are what a broker can do beyond delivering at least once.
type Features struct {
	Attempts      bool // counts deliveries
	Redelivered   bool // says that a message came before
	MessageID     bool // keeps the producer's id
	OrderingKey   bool // keeps the ordering key
	NullBody      bool // tells a null body from an empty one
	BinaryHeaders bool // takes any bytes as the value of a header
	HeaderOrder   bool // keeps the order of headers of different names
	UniqueHeaders bool // takes a name once: a message with a header that repeats is refused
	Expires       bool // takes a delivery back when it is not settled in time
	Lanes         bool // has lanes
	DelayedRetry  bool // delays a retry
	Positions     bool // acknowledges up to a position: what is done behind something that is not may come again
	OneByOne      bool // hands a message over when the one before it is settled
	MaxBody       int  // the longest body to try, in bytes. Defaults to 512 KiB
}

// Patience is how long the suite waits for what must happen.
const Patience = 20 * time.Second

// bench is a test's queue with helpers that fail the test.
type bench struct {
	t *testing.T
	Queue
	h    Harness
	ctx  context.Context
	made int
}

func open(t *testing.T, h Harness, o Options) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return &bench{t: t, Queue: h.Open(t, o), h: h, ctx: ctx}
}

// source opens a source that is closed at the end of the test.
func (b *bench) source() broker.Source {
	b.t.Helper()
	s := b.Source(b.t)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			b.t.Errorf("close the source: %v", err)
		}
	})
	return s
}

// message makes a message of its own body and id.
func (b *bench) message() broker.Message {
	b.made++
	name := fmt.Sprintf("m%04d", b.made)
	return broker.Message{ID: "id-" + name, Topic: b.Topic, Body: []byte(name)}
}

// publish publishes n new messages and returns their bodies.
func (b *bench) publish(n int) []string {
	b.t.Helper()
	messages, bodies := make([]broker.Message, n), make([]string, n)
	for i := range messages {
		messages[i] = b.message()
		bodies[i] = string(messages[i].Body)
	}
	b.send(messages...)
	return bodies
}

func (b *bench) send(m ...broker.Message) {
	b.t.Helper()
	if err := b.Publisher.Publish(b.ctx, m...); err != nil {
		b.t.Fatalf("publish %d messages: %v", len(m), err)
	}
}

// receive waits for exactly n deliveries, going on after errors that pass.
func (b *bench) receive(s broker.Source, n int) []*broker.Delivery {
	b.t.Helper()
	var got []*broker.Delivery
	for len(got) < n {
		more, err := s.Receive(b.ctx, n-len(got))
		if err == nil && len(more) == 0 {
			b.t.Fatal("Receive returned neither deliveries nor an error")
		}
		if err != nil && (b.ctx.Err() != nil || errors.Is(err, broker.ErrClosed)) {
			b.t.Fatalf("received %d of %d (%q): %v", len(got), n, bodies(got), err)
		}
		got = append(got, more...)
		if len(got) > n {
			b.t.Fatalf("asked for %d, got %d", n, len(got))
		}
	}
	return got
}

func (b *bench) settle(s broker.Source, a broker.Action, d ...*broker.Delivery) {
	b.t.Helper()
	if err := s.Settle(b.ctx, settlements(a, d...)); err != nil {
		b.t.Fatalf("settle %d deliveries with %v: %v", len(d), a, err)
	}
}

func (b *bench) close(s broker.Source) {
	b.t.Helper()
	if err := s.Close(b.ctx); err != nil {
		b.t.Fatalf("close the source: %v", err)
	}
}

// drained fails the test if a further source gets anything but a message that
// is published now: all before it must be settled for good.
func (b *bench) drained() {
	b.t.Helper()
	last := b.publish(1)
	s := b.source()
	got := b.receive(s, 1)
	b.same(bodies(got), last)
	b.settle(s, broker.Ack, got...)
}

func (b *bench) same(got, want []string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Fatalf("received %q, want %q", got, want)
	}
}

// sameSet compares without regard to order.
func (b *bench) sameSet(got, want []string) {
	b.t.Helper()
	b.same(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
}

func settlements(a broker.Action, d ...*broker.Delivery) []broker.Settlement {
	s := make([]broker.Settlement, len(d))
	for i := range d {
		s[i] = broker.Settlement{Delivery: d[i], Action: a}
	}
	return s
}

func bodies(d []*broker.Delivery) []string {
	b := make([]string, len(d))
	for i := range d {
		b[i] = string(d[i].Message.Body)
	}
	return b
}
