package sekali

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/store"
)

// statsTimeout bounds one writing of statistics, and so how much longer a stop
// takes where the database does not answer.
const statsTimeout = 2 * time.Second

// stats counts what a Consumer does, and adds it to the table consumer_stats
// every few seconds, so that it outlives the process. Nobody waits for it, and
// nothing fails with it: what could not be written stays counted and goes with
// the next; if only the answer was lost, it is counted twice.
type stats struct {
	table    store.Stats
	consumer string
	every    time.Duration
	observe  func(Event)

	processed atomic.Int64

	mu     sync.Mutex
	counts store.Counts // what is not in processed
	failed bool         // the last time; told once
}

// count counts what an event tells of.
func (s *stats) count(e *Event) {
	switch e.Kind {
	case Finished:
		if e.Outcome == Processed { // nearly always
			s.processed.Add(1)
			return
		}
	case AttemptFailed, Conflicted, Interrupted, DeadLettered:
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.counts
	switch e.Kind {
	case Finished:
		finish(n, e)
	case DeadLettered:
		n.DeadLetters++
	case Interrupted:
		if e.Pause == 0 {
			return // what went wrong was beside the message
		}
		fallthrough
	default:
		n.Retries += int64(max(e.Count, 1))
	}
}

func finish(n *store.Counts, e *Event) {
	switch e.Outcome {
	case Stale:
		n.Stale++
	case Conflict:
		n.Conflicts++
	case Duplicate:
		switch e.Cause {
		case CauseRedrive:
			n.Redriven++
		case CauseLostRace:
			n.LostRaces++
		case CauseRedelivery:
			n.Redelivered++
		default:
			n.Repeated++
		}
		if e.Age > 0 {
			n.Ages[store.AgeClass(e.Age)]++
		}
	}
}

// start begins writing. The function that it returns writes what is left, and
// waits for it.
func (s *stats) start(ctx context.Context) (finish func()) {
	if s == nil {
		return func() {}
	}
	ctx = context.WithoutCancel(ctx)
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(s.every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.flush(ctx)
			case <-stopped:
				s.flush(ctx)
				return
			}
		}
	})
	return func() {
		close(stopped)
		running.Wait()
	}
}

// flush writes what was counted since the last time.
func (s *stats) flush(ctx context.Context) {
	s.mu.Lock()
	counts := s.counts
	s.counts = store.Counts{}
	s.mu.Unlock()
	counts.Processed += s.processed.Swap(0)
	if counts == (store.Counts{}) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	err := s.table.Add(ctx, s.consumer, counts)
	if err != nil {
		s.mu.Lock()
		s.counts = s.counts.Plus(counts)
		s.mu.Unlock()
		if !s.failed {
			s.observe(Event{Kind: StatsFailed, Err: err})
		}
	}
	s.failed = err != nil
}
