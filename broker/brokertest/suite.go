package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// Run runs the suite. Its tests run in parallel.
func Run(t *testing.T, h Harness) {
	if h.Features.MaxBody == 0 {
		h.Features.MaxBody = 512 << 10
	}
	f := h.Features
	for _, test := range []struct {
		name string
		when bool
		run  func(*testing.T, Harness)
	}{
		{"a message arrives as it was published", true, arrives},
		{"null and empty bodies", true, nullAndEmpty},
		{"a large body arrives whole", true, largeBody},
		{"many messages published in one call all arrive", !f.OneByOne, many},
		{"publishing to a topic on which nothing listens is an error", true, nowhere},
		{"Receive waits for a message that is published later", !f.OneByOne, waits},
		{"Receive does not wait for max messages and never returns more", !f.OneByOne, natural},
		{"Receive ends with its context, and swallows nothing", !f.OneByOne, contextEnds},
		{"an unsettled message comes again after Close", !f.OneByOne, closeGivesBack},
		{"an acknowledged message never comes again", !f.OneByOne, ackIsFinal},
		{"many deliveries settle in one call", !f.OneByOne, settleMany},
		{"a returned message comes again", !f.OneByOne, retry},
		{"messages come one by one, return when they are to, and are not swallowed", f.OneByOne, oneByOne},
		{"sources compete and nothing is left over", true, compete},
		{"Close may be called twice and ends the source", true, closeTwice},
		{"Close ends a Receive that waits", true, closeEndsReceive},
		{"a delayed retry comes after its delay and holds up nothing", f.DelayedRetry, delayed},
		{"a delivery kept alive stays, one that is not goes to another source", f.Expires, expires},
		{"a lane keeps its order, also when a message comes back", f.Lanes, laneOrder},
		{"a lane stands in one source's hand at a time", f.Lanes, lanePinned},
		{"a cut connection settles nothing and Receive goes on", true, cut},
		{"what a dead process had in hand comes again", true, killed},
		{"a Consumer acknowledges after the commit", true, inBatches(ackAfterCommit)},
		{"a Consumer writes a dead letter before it acknowledges", true, inBatches(letterBeforeAck)},
		{"a Consumer that stops finishes what is in work and gives the rest back", true, inBatches(drainOnStop)},
		{"a Consumer goes on after its connection was cut", true, inBatches(reconnects)},
		{"null, empty and binary bodies come to the handler as they are", true, inBatches(bodiesArrive)},
		{"a Consumer keeps the order of a lane", f.Lanes, inBatches(orderInALane)},
	} {
		if test.when {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(t, h)
			})
		}
	}
}

// inBatches runs a test of a Consumer one message at a time, in batches that
// messages seldom fill, and in those of the default size.
func inBatches(run func(*testing.T, Harness, sekali.Batch)) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		for _, size := range []int{1, 7, 100} {
			t.Run(fmt.Sprintf("batches of %d", size), func(t *testing.T) {
				t.Parallel()
				run(t, h, sekali.Batch{Size: size})
			})
		}
	}
}

func arrives(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	m := b.message()
	m.OrderingKey = []byte("order-42")
	m.Headers = broker.Headers{
		{Name: "Trace", Value: []byte("one")},
		{Name: "trace", Value: []byte("another: case counts")},
		{Name: "Trace", Value: []byte("two")},
		{Name: "empty", Value: []byte{}},
		{Name: "utf8", Value: []byte("kopi ☕")},
		{Name: "Status", Value: []byte("503")},
	}
	if h.Features.BinaryHeaders {
		m.Headers = append(m.Headers, broker.Header{Name: "bin", Value: []byte("\x00\xff\r\n \t")})
	}
	if h.Features.UniqueHeaders {
		if err := b.Publisher.Publish(b.ctx, m); err == nil {
			t.Error("a message with a header that repeats was published")
		}
		m.Headers = slices.Delete(m.Headers, 2, 3) // the second Trace
	}
	before := time.Now()
	want := m.Clone()
	b.send(m)
	got := b.receive(b.source(), 1)[0].Message
	if got.Topic != b.Topic || !bytes.Equal(got.Body, want.Body) {
		t.Errorf("got topic %q and body %q, want %q and %q", got.Topic, got.Body, b.Topic, want.Body)
	}
	if h.Features.MessageID && got.ID != want.ID {
		t.Errorf("got id %q, want %q", got.ID, want.ID)
	}
	if h.Features.OrderingKey && !bytes.Equal(got.OrderingKey, want.OrderingKey) {
		t.Errorf("got ordering key %q, want %q", got.OrderingKey, want.OrderingKey)
	}
	if age := got.PublishedAt.Sub(before); !got.PublishedAt.IsZero() && age.Abs() > time.Minute {
		t.Errorf("published at %v, want about %v", got.PublishedAt, before)
	}
	compareHeaders(t, h, got.Headers, want.Headers)
}

// compareHeaders wants each name's values in order, and the names' own order
// where the broker keeps it. Headers that the broker adds do not count.
func compareHeaders(t *testing.T, h Harness, got, want broker.Headers) {
	t.Helper()
	values := func(hs broker.Headers, name string) (v []string) {
		for _, x := range hs {
			if x.Name == name {
				v = append(v, string(x.Value))
			}
		}
		return v
	}
	for _, x := range want {
		if g, w := values(got, x.Name), values(want, x.Name); !slices.Equal(g, w) {
			t.Errorf("header %q: got %q, want %q", x.Name, g, w)
		}
	}
	if !h.Features.HeaderOrder {
		return
	}
	own := slices.DeleteFunc(slices.Clone(got), func(x broker.Header) bool { return len(values(want, x.Name)) == 0 })
	for i := range min(len(own), len(want)) {
		if own[i].Name != want[i].Name {
			t.Errorf("header %d is %q, want %q", i, own[i].Name, want[i].Name)
		}
	}
}

func nullAndEmpty(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	s := b.source()
	for _, body := range [][]byte{nil, {}} {
		m := b.message()
		m.Body = body
		// A broker's own messages have no body and this header.
		m.Headers = broker.Headers{{Name: "Status", Value: []byte("503")}}
		b.send(m)
		d := b.receive(s, 1)
		got := d[0].Message.Body
		if len(got) != 0 {
			t.Errorf("got body %q, want none", got)
		}
		if null := h.Features.NullBody && body == nil; (got == nil) != null {
			t.Errorf("sent a body that is nil: %v, got one that is nil: %v", body == nil, got == nil)
		}
		b.settle(s, broker.Ack, d...)
	}
}

func largeBody(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	m := b.message()
	m.Body = make([]byte, h.Features.MaxBody)
	for i := range m.Body {
		m.Body[i] = byte(i * i >> 3)
	}
	want := bytes.Clone(m.Body)
	b.send(m)
	if got := b.receive(b.source(), 1)[0].Message.Body; !bytes.Equal(got, want) {
		t.Errorf("a body of %d bytes came as another of %d", len(want), len(got))
	}
}

func many(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	want := b.publish(700)
	s := b.source()
	b.sameSet(bodies(b.receive(s, 700)), want)
}

func nowhere(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	if b.Nowhere == "" {
		return
	}
	good, lost, good2 := b.message(), b.message(), b.message()
	lost.Topic = b.Nowhere
	err := b.Publisher.Publish(b.ctx, good, lost, good2)
	var failed *broker.PublishError
	if !errors.As(err, &failed) || len(failed.Errs) != 3 {
		t.Fatalf("got %v, want a PublishError of 3", err)
	}
	for i, bad := range []bool{false, true, false} {
		if (failed.Errs[i] != nil) != bad {
			t.Errorf("message %d: got %v, want an error: %v", i, failed.Errs[i], bad)
		}
	}
	if !errors.Is(failed.Errs[1], broker.ErrRefused) {
		t.Errorf("%v is not told as the broker's refusal", failed.Errs[1])
	}
	b.sameSet(bodies(b.receive(b.source(), 2)), []string{string(good.Body), string(good2.Body)})
}

func waits(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	s := b.source()
	got := make(chan []string, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		d, err := s.Receive(b.ctx, 10)
		if err != nil {
			t.Errorf("receive: %v", err)
		}
		got <- bodies(d)
	})
	// The second message proves that the source still waits for others after
	// it took the first.
	want := b.publish(1)
	b.same(<-got, want)
	want = b.publish(1)
	b.same(bodies(b.receive(s, 1)), want)
}

func natural(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	want := b.publish(5)
	s := b.source()
	var got []string
	for len(got) < 5 {
		begun := time.Now()
		d, err := s.Receive(b.ctx, 1000)
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		if took := time.Since(begun); took > Patience/4 {
			t.Errorf("Receive(1000) took %v although messages were there", took)
		}
		got = append(got, bodies(d)...)
	}
	b.sameSet(got, want)
	b.publish(5)
	for n := 0; n < 5; {
		d, err := s.Receive(b.ctx, 2)
		if err != nil || len(d) < 1 || len(d) > 2 {
			t.Fatalf("Receive(2) returned %d deliveries and %v", len(d), err)
		}
		n += len(d)
	}
}

// contextEnds calls Receive again and again with a context that ends while
// messages arrive. AckWait is longer than Patience: what a Receive that ended
// took with it would not come in time.
func contextEnds(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	s := b.source()
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	if _, err := s.Receive(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive with a context that had ended returned %v", err)
	}
	const n = 200
	var want, got []string
	published := make(chan struct{})
	go func() {
		defer close(published)
		for range n {
			m := b.message()
			want = append(want, string(m.Body))
			if err := b.Publisher.Publish(b.ctx, m); err != nil {
				t.Errorf("publish: %v", err)
			}
		}
	}()
	defer func() { <-published }()
	for i := 0; !isClosed(published); i++ {
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(i%16)*50*time.Microsecond)
		d, err := s.Receive(ctx, 3)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("receive: %v", err)
		}
		got = append(got, bodies(d)...)
	}
	if len(got) < n {
		got = append(got, bodies(b.receive(s, n-len(got)))...)
	}
	b.sameSet(got, want)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func closeGivesBack(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	want := b.publish(5)
	first := b.source()
	held := b.receive(first, 3)
	b.settle(first, broker.Ack, held[0])
	b.close(first)
	want = slices.DeleteFunc(want, func(s string) bool { return s == string(held[0].Message.Body) })
	second := b.source()
	got := b.receive(second, 4)
	b.sameSet(bodies(got), want)
	b.settle(second, broker.Ack, got...)
	b.close(second)
	b.drained()
}

func ackIsFinal(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	b.publish(3)
	s := b.source()
	b.settle(s, broker.Ack, b.receive(s, 3)...)
	want := b.publish(1)
	d := b.receive(s, 1)
	b.same(bodies(d), want)
	b.settle(s, broker.Ack, d...)
	b.close(s)
	b.drained()
}

func settleMany(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	b.publish(200)
	s := b.source()
	got := b.receive(s, 200)
	b.settle(s, broker.Ack, got...)
	if err := s.Settle(b.ctx, nil); err != nil {
		t.Errorf("settling nothing: %v", err)
	}
	b.close(s)
	b.drained()
}

func retry(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	b.publish(3)
	s := b.source()
	d := b.receive(s, 3)
	for _, x := range d {
		if h.Features.Attempts && x.Attempt != 1 || x.Redelivered {
			t.Errorf("%q arrived first as attempt %d, redelivered %v", x.Message.Body, x.Attempt, x.Redelivered)
		}
	}
	mixed := settlements(broker.Ack, d...)
	mixed[1].Action = broker.Retry
	if err := s.Settle(b.ctx, mixed); err != nil {
		t.Fatalf("settle: %v", err)
	}
	again := b.receive(s, 1)
	b.same(bodies(again), bodies(d[1:2]))
	if h.Features.Attempts && again[0].Attempt != 2 || h.Features.Redelivered && !again[0].Redelivered {
		t.Errorf("came again as attempt %d, redelivered %v", again[0].Attempt, again[0].Redelivered)
	}
	if again[0].Message.ID != d[1].Message.ID {
		t.Errorf("came again as %q, was %q", again[0].Message.ID, d[1].Message.ID)
	}
	b.settle(s, broker.Ack, again...)
	b.close(s)
	b.drained()
}

func compete(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	const n = 300
	var (
		mu  sync.Mutex
		got []string
		wg  sync.WaitGroup
	)
	ctx, done := context.WithCancel(b.ctx)
	var sources []broker.Source
	for range 3 {
		s := b.source()
		sources = append(sources, s)
		wg.Go(func() {
			for ctx.Err() == nil {
				d, err := s.Receive(ctx, 7)
				if err != nil {
					continue
				}
				if err := s.Settle(b.ctx, settlements(broker.Ack, d...)); err != nil {
					t.Errorf("settle: %v", err)
				}
				mu.Lock()
				got = append(got, bodies(d)...)
				if len(got) >= n {
					done()
				}
				mu.Unlock()
			}
		})
	}
	want := b.publish(n)
	wg.Wait()
	done()
	b.sameSet(got, want)
	for _, s := range sources { // where lanes are pinned, they would keep theirs
		b.close(s)
	}
	b.drained()
}
