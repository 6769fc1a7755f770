package otelsekali

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/sekali/sekali/admin"
)

// DefaultEvery is how often Watch asks the database at most.
const DefaultEvery = 15 * time.Second

// askTimeout bounds one question, and so how long whoever collects waits.
const askTimeout = 5 * time.Second

// Backlog tells what waits: an admin.Health.
type Backlog interface {
	Backlog(ctx context.Context) (admin.Overview, error)
}

// Watch makes gauges of what waits in a database: dead letters, effects, the
// outbox. Which process made it wait is of no matter, and one that watches need
// not consume; of several that watch one database all tell the same, so let
// one do it, or take their maximum.
//
// The database is asked when somebody collects metrics, by short queries, and
// at most once in every, which defaults to DefaultEvery; in between the last
// answer is told. A Telemetry watches one database. stop ends it.
func (t *Telemetry) Watch(from Backlog, every time.Duration) (stop func() error, err error) {
	if every < 0 {
		return nil, fmt.Errorf("watch a database: every is %v: use a time above zero", every)
	}
	if every == 0 {
		every = DefaultEvery
	}
	m := &maker{meter: t.meter}
	w := &watch{
		from: from, every: every,
		letters: m.observed("sekali.dead_letters.waiting"), oldestLetter: m.observed("sekali.dead_letters.oldest"),
		effects: m.observed("sekali.effects.waiting"), oldestEffect: m.observed("sekali.effects.oldest"),
		depth: m.observed("sekali.outbox.depth"), lag: m.observed("sekali.outbox.lag"), up: m.observed("sekali.database.up"),
	}
	if err := m.err(); err != nil {
		return nil, fmt.Errorf("watch a database: %w", err)
	}
	registered, err := t.meter.RegisterCallback(w.observe, w.letters, w.oldestLetter, w.effects, w.oldestEffect, w.depth, w.lag, w.up)
	if err != nil {
		return nil, fmt.Errorf("watch a database: %w", err)
	}
	return registered.Unregister, nil
}

// watch remembers the last answer.
type watch struct {
	from  Backlog
	every time.Duration

	letters, oldestLetter, effects, oldestEffect, depth, lag, up metric.Float64ObservableGauge

	mu    sync.Mutex
	asked time.Time
	last  admin.Overview
	err   error
}

// ask returns the last answer, or a new one if that is old. Who comes while
// another asks waits for its answer. A failure is remembered as long: what does
// not answer is not asked by every reader.
func (w *watch) ask(ctx context.Context) (admin.Overview, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < w.every {
		return w.last, w.err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	o, err := w.from.Backlog(asking)
	if errors.Is(ctx.Err(), context.Canceled) {
		return o, err // who collected went away: that says nothing of the database
	}
	w.asked, w.last, w.err = time.Now(), o, err
	return o, err
}

// observe is called when somebody collects. What the database did not tell is
// left out: an old number would look like a new one.
func (w *watch) observe(ctx context.Context, o metric.Observer) error {
	v, err := w.ask(ctx)
	if err != nil {
		o.ObserveFloat64(w.up, 0)
		return nil
	}
	o.ObserveFloat64(w.up, 1)
	waiting := func(count, oldest metric.Float64Observable, n admin.Waiting, which attribute.KeyValue) {
		with := metric.WithAttributeSet(attribute.NewSet(which))
		o.ObserveFloat64(count, float64(n.Count), with)
		o.ObserveFloat64(oldest, n.Oldest.Seconds(), with)
	}
	for status, n := range v.DeadLetters {
		waiting(w.letters, w.oldestLetter, n, attribute.String(statusKey, string(status)))
	}
	for state, n := range v.Effects {
		waiting(w.effects, w.oldestEffect, n, attribute.String(stateKey, string(state)))
	}
	depth := func(n int, status string) {
		o.ObserveFloat64(w.depth, float64(n), metric.WithAttributeSet(attribute.NewSet(attribute.String(statusKey, status))))
	}
	depth(v.Outbox.Pending, "pending")
	depth(v.Outbox.Parked, "parked")
	o.ObserveFloat64(w.lag, v.Outbox.Lag.Seconds())
	return nil
}
