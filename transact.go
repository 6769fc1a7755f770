package sekali

import (
	"context"
	"errors"

	"github.com/sekali/sekali/store"
)

// transact is the heart: one transaction that claims the keys of c and calls
// run for each one that is fresh, in their order, with the index of the key.
//
// Without an error, what the states say is durable. With an error nothing is,
// unless it is ErrCommitUnknown or ErrKeySurvived. It never swallows a panic:
// the claim is rolled back on its way out.
func transact[Tx any](ctx context.Context, s store.Store[Tx], c store.Claim,
	run func(ctx context.Context, tx Tx, i int) error,
) ([]store.State, error) {
	tx, states, err := s.Begin(ctx, c)
	if err != nil {
		return nil, err
	}
	return within(ctx, s, tx, states, run)
}

// within is transact after Begin.
func within[Tx any](ctx context.Context, s store.Store[Tx], tx Tx, states []store.State,
	run func(ctx context.Context, tx Tx, i int) error,
) ([]store.State, error) {
	var err error
	over := false
	defer func() {
		if !over { // run panicked or ended its goroutine
			_ = s.Rollback(ctx, tx)
		}
	}()
	fresh := false
	for i := range states {
		if states[i] != store.Fresh {
			continue
		}
		fresh = true
		if err = run(ctx, tx, i); err != nil {
			break
		}
	}
	over = true
	if err != nil {
		// The rollback tells two things that the handler's error may not: that
		// the connection is lost, and that the claim is durable all the same.
		return states, errors.Join(err, s.Rollback(ctx, tx))
	}
	if !fresh {
		// Nothing was changed, so nothing depends on how this ends.
		_ = s.Rollback(ctx, tx)
		return states, nil
	}
	if err := s.Commit(ctx, tx); err != nil {
		return states, err
	}
	return states, nil
}

// outcomeOf translates a state that transact returned without an error.
func outcomeOf(s store.State) Outcome {
	switch s {
	case store.Fresh:
		return Processed
	case store.Conflict:
		return Conflict
	default:
		return Duplicate
	}
}

// outcomeFor is outcomeOf for a message of a Consumer.
func outcomeFor(j *job, s store.State) Outcome {
	if s == store.Fresh && j.stale {
		return Stale
	}
	return outcomeOf(s)
}

// blame says what is to be done about an error of transact.
type blame uint8

const (
	blameMessage   blame = iota // it counts as an attempt
	blameConflict               // run it again at once, in a fresh transaction
	blameDatabase               // wait until the database is back, then run it again
	blameSurvived               // never run it again: the claim is durable
	blameLater                  // the handler asked to wait; not counted
	blamePermanent              // no further attempt
)

// judge finds whose fault an error is. What is never the message's fault is
// asked first: an error that says "permanent" may well wrap a deadlock.
func judge(classify func(error) store.Class, err error) blame {
	switch {
	case errors.Is(err, store.ErrKeySurvived):
		return blameSurvived
	case errors.Is(err, store.ErrCommitUnknown):
		return blameDatabase
	}
	switch classify(err) {
	case store.ClassConflict:
		return blameConflict
	case store.ClassUnavailable, store.ClassMisconfigured:
		return blameDatabase
	}
	if isPermanent(err) {
		return blamePermanent
	}
	if _, later := retryAfter(err); later {
		return blameLater
	}
	return blameMessage
}
