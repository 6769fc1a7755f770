package retention

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/sekali/sekali/store"
)

const (
	// lease is how long a pruner that gives no sign of life keeps others away.
	lease = time.Minute
	// maxConflicts is how often in a row a batch may meet live traffic's locks.
	maxConflicts = 100
)

// Config says how a Pruner works.
type Config struct {
	Policy Policy
	// Batch is how many rows go in one transaction at most. Defaults to 1,000.
	Batch int
	// Pause between two batches, at least: it is as long as the batch took if that
	// is longer, so that live traffic has the database for itself half of the
	// time. Defaults to 20 ms.
	Pause time.Duration
	// Progress, if set, is called after each batch.
	Progress func(Progress)
}

// Progress is how far a run has come.
type Progress struct {
	Rows    store.Prunable
	Removed int64 // of them, in this run
	Total   int64 // of all kinds, in this run
}

// Result is what a run did with rows of one kind.
type Result struct {
	Rows store.Prunable
	// Keep is how long they are kept; Forever: they were not looked at.
	Keep time.Duration
	// Removed is how many were removed; of a dry run, how many would be.
	Removed int64
	// Took is how long that took, pauses included.
	Took time.Duration
}

// Report is what a run did.
type Report struct{ Results []Result }

// Removed returns how many rows were removed in all.
func (r Report) Removed() (n int64) {
	for _, one := range r.Results {
		n += one.Removed
	}
	return n
}

// Pruner removes what a Policy does not keep. It is safe for concurrent use, but
// of all pruners of a database one at a time works.
type Pruner struct {
	cfg    Config
	tables store.Pruner
}

// New returns a Pruner for the database of a Store, which it finds through
// wrappers. It does no I/O.
func New(s any, cfg Config) (*Pruner, error) {
	keeper, ok := store.As[interface{ Pruner() store.Pruner }](s)
	if !ok {
		return nil, fmt.Errorf("new pruner: a store of type %T removes nothing: use pgxstore or sqlstore", s)
	}
	if err := cfg.Policy.validate(); err != nil {
		return nil, fmt.Errorf("new pruner: %w", err)
	}
	switch {
	case cfg.Batch < 0:
		return nil, fmt.Errorf("new pruner: field Batch is %d: use 1 or more", cfg.Batch)
	case cfg.Pause < 0:
		return nil, fmt.Errorf("new pruner: field Pause is %v: use a time above zero", cfg.Pause)
	case cfg.Batch == 0:
		cfg.Batch = 1000
	}
	if cfg.Pause == 0 {
		cfg.Pause = 20 * time.Millisecond
	}
	return &Pruner{cfg: cfg, tables: keeper.Pruner()}, nil
}

// Run removes all that is old, once. It returns an error before it removes
// anything if the Policy is refused (Policy.Check), if a table is missing (a
// *store.SchemaError) or if another pruner is at work (store.ErrPruning). Beside
// a later error stands what was done before it. If ctx ends, it stops between
// two batches, with the error of ctx.
func (p *Pruner) Run(ctx context.Context) (report Report, err error) {
	if err := p.check(ctx); err != nil {
		return report, fmt.Errorf("prune: %w", err)
	}
	token := rand.Text()
	if err := p.tables.Lease(ctx, token, lease); err != nil {
		return report, fmt.Errorf("prune: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
		defer cancel()
		// If it fails, the right ends by itself.
		_ = p.tables.Release(ctx, token)
	}()
	for _, r := range p.cfg.Policy.rules() {
		one := Result{Rows: r.rows, Keep: r.keep}
		began := time.Now()
		if r.keep != Forever {
			one.Removed, err = p.sweep(ctx, token, r, report.Removed())
		}
		one.Took = time.Since(began)
		report.Results = append(report.Results, one)
		if err != nil {
			return report, fmt.Errorf("prune: %w", err)
		}
	}
	return report, nil
}

func (p *Pruner) check(ctx context.Context) error {
	if err := p.cfg.Policy.Check(ctx); err != nil {
		return err
	}
	return p.tables.Check(ctx)
}

// sweep removes rows of one kind; others were removed before.
func (p *Pruner) sweep(ctx context.Context, token string, r rule, before int64) (removed int64, err error) {
	batch := store.PruneBatch{Rows: r.rows, Keep: r.keep, Token: token, Lease: lease, Size: p.cfg.Batch}
	for conflicts := 0; ; {
		began := time.Now()
		done, err := p.tables.Prune(ctx, batch)
		switch {
		case err == nil:
			conflicts = 0
		case p.tables.Classify(err) == store.ClassConflict && conflicts < maxConflicts:
			conflicts++
			if err := sleep(ctx, mathrand.N(time.Duration(conflicts)*10*time.Millisecond)); err != nil {
				return removed, err
			}
			continue
		default:
			return removed, err
		}
		removed += int64(done.Removed)
		if p.cfg.Progress != nil {
			p.cfg.Progress(Progress{Rows: r.rows, Removed: removed, Total: before + removed})
		}
		if !done.More {
			return removed, nil
		}
		batch.From = done.Next
		pause := max(p.cfg.Pause, time.Since(began))
		if done.Removed == 0 {
			pause = time.Since(began) // it has only read
		}
		if err := sleep(ctx, pause); err != nil {
			return removed, err
		}
	}
}

// DryRun returns what Run would remove at this moment, and removes nothing. It
// counts the rows, which takes time where there are many.
func (p *Pruner) DryRun(ctx context.Context) (report Report, err error) {
	if err := p.check(ctx); err != nil {
		return report, fmt.Errorf("count what to prune: %w", err)
	}
	for _, r := range p.cfg.Policy.rules() {
		one := Result{Rows: r.rows, Keep: r.keep}
		began := time.Now()
		if r.keep != Forever {
			if one.Removed, err = p.tables.Expired(ctx, r.rows, r.keep); err != nil {
				return report, err
			}
		}
		one.Took = time.Since(began)
		report.Results = append(report.Results, one)
	}
	return report, nil
}

// Every runs at once and then every so often, until ctx ends, and tells after
// each run. A run that finds another pruner at work is none: each of several
// instances of a service may call it.
func (p *Pruner) Every(ctx context.Context, every time.Duration, tell func(Report, error)) {
	for {
		report, err := p.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		if tell != nil && !errors.Is(err, store.ErrPruning) {
			tell(report, err)
		}
		if sleep(ctx, every) != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
