package membroker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/membroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSuite(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, brokertest.Harness{
		Open: func(_ *testing.T, o brokertest.Options) brokertest.Queue {
			opts := membroker.Options{AckWait: o.AckWait, Topics: []string{"orders"}}
			if o.Lanes {
				opts.Lanes = 3
			}
			b := membroker.New(opts)
			return brokertest.Queue{
				Topic: "orders", Publisher: b, Nowhere: "nowhere",
				Source: func(*testing.T) broker.Source { return b.NewSource("stock") },
				Kill:   func(broker.Source) {}, // nobody keeps its deliveries alive
			}
		},
		Features: brokertest.Features{
			Attempts: true, Redelivered: true, MessageID: true, OrderingKey: true, NullBody: true,
			BinaryHeaders: true, HeaderOrder: true, Expires: true, Lanes: true, DelayedRetry: true,
		},
	})
}

func receive(t *testing.T, s *membroker.Source, n int) []*broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var got []*broker.Delivery
	for len(got) < n {
		d, err := s.Receive(ctx, n-len(got))
		if err != nil {
			t.Fatalf("received %d of %d: %v", len(got), n, err)
		}
		got = append(got, d...)
	}
	return got
}

func settle(t *testing.T, s *membroker.Source, a broker.Action, d ...*broker.Delivery) error {
	t.Helper()
	var all []broker.Settlement
	for _, x := range d {
		all = append(all, broker.Settlement{Delivery: x, Action: a})
	}
	return s.Settle(t.Context(), all)
}

func TestMessagesShareNoMemoryWithWhoPublishedAndWhoReceivedThem(t *testing.T) {
	b := membroker.New(membroker.Options{})
	m := broker.Message{Body: []byte("body"), Headers: broker.Headers{{Name: "h", Value: []byte("value")}}}
	if err := b.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Body[0], m.Headers[0].Value[0] = 'X', 'X'
	for range 2 {
		s := b.NewSource("stock")
		d := receive(t, s, 1)[0]
		if got := string(d.Message.Body) + " " + string(d.Message.Headers[0].Value); got != "body value" {
			t.Errorf("received %q", got)
		}
		d.Message.Body[0], d.Message.Headers[0].Value[0] = 'Y', 'Y'
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryConsumerGetsAllMessagesAlsoThoseBeforeIt(t *testing.T) {
	b := membroker.New(membroker.Options{})
	publish(t, b, "1", "2")
	stock := b.NewSource("stock")
	if err := settle(t, stock, broker.Ack, receive(t, stock, 2)...); err != nil {
		t.Fatal(err)
	}
	courier := b.NewSource("courier")
	if got := receive(t, courier, 2); string(got[0].Message.Body) != "1" || got[0].Message.ID == got[1].Message.ID {
		t.Errorf("received %q under %q and %q", got[0].Message.Body, got[0].Message.ID, got[1].Message.ID)
	}
	if s, c := b.Len("stock"), b.Len("courier"); s != 0 || c != 2 {
		t.Errorf("left: stock %d, courier %d; want 0 and 2", s, c)
	}
}

func publish(t *testing.T, b *membroker.Broker, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		if err := b.Publish(t.Context(), broker.Message{Body: []byte(body), OrderingKey: []byte("k")}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALostDeliverySettlesNothing(t *testing.T) {
	b := membroker.New(membroker.Options{Lanes: 1})
	publish(t, b, "1", "2", "3")
	s := b.NewSource("stock")
	d := receive(t, s, 3)
	// 1 comes back, so 2 and 3 do; 3 was acknowledged before and does not.
	if err := settle(t, s, broker.Ack, d[2]); err != nil {
		t.Fatal(err)
	}
	if err := settle(t, s, broker.Retry, d[0]); err != nil {
		t.Fatal(err)
	}
	if err := settle(t, s, broker.Ack, d[1]); !errors.Is(err, broker.ErrLost) {
		t.Errorf("acknowledging a delivery that went back returned %v", err)
	}
	if err := settle(t, s, broker.Retry, d[1]); err != nil {
		t.Errorf("retrying what has come back already: %v", err)
	}
	if b.Len("stock") != 2 {
		t.Fatalf("%d left, want 2", b.Len("stock"))
	}
	again := receive(t, s, 2)
	if got := string(again[0].Message.Body) + string(again[1].Message.Body); got != "12" {
		t.Errorf("came again: %q, want 12", got)
	}
	if err := s.KeepAlive(t.Context(), []*broker.Delivery{d[0], again[0]}); !errors.Is(err, broker.ErrLost) {
		t.Errorf("keeping a lost delivery alive returned %v", err)
	}
	if err := settle(t, s, broker.Ack, again...); err != nil {
		t.Fatal(err)
	}
}

func TestWaitEmptyWaitsForTheLastAcknowledgement(t *testing.T) {
	b := membroker.New(membroker.Options{})
	publish(t, b, "1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.WaitEmpty(ended, "stock"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 not acknowledged") {
		t.Errorf("WaitEmpty returned %v", err)
	}
	s := b.NewSource("stock")
	d := receive(t, s, 1)
	waited := make(chan error, 1)
	go func() { waited <- b.WaitEmpty(t.Context(), "stock") }()
	if err := settle(t, s, broker.Ack, d...); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

func TestNothingIsPublishedAfterClose(t *testing.T) {
	b := membroker.New(membroker.Options{})
	if err := errors.Join(b.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(t.Context(), broker.Message{}); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Publish returned %v", err)
	}
}

func BenchmarkReceiveAndSettle100(b *testing.B) {
	mem := membroker.New(membroker.Options{})
	for range b.N {
		if err := mem.Publish(b.Context(), broker.Message{ID: "x", Body: make([]byte, 100), PublishedAt: time.Unix(1, 0)}); err != nil {
			b.Fatal(err)
		}
	}
	s := mem.NewSource("stock")
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		d, err := s.Receive(b.Context(), 100)
		if err != nil {
			b.Fatal(err)
		}
		n += len(d)
		var all []broker.Settlement
		for _, x := range d {
			all = append(all, broker.Settlement{Delivery: x})
		}
		if err := s.Settle(b.Context(), all); err != nil {
			b.Fatal(err)
		}
	}
}
