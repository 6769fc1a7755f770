package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/retention"
	"github.com/sekali/sekali/store"
)

// policy is what the file says of retention.
func (p *Plan) policy(source broker.Source) retention.Policy {
	r := p.File.Retention
	policy := retention.Policy{Keys: r.Keep, MaxDuplicateAge: r.MaxDuplicateAge, LettersElsewhere: r.LettersElsewhere}
	if source != nil {
		policy.Sources = []broker.Source{source}
	}
	return policy
}

// retentionProblem is what is wrong with the policy.
func (p *Plan) retentionProblem(err error) config.Problems {
	mend := ""
	if errors.Is(err, retention.ErrUnlimited) {
		mend = "add max_duplicate_age to retention: how long after its publication a message can come again, by whatever way"
	}
	return config.Problems{{Pos: p.File.Retention.Pos, Field: "retention", Cause: err.Error(), Mend: mend}}
}

// prune removes what is not kept, every now and then, if the file wants it.
func prune[Tx any](ctx context.Context, e *engine, s store.Store[Tx], source broker.Source) error {
	p := e.plan
	if !p.File.Retention.Given {
		return nil
	}
	policy := p.policy(source)
	switch err := policy.Check(ctx); {
	case errors.Is(err, retention.ErrTooShort), errors.Is(err, retention.ErrUnlimited):
		return p.retentionProblem(err)
	case ctx.Err() != nil:
		return nil
	case err != nil: // the broker is not there, and is asked again each time
		e.options.Log.Warn("sekali: how long the broker keeps messages is not known yet", "error", err)
	}
	pruner, err := retention.New(s, retention.Config{Policy: policy})
	if err != nil {
		return p.retentionProblem(err)
	}
	pruner.Every(ctx, p.File.Retention.Every, e.pruned())
	return nil
}

// pruned is told what was removed.
func (e *engine) pruned() func(retention.Report, error) {
	logged := prunedLog(e.options.Log)
	if e.telemetry == nil {
		return logged
	}
	return func(r retention.Report, err error) {
		logged(r, err)
		e.telemetry.Pruned(r, err)
	}
}

// prunedLog tells what was removed.
func prunedLog(log *slog.Logger) func(retention.Report, error) {
	return func(r retention.Report, err error) {
		switch {
		case errors.Is(err, store.ErrPruning), errors.Is(err, context.Canceled):
		case err != nil:
			log.Warn("sekali: old rows are not removed", "error", err)
		case r.Removed() > 0:
			log.Info("sekali: old rows are removed", "rows", r.Removed())
		}
	}
}

// checkRetention finds what can be seen without the broker.
func checkRetention[Tx any](p *Plan, s store.Store[Tx]) error {
	if !p.File.Retention.Given {
		return nil
	}
	if _, err := retention.New(s, retention.Config{Policy: p.policy(nil)}); err != nil {
		return fmt.Errorf("%w", errors.Unwrap(err))
	}
	return nil
}
