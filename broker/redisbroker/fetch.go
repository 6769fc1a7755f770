package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
)

const (
	// suspectFor is how long after a broken connection entries may still be
	// delivered to it.
	suspectFor = 3 * time.Second
	// pageSize is how many entries one question about pending ones, or one
	// script, has to do with.
	pageSize = 500
	// tidyAfter is how many AckWaits long a consumer is idle before its name is
	// removed.
	tidyAfter = 10
)

// fetch is a question under way: it is one goroutine, which nobody interrupts,
// for go-redis interrupts no read.
type fetch struct {
	done       chan struct{} // closed when the rest is set
	deliveries []*broker.Delivery
	err        error
}

// fetchState is what one fetch leaves to the next.
type fetchState struct {
	grouped  bool      // the group was there when it was last asked
	hadGroup bool      // it was there once
	cursor   string    // where the next look for old entries begins
	look     time.Time // when to look for them; zero: at once
	claimed  bool      // the last fetch brought old entries
	tidied   time.Time // when names were last removed
}

// start starts a fetch. Receive, or Close, waits for it.
func (s *Source) start(most int) *fetch {
	f := &fetch{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.deliveries, f.err = s.fetch(s.life, most)
		switch {
		case f.err == nil:
		case errors.Is(f.err, redis.ErrClosed):
			f.err = fmt.Errorf("%w: the client was closed: %w", broker.ErrClosed, f.err)
		case noGroup(f.err):
			f.err = s.remade(f.err)
		case !isReply(f.err):
			s.suspectLosses()
		}
	}()
	return f
}

// suspectLosses has the next fetches look for entries that were delivered to
// us and did not arrive.
func (s *Source) suspectLosses() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspect = time.Now().Add(suspectFor)
}

// remade makes the group again at once, or at the next fetch.
func (s *Source) remade(err error) error {
	s.state.grouped = false
	made, again := s.makeGroup(s.life)
	switch {
	case again != nil:
		return fmt.Errorf("the group or the stream was deleted, and cannot be made again: %w", again)
	case made:
		return fmt.Errorf("the group or the stream was deleted: it is made again, from the stream's first entry: %w", err)
	}
	return fmt.Errorf("the group or the stream was not there, and is again: %w", err)
}

// makeGroup makes stream and group if they are not there. Only a group that
// never was begins where OnlyNew says.
func (s *Source) makeGroup(ctx context.Context) (made bool, err error) {
	if s.state.grouped {
		return false, nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	from := "0"
	if s.cfg.OnlyNew && !s.state.hadGroup {
		from = "$"
	}
	err = s.client.XGroupCreateMkStream(ctx, s.cfg.Stream, s.cfg.Group, from).Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return false, fmt.Errorf("make the group: %w", err)
	}
	s.state.grouped, s.state.hadGroup, s.state.cursor = true, true, "0-0"
	return err == nil, nil
}

// fetch brings most entries at most: old ones that others let lie, and new
// ones, which it waits for if there are no others. Neither starve: old ones
// take half the room, or every second turn where there is room for one.
func (s *Source) fetch(ctx context.Context, most int) ([]*broker.Delivery, error) {
	if _, err := s.makeGroup(ctx); err != nil {
		return nil, err
	}
	if err := s.findLosses(ctx); err != nil {
		return nil, err
	}
	if err := s.tidy(ctx); err != nil {
		return nil, err
	}
	room := (most + 1) / 2
	yield := most == 1 && s.state.claimed // it is the new ones' turn
	if yield {
		if d, err := s.readNew(ctx, 1, false); len(d) > 0 || err != nil {
			s.state.claimed = false
			return d, err
		}
	}
	d, err := s.claim(ctx, room)
	s.state.claimed = len(d) > 0
	if err != nil || len(d) == most {
		return d, err
	}
	more, err := s.readNew(ctx, most-len(d), len(d) == 0)
	return append(d, more...), err
}

// readNew reads entries that nobody has had.
func (s *Source) readNew(ctx context.Context, most int, wait bool) ([]*broker.Delivery, error) {
	args := []any{"xreadgroup", "group", s.cfg.Group, s.me, "count", most}
	if wait {
		args = append(args, "block", max(1, s.poll.Milliseconds()))
	}
	args = append(args, "streams", s.cfg.Stream, ">")
	ctx, cancel := s.within(ctx)
	defer cancel()
	cmd := once{redis.NewCmd(ctx, args...)}
	cmd.SetFirstKeyPos(int8(len(args) - 2))
	asked := time.Now()
	if err := s.client.Process(ctx, cmd); errors.Is(err, redis.Nil) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read new entries: %w", err)
	}
	entries, err := newEntries(cmd.Val())
	if err != nil {
		return nil, fmt.Errorf("read new entries: %w", err)
	}
	return s.deliveries(entries, asked)
}

// claim takes over entries that others, or we, did not settle in time, and
// those that were given back.
func (s *Source) claim(ctx context.Context, most int) ([]*broker.Delivery, error) {
	s.mu.Lock()
	soon := s.givenOne
	s.givenOne = false
	s.mu.Unlock()
	if !soon && time.Now().Before(s.state.look) {
		return nil, nil
	}
	if soon { // it may stand anywhere
		s.state.cursor = "0-0"
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	asked := time.Now()
	reply, err := s.runOnce(ctx, claimScript, s.cfg.Group, s.me, s.cfg.AckWait.Milliseconds(), s.state.cursor, most)
	if err != nil {
		return nil, fmt.Errorf("claim entries that nobody settled: %w", err)
	}
	cursor, entries, gone, err := claimedEntries(reply)
	if err != nil {
		return nil, fmt.Errorf("claim entries that nobody settled: %w", err)
	}
	s.lost(gone)
	s.state.cursor, s.state.look = cursor, time.Time{}
	if cursor == "0-0" && len(entries) < most { // that were all
		s.state.look = asked.Add(s.poll)
	}
	return s.deliveries(entries, asked)
}

// runOnce runs a script that must not be run again when its answer is lost.
func (s *Source) runOnce(ctx context.Context, script *redis.Script, args ...any) (any, error) {
	run := func(how, what string) (any, error) {
		cmd := once{redis.NewCmd(ctx, append([]any{how, what, 1, s.cfg.Stream}, args...)...)}
		cmd.SetFirstKeyPos(3)
		err := s.client.Process(ctx, cmd)
		return cmd.Val(), err
	}
	reply, err := run("evalsha", script.Hash())
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		// It is loaded under its hash, and so is what Eval is given.
		if err := script.Load(ctx, s.client).Err(); err != nil {
			return nil, err
		}
		reply, err = run("evalsha", script.Hash())
	}
	return reply, err
}

func (s *Source) deliveries(entries []entry, asked time.Time) ([]*broker.Delivery, error) {
	d := make([]*broker.Delivery, 0, len(entries))
	for _, e := range entries {
		one, err := s.deliveryOf(e, asked)
		if err != nil {
			return d, fmt.Errorf("read entry %s: %w", e.id, err)
		}
		d = append(d, one)
	}
	return d, nil
}

// findLosses gives entries back that are ours and did not arrive, if there may
// be any. They would come again when their time is over; this is sooner.
func (s *Source) findLosses(ctx context.Context) error {
	s.mu.Lock()
	known := map[string]bool{}
	needed := time.Now().Before(s.suspect)
	if needed {
		for h := range s.held {
			known[h.id] = true
		}
		for _, d := range s.buffer {
			known[d.Handle.(*handle).id] = true
		}
	}
	s.mu.Unlock()
	if !needed {
		return nil
	}
	if err := s.giveBackAll(ctx, known); err != nil {
		return fmt.Errorf("look for entries that were lost on their way: %w", err)
	}
	return nil
}

// tidy removes the names of dead consumers, now and then.
func (s *Source) tidy(ctx context.Context) error {
	limit := tidyAfter * s.cfg.AckWait
	if s.state.tidied.IsZero() { // whoever starts again and again removes its own
		s.state.tidied = time.Now().Add(s.cfg.AckWait - limit)
	}
	if time.Since(s.state.tidied) < limit {
		return nil
	}
	s.state.tidied = time.Now()
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := tidyScript.Run(ctx, s.client, []string{s.cfg.Stream}, s.cfg.Group, s.me, limit.Milliseconds(), ownPrefix).Err(); err != nil {
		return fmt.Errorf("remove the names of dead consumers: %w", err)
	}
	return nil
}
