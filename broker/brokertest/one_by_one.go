package brokertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
)

// oneByOne is for sources that hand over a message only when the one before it
// is settled: what other tests do with several in hand.
func oneByOne(t *testing.T, h Harness) {
	b := open(t, h, Options{})
	const n = 30
	want := b.publish(n)
	s := b.source()
	var got []string
	for len(got) < n/2 {
		d := b.hurried(s)
		body := string(d.Message.Body)
		if len(got)%3 == 0 { // it comes again, before or after others
			b.settle(s, broker.Retry, d)
			d = b.hurried(s)
			body = string(d.Message.Body)
		}
		got = append(got, body)
		b.settle(s, broker.Ack, d)
	}
	inHand := b.hurried(s)
	b.close(s)
	rest := b.source()
	for len(got) < n {
		d := b.hurried(rest)
		got = append(got, string(d.Message.Body))
		b.settle(rest, broker.Ack, d)
	}
	if !slices.Contains(got[n/2:], string(inHand.Message.Body)) {
		t.Errorf("what was in hand at Close did not come again")
	}
	b.sameSet(got, want)
	later := b.publish(1)
	d := b.hurried(rest)
	if string(d.Message.Body) != later[0] {
		t.Errorf("%q came, want %q: an acknowledged message came again", d.Message.Body, later[0])
	}
	b.settle(rest, broker.Ack, d)
}

// hurried receives one delivery with contexts that end all the time.
func (b *bench) hurried(s broker.Source) *broker.Delivery {
	b.t.Helper()
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(i%16)*500*time.Microsecond)
		d, err := s.Receive(ctx, 3)
		cancel()
		switch {
		case len(d) == 1 && err == nil:
			return d[0]
		case len(d) > 1:
			b.t.Fatalf("%d messages came at once", len(d))
		case b.ctx.Err() != nil || errors.Is(err, broker.ErrClosed):
			b.t.Fatalf("receive: %v", err)
		}
	}
}
