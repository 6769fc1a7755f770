package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/broker"
)

// Settle acknowledges and gives back, and returns when the server has handled
// it. Its error wraps broker.ErrLost if deliveries to acknowledge were of a
// channel that is gone: they come again. One that was settled before is settled
// no more.
func (s *Source) Settle(ctx context.Context, settlements []broker.Settlement) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	if s.isClosed() {
		return fmt.Errorf("settle with RabbitMQ: %w", broker.ErrClosed)
	}
	if len(settlements) == 0 {
		return nil
	}
	p := s.plan(settlements)
	if err := p.carryOut(ctx); err != nil {
		return fmt.Errorf("settle %d deliveries of the queue %q of RabbitMQ: %w", len(settlements), s.cfg.Queue, err)
	}
	if p.stale > 0 {
		return fmt.Errorf("settle %d deliveries of the queue %q of RabbitMQ: the channel of %d is gone: %w", len(settlements), s.cfg.Queue, p.stale, broker.ErrLost)
	}
	return nil
}

func (s *Source) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// plan is what a Settle is to do.
type plan struct {
	s       *Source
	session *session // nil: nothing is to be done
	acks    []*item
	backs   []*item
	delayed []delayed
	stale   int
}

type delayed struct {
	*item
	by time.Duration
}

func (s *Source) plan(settlements []broker.Settlement) *plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &plan{s: s, session: s.session}
	seen := map[*item]bool{}
	for _, x := range settlements {
		it, ok := x.Delivery.Handle.(*item)
		switch {
		case !ok || it.session != s.session || it.session == nil:
			if x.Action == broker.Ack && !(ok && it.settled) {
				p.stale++
			}
		case it.settled || seen[it]:
		case x.Action == broker.Ack:
			p.acks = append(p.acks, it)
			seen[it] = true
		case s.cfg.SingleActive:
			s.putBack(it)
		case x.Delay > 0 && s.copies != nil:
			p.delayed = append(p.delayed, delayed{it, x.Delay})
			seen[it] = true
		default:
			p.backs = append(p.backs, it)
			seen[it] = true
		}
	}
	if s.cfg.SingleActive {
		s.tell()
	}
	return p
}

// carryOut says to the server what is to be said. After an error nothing stays
// half said: the channel is ended, and what it had in hand comes again.
func (p *plan) carryOut(ctx context.Context) error {
	if len(p.acks)+len(p.backs)+len(p.delayed) == 0 {
		return nil
	}
	var failed error
	if len(p.delayed) > 0 {
		// What needs no copy does not wait for those that do.
		if err := p.write(ctx); err != nil {
			return err
		}
		if failed = p.s.postpone(ctx, p); failed != nil {
			// Those go back at once, and the caller hears of it.
			failed = fmt.Errorf("delay a retry: %w", failed)
		}
	}
	if err := p.write(ctx); err != nil {
		return err
	}
	if err := p.confirm(ctx); err != nil {
		return err
	}
	return failed
}

// write sends acknowledgements and returns.
func (p *plan) write(ctx context.Context) error {
	x := p.session
	defer x.link.guard(ctx, writeGrace)()
	say := func(items []*item, one func(tag uint64, multiple bool) error) error {
		upTo, single := p.s.mark(x, items)
		if upTo > 0 {
			if err := one(upTo, true); err != nil {
				return err
			}
		}
		for _, tag := range single {
			if err := one(tag, false); err != nil {
				return err
			}
		}
		return nil
	}
	err := say(p.acks, x.ch.Ack)
	if err == nil {
		err = say(p.backs, func(tag uint64, multiple bool) error { return x.ch.Nack(tag, multiple, true) })
	}
	p.acks, p.backs = nil, nil
	if err != nil {
		return p.broke(ctx, err)
	}
	return nil
}

// mark notes that items are settled, and returns the tag up to which all that
// is unsettled is among them, and the tags of those beyond.
func (s *Source) mark(x *session, items []*item) (upTo uint64, single []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	among := make(map[*item]bool, len(items))
	for _, it := range items {
		among[it] = true
	}
	for _, it := range x.open {
		if it.settled {
			continue
		}
		if !among[it] {
			break
		}
		upTo = it.tag
	}
	for _, it := range items {
		if it.tag > upTo {
			single = append(single, it.tag)
		}
		x.settle(it)
	}
	slices.Sort(single)
	return upTo, single
}

// confirm asks something that the server answers after it has handled all that
// was said before on the channel.
func (p *plan) confirm(ctx context.Context) error {
	x := p.session
	ctx, cancel := context.WithTimeout(ctx, p.s.cfg.Timeout)
	defer cancel()
	defer x.link.guard(ctx, 0)()
	if _, err := x.ch.QueueDeclarePassive(p.s.cfg.Queue, true, false, false, false, nil); err != nil {
		return p.broke(ctx, err)
	}
	return nil
}

// broke ends the channel after an error, so that nothing stays unsettled on
// it of which nobody knows.
func (p *plan) broke(ctx context.Context, err error) error {
	p.session.link.leave(p.session.ch)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return fmt.Errorf("the channel ended: %w", err)
}
