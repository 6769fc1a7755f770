package sekali

import (
	"context"
	"time"

	"github.com/sekali/sekali/store"
)

// Tracer is what an Observer may be besides. It is called around each call of
// Handle, HandleBatch, Prepare and what Prepare returned, on the calling
// goroutine: it gives the handler its context, with a span say.
type Tracer interface {
	// Begin returns the context for the handler, and the function to call with
	// its error when it has returned; after a panic that is ErrHandlerExited.
	// m are the messages of the call: one, or those of a HandleBatch. They are
	// the handler's own, so neither kept nor changed.
	Begin(ctx context.Context, consumer string, m []*Message) (_ context.Context, end func(error))
}

// AgeWatcher is what an Observer may be besides, to be told Event.Age: that
// costs one look at the table for each transaction with duplicates in it.
type AgeWatcher interface{ WatchesAges() bool }

// Observers returns an Observer that tells several, one after another. It is a
// Tracer and an AgeWatcher if one of them is; contexts pass through all Tracers.
func Observers(all ...Observer) Observer {
	o := observers{all: all}
	for _, one := range all {
		if t, ok := one.(Tracer); ok {
			o.tracers = append(o.tracers, t)
		}
	}
	if len(o.tracers) == 0 {
		return o
	}
	return tracingObservers{o}
}

type observers struct {
	all     []Observer
	tracers []Tracer
}

// Observe implements Observer.
func (o observers) Observe(e Event) {
	for _, one := range o.all {
		one.Observe(e)
	}
}

// WatchesAges implements AgeWatcher.
func (o observers) WatchesAges() bool {
	for _, one := range o.all {
		if watchesAges(one) {
			return true
		}
	}
	return false
}

func watchesAges(o Observer) bool {
	w, ok := o.(AgeWatcher)
	return ok && w.WatchesAges()
}

type tracingObservers struct{ observers }

// Begin implements Tracer.
func (o tracingObservers) Begin(ctx context.Context, consumer string, m []*Message) (context.Context, func(error)) {
	ends := make([]func(error), len(o.tracers))
	for i, t := range o.tracers {
		ctx, ends[i] = t.Begin(ctx, consumer, m)
	}
	return ctx, func(err error) {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i](err)
		}
	}
}

// watch finds out what the Observer wants besides events, and what the Store
// can tell.
func (c *Consumer[Tx]) watch() {
	c.tracer, _ = c.cfg.Observer.(Tracer)
	if keeper, ok := store.As[interface{ Stats() store.Stats }](c.cfg.Store); ok && c.cfg.StatsEvery > 0 {
		c.stats = &stats{table: keeper.Stats(), consumer: c.cfg.StoredName, every: c.cfg.StatsEvery, observe: c.observe}
	}
	if c.stats != nil || watchesAges(c.cfg.Observer) {
		c.ager, _ = store.As[store.Ager](c.cfg.Store)
	}
	c.mine, c.born = newRecent(), time.Now()
}

// traced calls what is the user's, with the context that the Tracer has for it.
func (c *Consumer[Tx]) traced(ctx context.Context, m []*Message, call func(context.Context) error) error {
	if c.tracer == nil {
		return call(ctx)
	}
	ctx, end := c.tracer.Begin(ctx, c.cfg.Name, m)
	err := ErrHandlerExited // if it does not return
	defer func() { end(err) }()
	err = call(ctx)
	return err
}
