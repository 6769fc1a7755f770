package sekali

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// A message that kills the process (os.Exit, a fatal error of the runtime, all
// the memory) comes back for ever, and takes with it whatever else was in work.
// Brokers' counts cannot tell it from its neighbours, which came back as often.
//
// So a message that the broker says may have come before is treated with care,
// in two steps. First, that its handler starts is recorded, durably, before it
// starts, and forgotten with the claim's commit: what a process leaves behind
// when it dies is a short list of what it was in the middle of. A message that
// is found on the list runs alone in the process, and each such lone start
// that does not end counts: it was this message. On the normal path nothing is
// written.

var errCrashes = errors.New("each time its handler was started with nothing else in work, the process died")

const (
	// alonePatience is how long a suspect waits to be alone, and then for its
	// claim, before it lets others go on and tries again later.
	alonePatience = 2 * time.Second
	alonePause    = 3 * time.Second

	preparePatience = 30 * time.Second
	startsTimeout   = 10 * time.Second
)

// attempt gives a message its effect, or says why it could not.
func (c *Consumer[Tx]) attempt(ctx context.Context, j *job) ([]store.State, error) {
	if c.starts == nil || !j.suspect() {
		return c.together(ctx, j, false)
	}
	recorded, lone, err := c.starts.Look(ctx, c.cfg.StoredName, j.message.key)
	switch {
	case err != nil:
		return nil, err
	case !recorded:
		return c.firstTime(ctx, j)
	case lone >= c.cfg.MaxCrashes:
		return nil, &crashError{lone}
	}
	return c.alone(ctx, j)
}

// crashError condemns a message.
type crashError struct{ times int }

func (e *crashError) Error() string { return fmt.Sprintf("%v, %d times", errCrashes, e.times) }
func (e *crashError) Unwrap() error { return errCrashes }

// together runs a message beside others.
func (c *Consumer[Tx]) together(ctx context.Context, j *job, recorded bool) ([]store.State, error) {
	inProcess.enter()
	defer inProcess.leave()
	tx, states, err := c.cfg.Store.Begin(ctx, c.claimFor([]*job{j}))
	if err != nil {
		return nil, err
	}
	return within(ctx, c.cfg.Store, tx, states, c.handler(j, recorded))
}

// handler calls the user's handler on a copy of the message, and if its start
// was recorded, forgets that in the same transaction.
func (c *Consumer[Tx]) handler(j *job, recorded bool) func(ctx context.Context, tx Tx, _ int) error {
	return func(ctx context.Context, tx Tx, _ int) error {
		if _, err := c.tooOld(ctx, tx, j); err != nil {
			return err
		}
		if j.redrive != nil {
			status := deadletter.Processed
			stale, err := c.advance(ctx, tx, j)
			if stale {
				status = deadletter.Stale
			}
			if err == nil { // before the handler: what is no longer ours need not run
				err = c.redrives.letters.ResolveIn(ctx, tx, *j.redrive, status)
			}
			if err != nil {
				return err
			}
		}
		_, _, err := c.handle(ctx, tx, []*job{j}, time.Time{})
		if err == nil && recorded {
			err = c.starts.EndIn(ctx, tx, c.cfg.StoredName, j.message.key)
		}
		j.handled = c.now()
		return err
	}
}

// firstTime: the broker hints, but no process died in the middle of it that
// would have recorded it.
func (c *Consumer[Tx]) firstTime(ctx context.Context, j *job) ([]store.State, error) {
	wanted, err := c.wanted(ctx, j)
	if err != nil {
		return nil, err
	}
	if !wanted {
		return c.together(ctx, j, false) // which finds the same, with a lock
	}
	if _, err := c.starts.Start(ctx, c.cfg.StoredName, j.message.key, false); err != nil {
		return nil, err
	}
	var states []store.State
	if err = c.beside(func() error { return c.prepare(ctx, j) }); err == nil {
		states, err = c.together(ctx, j, true)
	}
	if err != nil || states[0] != store.Fresh {
		c.outlived(ctx, c.starts.End, j)
	}
	return states, err
}

// alone runs a message with nothing else in work in the process, and counts
// its start until it has ended.
func (c *Consumer[Tx]) alone(ctx context.Context, j *job) ([]store.State, error) {
	patience := alonePatience
	if c.cfg.Prepare != nil {
		patience = preparePatience // others may wait for a provider
	}
	if !inProcess.enterAlone(patience) {
		return nil, RetryAfter(errors.New("it must run alone, and others do not come to an end"), alonePause)
	}
	defer inProcess.leaveAlone()
	n, err := c.starts.Start(ctx, c.cfg.StoredName, j.message.key, true)
	if err != nil {
		return nil, err
	}
	c.observe(Event{Kind: Suspected, Message: &j.message, Attempt: n})
	if err := c.prepareFresh(ctx, j); err != nil {
		c.outlived(ctx, c.starts.TakeBack, j)
		return nil, err
	}
	// A rival may hold the key for long; nobody else works meanwhile.
	claiming, cancel := context.WithTimeout(ctx, alonePatience)
	tx, states, err := c.cfg.Store.Begin(claiming, c.claimFor([]*job{j}))
	cancel()
	if err != nil {
		c.outlived(ctx, c.starts.TakeBack, j)
		if claiming.Err() != nil && ctx.Err() == nil && c.cfg.Store.Classify(err) == store.ClassFailed {
			err = RetryAfter(fmt.Errorf("wait for its key: %w", err), alonePause)
		}
		return nil, err
	}
	states, err = within(ctx, c.cfg.Store, tx, states, c.handler(j, true))
	switch {
	case err != nil:
		c.outlived(ctx, c.starts.TakeBack, j)
	case states[0] != store.Fresh:
		c.outlived(ctx, c.starts.End, j)
	}
	return states, err
}

// outlived corrects what is recorded: the process lives. If that fails, one
// start too many stays recorded, until the message is processed.
func (c *Consumer[Tx]) outlived(ctx context.Context, correct func(context.Context, string, string) error, j *job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startsTimeout)
	defer cancel()
	if err := correct(ctx, c.cfg.StoredName, j.message.key); err != nil {
		c.observe(Event{Kind: Interrupted, Message: &j.message, Err: fmt.Errorf("correct the starts that are recorded: %w", err)})
	}
}
