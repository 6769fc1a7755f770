package sekali

import (
	"context"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

// settleTimeout bounds one confirmation by the broker. After it the
// settlements are in doubt: their messages may come again, as duplicates.
const settleTimeout = 30 * time.Second

// settler tells the broker what became of deliveries: whatever has gathered
// while the last confirmation travelled goes in one call.
type settler struct {
	source  broker.Source
	observe func(Event)

	mu      sync.Mutex
	pending []broker.Settlement
	added   int           // settlements ever queued
	over    int           // of them, those that the broker was told of
	told    *sync.Cond    // over has grown
	wake    chan struct{} // holds a token when there is something to do
	closed  bool
}

func newSettler(source broker.Source, observe func(Event)) *settler {
	s := &settler{source: source, observe: observe, wake: make(chan struct{}, 1)}
	s.told = sync.NewCond(&s.mu)
	return s
}

// start begins settling. The function that it returns settles what is left,
// and waits for it.
func (s *settler) start(ctx context.Context) (finish func()) {
	var running sync.WaitGroup
	// What is done is told the broker even when the stop ran out of patience.
	ctx = context.WithoutCancel(ctx)
	running.Go(func() {
		for range s.wake {
			if !s.flush(ctx) {
				return
			}
		}
	})
	return func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.poke()
		running.Wait()
	}
}

// add queues settlements.
func (s *settler) add(x ...broker.Settlement) {
	s.mu.Lock()
	s.pending = append(s.pending, x...)
	s.added += len(x)
	s.mu.Unlock()
	s.poke()
}

// wait waits until the broker was told of all that is queued, or ctx ends.
func (s *settler) wait(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told.Broadcast()
	})()
	for queued := s.added; s.over < queued && ctx.Err() == nil; {
		s.told.Wait()
	}
}

func (s *settler) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // a token is there: whoever takes it sees our change too
	}
}

// flush settles what is pending. It returns false after the last time.
func (s *settler) flush(ctx context.Context) bool {
	s.mu.Lock()
	batch, last := s.pending, s.closed
	s.pending = nil
	s.mu.Unlock()
	if len(batch) == 0 {
		return !last
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over += len(batch)
		s.told.Broadcast()
	}()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := s.source.Settle(ctx, batch); err != nil {
		// The effects are committed; what comes again is a duplicate.
		s.observe(Event{Kind: SettleFailed, Count: len(batch), Err: err})
		return !last
	}
	acks := 0
	for _, x := range batch {
		if x.Action == broker.Ack {
			acks++
		}
	}
	if acks > 0 {
		s.observe(Event{Kind: Settled, Count: acks})
	}
	return !last
}
