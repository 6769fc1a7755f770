package membroker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

// Source is one source of a consumer. Its methods are safe for concurrent use.
type Source struct {
	consumer *consumer
	closing  sync.Once
	done     chan struct{}
}

var (
	_ broker.Source       = (*Source)(nil)
	_ broker.KeepAliver   = (*Source)(nil)
	_ broker.DelayedRetry = (*Source)(nil)
	_ broker.PinsLanes    = (*Source)(nil)
)

// Receive waits for messages and returns what is there, max at most.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("receive from the memory broker: max is %d: ask for at least 1", max)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("receive from the memory broker: %w", err)
		}
		if s.closed() {
			return nil, fmt.Errorf("receive from the memory broker: %w", broker.ErrClosed)
		}
		got, changed := s.consumer.take(s, max)
		if len(got) > 0 {
			return got, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-s.done:
		}
	}
}

// Settle ends deliveries. Its error wraps broker.ErrLost if some to acknowledge
// were not this source's any more; the others are settled.
func (s *Source) Settle(_ context.Context, settlements []broker.Settlement) error {
	if s.closed() {
		return fmt.Errorf("settle with the memory broker: %w", broker.ErrClosed)
	}
	c, lost := s.consumer, 0
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.tell()
	for _, x := range settlements {
		it, ok := s.mine(x.Delivery)
		switch {
		case !ok:
			if x.Action == broker.Ack {
				lost++ // a retry that is not ours any more comes again as asked
			}
		case x.Action == broker.Ack:
			c.leave(it)
			c.turnTo(it, done, 0)
			c.pending--
		default:
			c.giveBack(it, x.Delay)
		}
	}
	if lost > 0 {
		return fmt.Errorf("settle with the memory broker: %d of %d: %w", lost, len(settlements), broker.ErrLost)
	}
	return nil
}

// mine returns the item of a delivery that is still in this source's hand.
func (s *Source) mine(d *broker.Delivery) (*item, bool) {
	t, ok := d.Handle.(*ticket)
	if !ok || t.item.turn != t.turn || t.item.state != out || t.item.holder != s {
		return nil, false
	}
	// The timer may be late: what is over is over.
	return t.item, time.Now().Before(t.item.until)
}

// KeepAliveEvery is a third of AckWait.
func (s *Source) KeepAliveEvery() time.Duration { return s.consumer.ackWait / 3 }

// KeepAlive gives AckWait again to deliveries that are still this source's.
// Its error wraps broker.ErrLost if some are not.
func (s *Source) KeepAlive(_ context.Context, deliveries []*broker.Delivery) error {
	c, lost := s.consumer, 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range deliveries {
		it, ok := s.mine(d)
		if !ok {
			lost++
			continue
		}
		d.Extend(c.ackWait)
		it.until = time.Now().Add(c.ackWait) // its due entry finds that out
	}
	if lost > 0 {
		return fmt.Errorf("keep alive with the memory broker: %d of %d: %w", lost, len(deliveries), broker.ErrLost)
	}
	return nil
}

// MaxDelay is a day; 0, which is none, where there are lanes.
func (s *Source) MaxDelay() time.Duration {
	if s.consumer.pins {
		return 0
	}
	return 24 * time.Hour
}

// PinsLanes tells whether there are lanes.
func (s *Source) PinsLanes() bool { return s.consumer.pins }

// Close gives back what is in this source's hand. It may be called twice.
func (s *Source) Close(context.Context) error {
	s.closing.Do(func() {
		close(s.done)
		c := s.consumer
		c.mu.Lock()
		defer c.mu.Unlock()
		var held []*item
		for _, e := range c.due {
			if !e.void() && e.item.holder == s {
				held = append(held, e.item)
			}
		}
		slices.SortFunc(held, func(a, b *item) int { return a.seq - b.seq })
		for _, it := range held {
			if it.holder == s { // a lane gives all back at once
				c.giveBack(it, 0)
			}
		}
		c.schedule()
		c.tell()
	})
	return nil
}

func (s *Source) closed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}
