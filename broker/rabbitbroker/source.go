package rabbitbroker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

// Source receives from a queue. It connects at the first Receive, and again
// whenever the connection, the channel or the queue is lost.
type Source struct {
	cfg    SourceConfig
	copies *Publisher // of delayed retries; nil: there are none

	settling sync.Mutex // one Settle, or Close, at a time

	mu      sync.Mutex
	session *session      // nil: nothing comes at the moment
	ready   []*item       // received and not handed over, by tag
	ended   error         // why the last session ended, to be told once
	trouble error         // why there is none, to be told once
	changed chan struct{} // closed, and replaced, when Receive should look again
	closed  bool

	stop    context.CancelFunc // ends running; nil before the first Receive
	running sync.WaitGroup
}

var (
	_ broker.Source       = (*Source)(nil)
	_ broker.DelayedRetry = (*Source)(nil)
	_ broker.PinsLanes    = (*Source)(nil)
)

// NewSource returns a Source, or an error that says what is wrong with cfg. It
// does no I/O.
func NewSource(cfg SourceConfig) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new RabbitMQ source: %w", err)
	}
	s := &Source{cfg: cfg, changed: make(chan struct{})}
	if cfg.DelayedRetry {
		// A connection of its own: one over which the server takes no messages
		// brings no acknowledgements either.
		if s.copies, err = NewPublisher(cfg.URL, WithClient(cfg.Client), WithConfirmTimeout(cfg.Timeout)); err != nil {
			return nil, fmt.Errorf("new RabbitMQ source: %w", err)
		}
	}
	return s, nil
}

// PinsLanes tells whether the source is SingleActive.
func (s *Source) PinsLanes() bool { return s.cfg.SingleActive }

// MaxDelay is 17.5 hours (63,000 s) with DelayedRetry, else 0, which is none.
func (s *Source) MaxDelay() time.Duration {
	if s.copies == nil {
		return 0
	}
	return maxDelay
}

// Receive waits until deliveries are there and returns those that are, max at
// most. What it does not return stays with the Source. An error other than one
// that wraps broker.ErrClosed tells what went wrong once, and may pass: the
// Source tries again by itself, also where the queue is not there.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	d, err := s.receive(ctx, max)
	if err != nil {
		return nil, fmt.Errorf("receive from the queue %q of RabbitMQ: %w", s.cfg.Queue, err)
	}
	return d, nil
}

func (s *Source) receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("max is %d: ask for at least 1", max)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		got, changed, err := s.take(max)
		if len(got) > 0 || err != nil {
			return got, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// take hands over what is there; else it returns what to wait for. It begins to
// receive if that has not begun.
func (s *Source) take(max int) ([]*broker.Delivery, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, broker.ErrClosed
	}
	if s.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		s.running.Go(func() { s.run(ctx) })
	}
	n := min(max, len(s.ready))
	if n == 0 && s.ended != nil {
		err := s.ended
		s.ended = nil
		return nil, nil, err
	}
	if n == 0 && s.trouble != nil {
		err := s.trouble
		s.trouble = nil
		return nil, nil, err
	}
	got := make([]*broker.Delivery, n)
	for i, it := range s.ready[:n] {
		got[i] = it.delivery
		s.ready[i] = nil
	}
	s.ready = s.ready[n:]
	return got, s.changed, nil
}

// tell has Receive look again. s.mu is held.
func (s *Source) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Close gives back what is unsettled, by closing the channel, and disconnects.
// It may be called twice.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.running.Wait()
		return nil
	}
	s.closed = true
	stop := s.stop
	if s.session != nil {
		defer s.session.link.guard(ctx, 0)()
	}
	s.tell()
	s.mu.Unlock()
	s.settling.Lock() // what is being settled is settled first
	defer s.settling.Unlock()
	if stop != nil {
		stop()
	}
	// Without a basic.cancel first: with a single active consumer the next one
	// would begin before our deliveries are back in their places. The channel's
	// end does both in one.
	s.running.Wait()
	if s.copies != nil {
		return s.copies.Close(ctx)
	}
	return nil
}

// putBack has a message wait again in its old place, to be handed over anew.
// s.mu is held.
func (s *Source) putBack(it *item) {
	again := it.again()
	s.session.replace(it, again)
	at, _ := slices.BinarySearchFunc(s.ready, again, func(a, b *item) int { return compareTags(a.tag, b.tag) })
	s.ready = slices.Insert(s.ready, at, again)
}
