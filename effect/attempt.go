package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// attempt is a Do that owns the row, or that found it over.
type attempt struct {
	l       *Ledger
	row     Row
	over    bool // succeeded: the result is there
	options options
	recover bool // what became of an earlier attempt is not known
}

// maxRaces is how often somebody else may be faster before a Do comes back
// later.
const maxRaces = 5

// begin takes the row, or says why not.
func (l *Ledger) begin(ctx context.Context, id ID, opts []Option) (*attempt, error) {
	if l.invalid != nil {
		return nil, l.invalid
	}
	if !validName(id.Name) {
		return nil, errName
	}
	a := &attempt{l: l}
	l.cfg.Recovery(&a.options)
	for _, o := range opts {
		o(&a.options)
	}
	for range maxRaces {
		row, ours, err := l.rows.Start(ctx, id, IdempotencyKey(id.Consumer, id.MessageKey, id.Name), l.cfg.Lease)
		if err != nil {
			return nil, err
		}
		a.row = row
		if ours {
			return a, nil
		}
		if done, err := a.found(); done || err != nil {
			return a, err
		}
		a.recover = row.State != Failed
		if a.row, ours, err = l.rows.Take(ctx, row, l.cfg.Lease); err != nil {
			return nil, err
		}
		if !ours {
			continue
		}
		if why := a.parks(row); why != "" {
			return nil, a.park(ctx, why)
		}
		return a, nil
	}
	return nil, &BusyError{Name: id.Name, After: time.Second}
}

// found says what a row that was there means: the effect is over, or it is not
// for us to go on with now. Else it is to be taken.
func (a *attempt) found() (done bool, err error) {
	r := a.row
	switch {
	case r.State == Succeeded:
		a.over = true
		return true, nil
	case r.State == Parked:
		return false, &ParkedError{Name: r.Name, Reason: r.Error}
	case r.State == Failed && r.Final:
		return false, &givenUp{r.Error}
	case r.State == Started && r.LeaseLeft > 0:
		return false, &BusyError{Name: r.Name, After: min(max(r.LeaseLeft/4, 100*time.Millisecond), 5*time.Second)}
	case r.State != Failed && a.options.lookup != nil:
		if after := max(a.options.after, a.l.cfg.Lease); r.SinceStart < after {
			return false, &BusyError{Name: r.Name, After: after - r.SinceStart}
		}
	}
	return false, nil
}

// parks tells why a row with an unknown outcome is parked; empty: it is not.
func (a *attempt) parks(before Row) string {
	switch o := a.options; {
	case !a.recover || o.lookup != nil:
		return ""
	case o.repeat == 0:
		return "its outcome is unknown" + because(before.Error)
	case before.SinceFirst >= o.repeat:
		return fmt.Sprintf("its outcome is unknown, and the provider may have forgotten the key: it was first called %v ago, and is repeated for %v%s",
			before.SinceFirst.Round(time.Second), o.repeat, because(before.Error))
	}
	return ""
}

func because(text string) string {
	if text == "" {
		return " (the process that called it ended)"
	}
	return ": " + text
}

func (a *attempt) park(ctx context.Context, why string) error {
	if err := a.end(ctx, Parked, nil, why); err != nil {
		return err
	}
	return &ParkedError{Name: a.row.Name, Reason: why}
}

// attemptOf makes the call, and records what became of it.
func attemptOf[T any](ctx context.Context, a *attempt, call func(context.Context, Call) (T, error)) (result T, err error) {
	c := Call{IdempotencyKey: a.row.IdempotencyKey, Attempt: a.row.Attempt, Repeats: a.options.repeat > 0}
	c.bind = func(ctx context.Context, fingerprint []byte) error { return a.l.rows.Bind(ctx, a.row, fingerprint) }
	calling, stop := a.keep(WithCall(ctx, c))
	returned := false
	defer func() {
		stop()
		if !returned { // it panicked, or ended its goroutine
			_ = a.end(ctx, Unknown, nil, "the call did not return")
		}
	}()
	found := false
	if a.recover && a.options.lookup != nil {
		look, ok := a.options.lookup.(lookup[T])
		if !ok {
			returned = true
			return result, errors.Join(fmt.Errorf("its Lookup returns another type than its call"), a.end(ctx, Unknown, nil, a.row.Error))
		}
		if result, found, err = look(calling, c); err != nil {
			err = fmt.Errorf("look up: %w", err)
			returned = true
			return result, errors.Join(err, a.end(ctx, Unknown, nil, err.Error()))
		}
	}
	if !found {
		a.recover = a.recover && a.options.lookup == nil // which is sure
		result, err = call(calling, c)
	}
	returned = true
	stop()
	return conclude(ctx, a, result, err)
}

// conclude records the outcome of a call.
func conclude[T any](ctx context.Context, a *attempt, result T, err error) (T, error) {
	var none T
	var not *notDone
	switch {
	case errors.As(err, &not) && !a.recover:
		return none, joined(err, a.end(ctx, Failed, nil, err.Error()))
	case errors.Is(err, ErrOtherRequest):
		// Nothing was sent this time; what was sent before is as unknown as it was.
		return none, joined(&unreadable{err}, a.end(ctx, Unknown, nil, err.Error()))
	case err != nil: // also that this attempt did nothing: an earlier one may have
		return none, joined(err, a.end(ctx, Unknown, nil, err.Error()))
	}
	data, err := json.Marshal(result)
	if err != nil {
		return none, a.park(ctx, fmt.Sprintf("it succeeded, but its result cannot be recorded: %v", err))
	}
	if err := a.end(ctx, Succeeded, data, ""); err != nil {
		return none, fmt.Errorf("record that it succeeded: %w", err)
	}
	return result, nil
}

// joined keeps what err says of itself (Permanent, RetryAfter), and adds why
// the outcome could not be recorded.
func joined(err, ending error) error {
	if ending == nil {
		return err
	}
	return errors.Join(err, ending)
}

// end records the end of an attempt, whatever became of ctx. It tries again
// while the database is not there: what the call did is known to us alone.
func (a *attempt) end(ctx context.Context, to State, result []byte, text string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	for {
		err := a.l.rows.End(ctx, a.row, to, result, text)
		if err == nil || errors.Is(err, ErrStale) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("record that it is %s: %w", to, err)
		case <-time.After(endPause):
		}
	}
}

// errLeaseLost is the cause with which the context of a call ends that must
// not go on.
var errLeaseLost = fmt.Errorf("the lease of the effect could not be kept: %w", ErrStale)

// keep renews the lease until stop is called. The context that it returns ends
// when the lease is lost, or may be.
func (a *attempt) keep(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	lease := a.l.cfg.Lease
	until := time.Now().Add(lease)
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			asked := time.Now()
			extending, done := context.WithDeadline(ctx, until)
			ours, err := a.l.rows.Extend(extending, a.row, lease)
			done()
			switch {
			case err == nil && ours:
				until = asked.Add(lease)
			case err == nil || !time.Now().Before(until):
				cancel(errLeaseLost)
				return
			}
		}
	})
	return ctx, sync.OnceFunc(func() {
		cancel(nil)
		running.Wait()
	})
}
