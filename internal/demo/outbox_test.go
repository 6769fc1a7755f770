package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/outbox"
)

// publish has a shop of its own take the orders of a plan, and relays them to a
// feed.
func publish(t *testing.T, f feed, p plan) error {
	t.Helper()
	_, topic := f.address()
	s, err := openShop(t.Context(), "", "run", t.TempDir())
	if err != nil {
		return err
	}
	defer s.close(context.Background(), false)
	if err := s.takeOrders(t.Context(), p, topic); err != nil {
		return err
	}
	relay, ended := s.relay(f, p), make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { ended <- relay.run(ctx) }()
	for {
		stats, err := relay.rows.Stats(t.Context())
		if err == nil && stats.Pending > 0 && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		cancel()
		if err == nil && stats.Pending > 0 {
			err = fmt.Errorf("%d events are not published: %s", stats.Pending, relay.trouble())
		}
		if e := <-ended; err == nil {
			err = e
		}
		return err
	}
}

// list is a feed that keeps what is published.
type list struct {
	feed
	got []broker.Message
}

func (l *list) address() (url, topic string)         { return "", "orders" }
func (l *list) publisher() (broker.Publisher, error) { return l, nil }
func (l *list) Close(context.Context) error          { return nil }
func (l *list) Publish(_ context.Context, messages ...broker.Message) error {
	for _, m := range messages {
		l.got = append(l.got, m.Clone())
	}
	return nil
}

func TestOrdersAreRelayedOnceOrTwiceAsPlanned(t *testing.T) {
	p := newPlan(Config{Orders: 1200, Duplicates: 0.2, Seed: 3})
	again, l := maps.Clone(p.again), &list{}
	if err := publish(t, l, p); err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, m := range l.got {
		id, _ := m.Headers.Get(outbox.IDHeader)
		times[string(id)]++
		if m.ID != "" {
			t.Fatalf("%q bears a broker's id, %q", id, m.ID)
		}
	}
	if len(l.got) != p.copies() || len(times) != 1200 || !maps.Equal(p.again, again) {
		t.Errorf("%d messages of %d orders, want %d", len(l.got), len(times), p.copies())
	}
	for id, n := range times {
		if (n == 2) != p.again[id] || n > 2 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	if !slices.ContainsFunc(l.got, func(m broker.Message) bool { return string(m.OrderingKey) == skus[0] }) {
		t.Error("the sku is no ordering key")
	}
}
