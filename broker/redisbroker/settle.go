package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
)

// Settle acknowledges with one XACK, and gives back those that are still ours.
// Its error wraps broker.ErrLost if deliveries are not of this stream, or if
// the group is gone from which some were to be given back: it is made again,
// and they come again.
func (s *Source) Settle(ctx context.Context, settlements []broker.Settlement) error {
	if s.life.Err() != nil {
		return fmt.Errorf("settle with Redis: %w", broker.ErrClosed)
	}
	if len(settlements) == 0 {
		return nil
	}
	acks, back, strange := s.sort(settlements)
	ctx, cancel := s.within(ctx)
	defer cancel()
	err := s.ack(ctx, acks)
	if err == nil {
		err = s.release(ctx, back)
	}
	s.letGo(settlements, err, len(back) > 0)
	switch {
	case err != nil && noGroup(err):
		err = fmt.Errorf("%w: %w", broker.ErrLost, err)
	case errors.Is(err, redis.ErrClosed):
		err = fmt.Errorf("%w: %w", broker.ErrClosed, err)
	case err == nil && strange > 0:
		err = fmt.Errorf("%d are of another stream: %w", strange, broker.ErrLost)
	}
	if err != nil {
		return fmt.Errorf("settle %d deliveries of Redis group %q: %w", len(settlements), s.cfg.Group, err)
	}
	return nil
}

// letGo forgets settled deliveries. Those of which the server may not have
// heard are looked for.
func (s *Source) letGo(settlements []broker.Settlement, err error, gaveBack bool) {
	if err != nil {
		s.suspectLosses()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.givenOne = s.givenOne || gaveBack
	for _, x := range settlements {
		if h, ok := x.Delivery.Handle.(*handle); ok {
			delete(s.held, h)
		}
	}
}

// release is what is given back: an entry with the idle time and the count of
// deliveries that it is to have.
type release struct {
	handle
	idle time.Duration
	then int64
}

// sort tells what to acknowledge from what to give back. What expired is not
// given back: whoever looks next takes it.
func (s *Source) sort(settlements []broker.Settlement) (acks []string, back []release, strange int) {
	for _, x := range settlements {
		h, ok := x.Delivery.Handle.(*handle)
		switch {
		case !ok || h.stream != s.cfg.Stream:
			strange++
		case x.Action == broker.Ack:
			acks = append(acks, h.id)
		case !x.Delivery.Expired():
			idle := s.cfg.AckWait - min(max(x.Delay, 0), s.cfg.AckWait)
			back = append(back, release{*h, idle, h.count})
		}
	}
	return acks, back, strange
}

func (s *Source) ack(ctx context.Context, acks []string) error {
	if len(acks) == 0 {
		return nil
	}
	if err := s.client.XAck(ctx, s.cfg.Stream, s.cfg.Group, acks...).Err(); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// release gives entries back, if they are still ours.
func (s *Source) release(ctx context.Context, back []release) error {
	for len(back) > 0 {
		page := back[:min(len(back), pageSize)]
		back = back[len(page):]
		args := []any{s.cfg.Group, s.me, released}
		for _, r := range page {
			args = append(args, r.id, r.count, r.idle.Milliseconds(), r.then)
		}
		reply, err := releaseScript.Run(ctx, s.client, []string{s.cfg.Stream}, args...).Result()
		if err != nil {
			return fmt.Errorf("give back: %w", err)
		}
		gone, err := ids(reply)
		if err != nil {
			return fmt.Errorf("give back: %w", err)
		}
		s.lost(gone)
	}
	return nil
}

// giveBackAll gives back all that is pending under our name, except what is
// known. What was never handed over does not count as delivered.
func (s *Source) giveBackAll(ctx context.Context, known map[string]bool) error {
	s.mu.Lock()
	begun := make(map[string]bool, len(s.held))
	for h := range s.held {
		begun[h.id] = true
	}
	s.mu.Unlock()
	for from := "-"; ; {
		page, err := s.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: s.cfg.Stream, Group: s.cfg.Group, Consumer: s.me, Start: from, End: "+", Count: pageSize,
		}).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("ask what is pending: %w", err)
		}
		var back []release
		for _, p := range page {
			from = "(" + p.ID
			if known[p.ID] {
				continue
			}
			then := p.RetryCount
			if !begun[p.ID] {
				then = max(0, then-1)
			}
			back = append(back, release{handle{id: p.ID, count: p.RetryCount}, s.cfg.AckWait, then})
		}
		if err := s.release(ctx, back); err != nil {
			return err
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// KeepAlive asks for AckWait again, from now on, for those that are still
// ours. One that somebody has claimed stays with whoever has it.
func (s *Source) KeepAlive(ctx context.Context, deliveries []*broker.Delivery) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	for len(deliveries) > 0 {
		page := deliveries[:min(len(deliveries), pageSize)]
		deliveries = deliveries[len(page):]
		if err := s.keep(ctx, page); err != nil {
			return fmt.Errorf("keep %d deliveries of Redis group %q alive: %w", len(page), s.cfg.Group, err)
		}
	}
	return nil
}

func (s *Source) keep(ctx context.Context, page []*broker.Delivery) error {
	args := []any{s.cfg.Group, s.me}
	var asked []*broker.Delivery
	for _, d := range page {
		if h, ok := d.Handle.(*handle); ok && h.stream == s.cfg.Stream && !d.Expired() {
			args, asked = append(args, h.id, h.count), append(asked, d)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	begun := time.Now()
	kept, err := keepScript.Run(ctx, s.client, []string{s.cfg.Stream}, args...).Int64Slice()
	if err != nil {
		return err
	}
	if len(kept) != len(asked) {
		return errReply
	}
	for i, d := range asked {
		if kept[i] == 1 {
			d.Extend(s.ours() - time.Since(begun))
		}
	}
	return nil
}
