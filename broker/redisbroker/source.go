package redisbroker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
)

const (
	// ownPrefix begins the names of our consumers.
	ownPrefix = "sekali-"
	// released is the consumer that has what was given back.
	released = "sekali-released"
)

// ErrTrimmed is the error of a Receive after entries were deleted from the
// stream, or trimmed, that were delivered and not acknowledged. They are lost;
// each is told of once.
var ErrTrimmed = errors.New("entries were deleted or trimmed before they were acknowledged")

// Source receives from a consumer group of a stream. It keeps deliveries alive
// and has the group wait before a retry, AckWait at most.
type Source struct {
	client redis.UniversalClient
	cfg    SourceConfig
	names  fields
	me     string        // our consumer's name
	poll   time.Duration // how long a question waits for something new
	owned  bool          // the client is ours to close

	receiving sync.Mutex // one Receive, or Close, at a time
	under     *fetch     // the question under way; nil: none
	trouble   error      // for the next Receive
	state     fetchState // the running fetch's; Receive's where none runs

	mu       sync.Mutex
	buffer   []*broker.Delivery           // received, and handed to nobody yet
	held     map[*handle]*broker.Delivery // handed over and not settled
	sweep    int                          // how many of them there may be before expired ones are looked for
	gone     []string                     // ids of entries that were trimmed, not told of yet
	suspect  time.Time                    // until then there may be entries that are ours and that we know nothing of
	givenOne bool                         // something was given back: look for it soon

	life     context.Context // ends with Close
	end      context.CancelFunc
	closed   sync.Once
	closeErr error
}

var (
	_ broker.Source       = (*Source)(nil)
	_ broker.KeepAliver   = (*Source)(nil)
	_ broker.DelayedRetry = (*Source)(nil)
)

// NewSource returns a Source that asks through client, which stays its owner's
// to close. It does no I/O; its error says which fields of cfg are missing or
// contradict each other.
func NewSource(client redis.UniversalClient, cfg SourceConfig) (*Source, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new Redis source: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	s := &Source{
		client: client, cfg: full, names: full.fields(),
		me:    fmt.Sprintf("%s%s-%d-%s", ownPrefix, host, os.Getpid(), rand.Text()),
		poll:  min(longestPoll, full.AckWait/4, readTimeout(client)/2),
		held:  map[*handle]*broker.Delivery{},
		state: fetchState{cursor: "0-0"},
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// readTimeout is how long the client waits for an answer, so that a question
// that waits on the server is answered in time.
func readTimeout(client redis.UniversalClient) time.Duration {
	limit := time.Duration(0)
	switch c := client.(type) {
	case *redis.Client:
		limit = c.Options().ReadTimeout
	case *redis.ClusterClient:
		limit = c.Options().ReadTimeout
	case *redis.Ring:
		limit = c.Options().ReadTimeout
	}
	if limit <= 0 {
		return time.Hour // none, or go-redis's default of 3 s: longer than we need
	}
	return limit
}

// Receive waits until a message is there and returns it with those that are
// there with it: new entries, and old ones that others did not settle in time,
// at most one half of each where there is enough of both. It returns an error
// that wraps broker.ErrClosed after Close and when the client was closed; any
// other error may pass: ErrTrimmed, or that the group or the stream was deleted,
// which is made again.
//
// When ctx ends, the question that is under way is left to its answer, which
// the next Receive returns.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	d, err := s.receive(ctx, max)
	if err != nil {
		return nil, fmt.Errorf("receive from Redis stream %q as group %q: %w", s.cfg.Stream, s.cfg.Group, err)
	}
	return d, nil
}

func (s *Source) receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("max is %d: ask for at least 1", max)
	}
	for {
		switch {
		case s.life.Err() != nil:
			return nil, broker.ErrClosed
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		if d := s.handOver(max); len(d) > 0 {
			return d, nil
		}
		if err := s.takeTrouble(); err != nil {
			return nil, err
		}
		if s.under == nil {
			s.under = s.start(max)
		}
		select {
		case <-s.under.done:
			s.arrived()
		case <-ctx.Done():
		case <-s.life.Done():
		}
	}
}

// arrived puts what a question brought into the buffer.
func (s *Source) arrived() {
	got := s.under
	s.under, s.trouble = nil, got.err
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buffer = append(s.buffer, got.deliveries...)
}

// handOver returns what is in the buffer. What expired there, for nobody was
// in Receive, is forgotten: somebody else may have it, or we get it again.
func (s *Source) handOver(most int) (d []*broker.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.buffer) > 0 && len(d) < most {
		if next := s.buffer[0]; !next.Expired() {
			d = append(d, next)
			s.held[next.Handle.(*handle)] = next
		}
		s.buffer = s.buffer[1:]
	}
	// Whoever drops expired deliveries need not settle them.
	if len(s.held) > max(s.sweep, 1024) {
		for h, x := range s.held {
			if x.Expired() {
				delete(s.held, h)
			}
		}
		s.sweep = 2 * len(s.held)
	}
	return d
}

// takeTrouble returns what went wrong, once.
func (s *Source) takeTrouble() error {
	s.mu.Lock()
	gone := s.gone
	s.gone = nil
	s.mu.Unlock()
	if len(gone) > 0 {
		const shown = 3
		more := ""
		if len(gone) > shown {
			more = " …"
		}
		return fmt.Errorf("%w: %d are lost, %q%s: trim no further than the group's oldest pending entry", ErrTrimmed, len(gone), gone[:min(len(gone), shown)], more)
	}
	err := s.trouble
	s.trouble = nil
	return err
}

// lost notes entries that were trimmed.
func (s *Source) lost(gone []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, gone...)
}

// Close gives back what is in hand and ends the subscription; the group stays
// on the server. It closes the client if the Source made it. It may be called
// twice. An error says that messages could not be given back now: they come
// again when their time is over.
func (s *Source) Close(ctx context.Context) error {
	s.closed.Do(func() {
		s.end()
		s.receiving.Lock()
		defer s.receiving.Unlock()
		if s.owned {
			defer func() { _ = s.client.Close() }()
		}
		if s.under != nil {
			select {
			case <-s.under.done:
				s.arrived()
			case <-ctx.Done():
				s.closeErr = fmt.Errorf("close the Redis source of group %q: its last question has no answer: what it brings comes again in %v: %w", s.cfg.Group, s.cfg.AckWait, ctx.Err())
				return
			}
		}
		if s.state.hadGroup {
			s.closeErr = s.leave(ctx)
		}
	})
	return s.closeErr
}

// leave gives back all that is pending under our name, known or not, and
// removes the name.
func (s *Source) leave(ctx context.Context) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	err := s.giveBackAll(ctx, nil)
	if err == nil {
		err = tidyScript.Run(ctx, s.client, []string{s.cfg.Stream}, s.cfg.Group, s.me, 0, "").Err()
	}
	if err != nil && !noGroup(err) {
		return fmt.Errorf("give messages of Redis group %q back, which come again in %v: %w", s.cfg.Group, s.cfg.AckWait, err)
	}
	return nil
}

// KeepAliveEvery is a third of AckWait.
func (s *Source) KeepAliveEvery() time.Duration { return s.cfg.AckWait / 3 }

// MaxDelay is AckWait.
func (s *Source) MaxDelay() time.Duration { return s.cfg.AckWait }

// ours is how long a delivery is certainly ours: others may claim it AckWait
// after the server's clock says that it was delivered.
func (s *Source) ours() time.Duration { return s.cfg.AckWait - s.cfg.AckWait/10 }

// within bounds one question to the server.
func (s *Source) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.Timeout)
}
