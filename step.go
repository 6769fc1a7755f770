package sekali

import (
	"context"
	"errors"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// step brings a job one attempt further. It returns true when the message is
// done with and to be acknowledged: its effect is committed, it is a
// duplicate, or its dead letter is written. Else it returns the pause before
// the next step.
func (c *Consumer[Tx]) step(ctx context.Context, j *job) (pause time.Duration, done bool) {
	if j.letter != nil {
		return c.bury(ctx, j)
	}
	if j.bad != nil {
		return c.condemn(ctx, j, j.reason, j.bad)
	}
	began := time.Now()
	states, err := c.attempt(ctx, j)
	if err != nil {
		return c.failed(ctx, j, err)
	}
	outcome := outcomeFor(j, states[0])
	if states[0] == store.Fresh {
		c.committed(1, c.now()-j.handled)
	}
	c.finished(ctx, []*job{j}, states, began)
	if outcome == Conflict {
		return c.condemn(ctx, j, deadletter.Conflict, ErrConflict)
	}
	if j.redrive != nil && outcome == Duplicate {
		return c.resolve(ctx, j, outcome)
	}
	return 0, true
}

// failed decides what an error of an attempt means for the message.
func (c *Consumer[Tx]) failed(ctx context.Context, j *job, err error) (time.Duration, bool) {
	var crashed *crashError
	if errors.As(err, &crashed) {
		j.attempts = crashed.times
		return c.condemn(ctx, j, deadletter.Crashed, err)
	}
	what := judge(c.cfg.Store.Classify, err)
	if what == blameSurvived {
		j.attempts++
		return c.condemn(ctx, j, deadletter.Survived, err)
	}
	if what == blameMessage && errors.Is(err, ErrTooOld) {
		return c.condemn(ctx, j, deadletter.TooOld, err)
	}
	if errors.Is(err, deadletter.ErrNotOurs) {
		// Somebody else has the letter, or has resolved it.
		c.observe(Event{Kind: Expired, Message: &j.message})
		return 0, true
	}
	if isParked(err) {
		c.parked(j, err)
		return c.bury(ctx, j)
	}
	if ctx.Err() != nil {
		// The stop has run out of patience and cancelled the handler: not the
		// message's fault. It is given back.
		return 0, false
	}
	switch what {
	case blameConflict:
		if j.conflicts++; j.conflicts < c.cfg.MaxConflicts {
			pause := conflictBackoff.after(j.conflicts)
			c.observe(Event{Kind: Conflicted, Message: &j.message, Err: err, Pause: pause})
			return pause, false
		}
		j.conflicts = 0
	case blameDatabase:
		return c.interrupted(j, err), false
	case blameLater:
		pause, _ := retryAfter(err)
		c.observe(Event{Kind: AttemptFailed, Message: &j.message, Attempt: j.attempts, Err: err, Pause: pause})
		return pause, false
	case blamePermanent:
		j.attempts++
		return c.condemn(ctx, j, deadletter.Permanent, err)
	}
	j.conflicts, j.outages = 0, 0
	j.attempts++
	if j.attempts >= c.cfg.MaxAttempts {
		return c.condemn(ctx, j, deadletter.Exhausted, err)
	}
	pause := c.cfg.Backoff.after(j.attempts)
	c.observe(Event{Kind: AttemptFailed, Message: &j.message, Attempt: j.attempts, Err: err, Pause: pause})
	return pause, false
}

// interrupted: the database is not there. The lane waits, nothing is
// acknowledged, nothing counts.
func (c *Consumer[Tx]) interrupted(j *job, err error) time.Duration {
	j.outages++
	pause := outageBackoff.after(j.outages)
	c.observe(Event{Kind: Interrupted, Message: &j.message, Err: err, Pause: pause})
	return pause
}

// condemn makes a message a dead letter, from now on: its handler is not
// called again.
func (c *Consumer[Tx]) condemn(ctx context.Context, j *job, reason deadletter.Reason, err error) (time.Duration, bool) {
	var p *PanicError
	text := err.Error()
	if errors.As(err, &p) {
		text += "\n" + string(p.Stack)
	}
	j.letter = c.letterOf(j, deadletter.Open, reason, text)
	j.outages = 0
	return c.bury(ctx, j)
}

func (c *Consumer[Tx]) letterOf(j *job, status deadletter.Status, reason deadletter.Reason, text string) *deadletter.Letter {
	return &deadletter.Letter{
		Consumer: c.cfg.StoredName, Key: j.message.key, OrderingKey: j.order, Reason: reason, Error: text,
		Message: j.delivery.Message, Attempts: j.attempts, Status: status,
	}
}

// letterTimeout bounds the writing of a dead letter. A stop does not cut it
// short: a claim that survived its rollback is known to this letter alone.
const letterTimeout = 10 * time.Second

// bury writes a job's dead letter. Until that has worked, the message is not
// acknowledged.
func (c *Consumer[Tx]) bury(ctx context.Context, j *job) (time.Duration, bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), letterTimeout)
	defer cancel()
	put := c.cfg.DeadLetters.Put
	if j.redrive != nil {
		put = func(ctx context.Context, l deadletter.Letter) error {
			return c.redrives.letters.Reopen(ctx, *j.redrive, l)
		}
	}
	if err := put(ctx, *j.letter); err != nil && !errors.Is(err, deadletter.ErrNotOurs) {
		j.outages++
		pause := outageBackoff.after(j.outages)
		c.observe(Event{Kind: DeadLetterFailed, Message: &j.message, Reason: j.letter.Reason, Err: err, Pause: pause})
		return pause, false
	}
	c.observe(Event{
		Kind: DeadLettered, Message: &j.message, Reason: j.letter.Reason, Attempt: j.letter.Attempts,
		Err: errors.New(j.letter.Error),
	})
	return 0, true
}
