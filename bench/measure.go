package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/store"
)

// consumer is the name under which keys are recorded.
const consumer = "stock-service"

// target is a database, with the ways to process a message on it.
type target interface {
	handwritten(ctx context.Context, o order) error
	check(ctx context.Context, o order) error
	process(ctx context.Context, o order) error
	limit(ctx context.Context, all []order) error
	consume(ctx context.Context, c Case, source *feed) error
	// keep empties the tables and makes n rows of another consumer.
	keep(ctx context.Context, n int, ordered bool) error
}

// measure runs a case for a time and returns messages per second.
func measure(ctx context.Context, t target, c Case, each time.Duration) (float64, error) {
	f := newFeed(c, each)
	began := time.Now()
	var err error
	switch c.Mode {
	case Handle, Batch, Pipelined, FromFile:
		err = t.consume(ctx, c, f)
	case Handwritten:
		err = workers(c, f, func(all []order) error { return t.handwritten(ctx, all[0]) })
	case Check:
		err = workers(c, f, func(all []order) error { return t.check(ctx, all[0]) })
	case Process:
		err = workers(c, f, func(all []order) error { return t.process(ctx, all[0]) })
	case Limit:
		err = workers(c, f, func(all []order) error { return t.limit(ctx, all) })
	default:
		err = fmt.Errorf("there is no mode %q", c.Mode)
	}
	if f.c.Mode == FromFile {
		began = f.until.Add(-each) // it has looked at the file and the tables before
	}
	took := min(time.Since(began), 2*each)
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return float64(f.acked.Load()) / took.Seconds(), err
}

// workers processes orders on so many goroutines until the feed is over.
func workers(c Case, f *feed, do func([]order) error) error {
	var all sync.WaitGroup
	errs := make(chan error, c.Workers)
	for w := range c.Workers {
		all.Go(func() {
			apart := 1 // batches of workers share no skus; single messages may
			if c.Mode == Limit {
				apart = c.Workers
			}
			for !f.over() {
				orders := f.next(c.Batch, w, apart)
				if err := do(orders); err != nil {
					errs <- err
					return
				}
				f.acked.Add(int64(len(orders)))
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

// consumeBy runs a Consumer until the feed is over and everything settled.
func consumeBy[Tx any](ctx context.Context, c Case, s store.Store[Tx], f *feed, set func(*sekali.Config[Tx])) error {
	trouble := &watcher{}
	cfg := sekali.Config[Tx]{
		Name: consumer, Source: f, Store: s, Key: sekali.MessageID(), Observer: trouble,
		Workers: c.Workers, Batch: sekali.Batch{Size: c.Batch},
	}
	set(&cfg)
	running, err := sekali.NewConsumer(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, f.until)
	defer cancel()
	if err := running.Run(ctx); err != nil {
		return err
	}
	return trouble.err
}

// watcher remembers what must not happen in a benchmark.
type watcher struct {
	mu  sync.Mutex
	err error
}

func (w *watcher) Observe(e sekali.Event) {
	switch e.Kind {
	case sekali.AttemptFailed, sekali.DeadLettered, sekali.Interrupted, sekali.CheckFailed:
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = fmt.Errorf("%v: %w", e.Kind, e.Err)
		}
	}
}
