package sekali

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// process brings jobs that next returned one step further. Those that share a
// transaction are committed together. If one of them fails, what came before
// it is committed, it gets a transaction of its own, and the others go on, but
// not those behind it in its line. So each handler runs once more at most for
// somebody else's failure.
//
// It returns false if it did not get through, because the Consumer stops: what
// comes after these jobs must not overtake them.
func (c *Consumer[Tx]) process(ctx context.Context, jobs []*job) bool {
	for len(jobs) > 0 {
		if ctx.Err() != nil || c.stopping.Load() {
			return false
		}
		switch jobs = movable(jobs); {
		case len(jobs) == 0:
			return true
		case len(jobs) == 1, c.knownTooOld(jobs[0]):
			c.single(ctx, jobs[0])
			jobs = jobs[1:]
			continue
		}
		n, bad, err := c.transaction(ctx, jobs)
		switch {
		case err == nil:
			c.acknowledge(jobs[:n])
			jobs = jobs[n:]
		case bad != nobody && faulty(c.cfg.Store.Classify, err):
			if !c.process(ctx, jobs[:bad]) {
				return false
			}
			if jobs = jobs[bad:]; !jobs[0].in.stuck {
				c.single(ctx, jobs[0])
				jobs = jobs[1:]
			}
		default:
			again, through := c.trouble(ctx, jobs, err)
			if !through {
				return false
			}
			jobs = again
		}
	}
	return true
}

// faulty tells that an error is the doing of the message whose handler
// returned it, and not of rivals or of a database that is not there.
func faulty(classify func(error) store.Class, err error) bool {
	switch judge(classify, err) {
	case blameConflict, blameDatabase, blameSurvived:
		return false
	}
	return true
}

// movable leaves out jobs whose line is stuck or whose lane was revoked.
func movable(jobs []*job) []*job {
	gone := func(j *job) bool { return j.in.stuck || j.revoked.Load() }
	if !slices.ContainsFunc(jobs, gone) {
		return jobs
	}
	return slices.DeleteFunc(slices.Clone(jobs), gone)
}

// single brings a job one step further, alone in its transaction.
func (c *Consumer[Tx]) single(ctx context.Context, j *job) {
	pause, done := c.step(ctx, j)
	c.settleStep(j, pause, done)
}

// settleStep ends a step of a message: it is done with, or waits.
func (c *Consumer[Tx]) settleStep(j *job, pause time.Duration, done bool) {
	switch {
	case done:
	case c.delayer.takes(j, pause) && !c.stopping.Load():
		j.done = true
		j.from.settle.add(broker.Settlement{Delivery: j.delivery, Action: broker.Retry, Delay: pause})
		return
	default:
		hold([]*job{j}, pause)
		return
	}
	c.acknowledge([]*job{j})
	if j.letter != nil && c.holder != nil {
		hold([]*job{j}, 0) // those behind it have to be looked at anew
	}
}

// nobody is the index of the one at fault if that is not known.
const nobody = -1

// transaction gives several messages their effects in one transaction, and
// returns how many of them are done with: all, unless handlers were slow.
// After an error nothing was done, and bad is the index of the one at fault.
func (c *Consumer[Tx]) transaction(ctx context.Context, jobs []*job) (n, bad int, err error) {
	inProcess.enter()
	defer inProcess.leave()
	began := time.Now()
	tx, states, err := c.cfg.Store.Begin(ctx, c.claimFor(jobs))
	if err != nil {
		return 0, nobody, err
	}
	fresh := make([]int, 0, len(jobs))
	for i, s := range states {
		jobs[i].fresh = s == store.Fresh
		switch s {
		case store.Fresh:
			fresh = append(fresh, i)
		case store.Conflict: // it becomes a dead letter, alone
			return 0, i, errors.Join(ErrConflict, c.cfg.Store.Rollback(ctx, tx))
		}
	}
	if len(fresh) == 0 {
		_ = c.cfg.Store.Rollback(ctx, tx) // nothing was changed
		c.finished(ctx, jobs, states, began)
		return len(jobs), nobody, nil
	}
	if bad, err := c.tooOld(ctx, tx, pick(jobs, fresh)...); err != nil {
		if bad != nobody { // it becomes a dead letter, alone
			bad = fresh[bad]
		}
		return 0, bad, errors.Join(err, c.cfg.Store.Rollback(ctx, tx))
	}
	ran, bad, err := c.handle(ctx, tx, pick(jobs, fresh), began.Add(c.cfg.Batch.MaxOpen))
	if err != nil {
		if bad != nobody {
			bad = fresh[bad]
		}
		return 0, bad, errors.Join(err, c.cfg.Store.Rollback(ctx, tx))
	}
	n = len(jobs)
	if ran < len(fresh) {
		n = fresh[ran]
		if err := c.unclaimer.Unclaim(ctx, tx, c.claimFor(pick(jobs, fresh[ran:]))); err != nil {
			return 0, nobody, errors.Join(err, c.cfg.Store.Rollback(ctx, tx))
		}
	}
	handled := time.Now()
	if err := c.cfg.Store.Commit(ctx, tx); err != nil {
		return 0, nobody, err
	}
	c.pace.went(ran, time.Since(began))
	c.committed(n, time.Since(handled))
	c.finished(ctx, jobs[:n], states, began)
	return n, nobody, nil
}

func pick[T any](jobs []T, indexes []int) []T {
	if len(indexes) == len(jobs) {
		return jobs
	}
	some := make([]T, len(indexes))
	for i, at := range indexes {
		some[i] = jobs[at]
	}
	return some
}

// handle calls what changes the user's data, and returns through how many
// messages it got before the time was over, all if it cannot be stopped
// between two; or whose fault an error is.
func (c *Consumer[Tx]) handle(ctx context.Context, tx Tx, jobs []*job, until time.Time) (ran, bad int, err error) {
	var messages []*Message
	if c.cfg.Prepare == nil || c.tracer != nil {
		messages = copies(jobs)
	}
	var live []int // for HandleBatch: those that are not stale
	err = guard(func() error {
		if c.cfg.HandleBatch != nil {
			var err error
			if live, err = c.current(ctx, tx, jobs); err != nil {
				return err
			}
			ran = len(messages)
			if len(live) == 0 {
				return nil
			}
			return c.handleBatch(ctx, tx, jobs, live, messages)
		}
		for at := time.Now(); ran < len(jobs); ran++ {
			if ran > 0 && c.endEarly(at, until) {
				break
			}
			if at, err = c.handleOne(ctx, tx, jobs[ran], one(messages, ran), at); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return ran, nobody, nil
	}
	var at *store.FailedAt
	switch {
	case c.cfg.HandleBatch == nil:
		return 0, ran, err
	case errors.As(err, &at) && at.Index >= 0 && at.Index < len(live):
		return 0, live[at.Index], err
	}
	return 0, nobody, err
}

// one returns the message at i alone; nil if there are none.
func one(messages []*Message, i int) []*Message {
	if messages == nil {
		return nil
	}
	return messages[i : i+1]
}

// handleOne changes the user's data for a message, unless it is stale, and
// returns what time it is then; it was now.
func (c *Consumer[Tx]) handleOne(ctx context.Context, tx Tx, j *job, message []*Message, now time.Time) (time.Time, error) {
	j.handling = 0
	stale, err := c.advance(ctx, tx, j)
	if stale || err != nil {
		return time.Now(), err
	}
	if j.versioned {
		now = time.Now()
	}
	err = c.traced(ctx, message, func(ctx context.Context) error {
		if c.cfg.Prepare != nil {
			return c.commit(ctx, tx, j)
		}
		return c.cfg.Handle(ctx, tx, message[0])
	})
	end := time.Now()
	j.handling = j.preparing + end.Sub(now)
	return end, err
}

// handleBatch does it for those of messages that are live, at once.
func (c *Consumer[Tx]) handleBatch(ctx context.Context, tx Tx, jobs []*job, live []int, messages []*Message) error {
	began, some := time.Now(), pick(messages, live)
	err := c.traced(ctx, some, func(ctx context.Context) error { return c.cfg.HandleBatch(ctx, tx, some) })
	share := time.Since(began) / time.Duration(len(live))
	for _, i := range live {
		jobs[i].handling = share
	}
	return err
}

// endEarly tells whether a batch is to be committed before its last handler:
// its time is over, or somebody waits for what is in work.
func (c *Consumer[Tx]) endEarly(now, until time.Time) bool {
	return c.unclaimer != nil && (c.stopping.Load() || c.revoking.Load() > 0 || now.After(until))
}

// trouble is for a transaction of several messages that failed without one of
// them being known to be at fault. It returns those that are to be tried again
// at once, and false like process.
func (c *Consumer[Tx]) trouble(ctx context.Context, jobs []*job, err error) (again []*job, through bool) {
	switch judge(c.cfg.Store.Classify, err) {
	case blameConflict:
		c.pace.conflict()
		pause := conflictBackoff.after(4)
		c.observe(Event{Kind: Conflicted, Message: &jobs[0].message, Err: err, Pause: pause, Count: len(jobs)})
		hold(jobs, pause)
		return nil, true
	case blameDatabase:
		for _, j := range jobs {
			j.outages++
		}
		pause := outageBackoff.after(jobs[0].outages)
		c.observe(Event{Kind: Interrupted, Message: &jobs[0].message, Err: err, Pause: pause, Count: len(jobs)})
		hold(jobs, pause)
		return nil, true
	case blameSurvived:
		// Which of them did it cannot be told, and those that had not run
		// would be duplicates from now on.
		for _, j := range jobs {
			if !j.fresh {
				continue // it was processed before, and will be found to be
			}
			j.attempts++
			pause, done := c.condemn(ctx, j, deadletter.Survived, err)
			if done {
				c.acknowledge([]*job{j})
			} else {
				hold([]*job{j}, pause)
			}
		}
		return nil, true
	}
	// One of them it must be: halves tell which.
	half := len(jobs) / 2
	return jobs[half:], c.process(ctx, jobs[:half])
}

// hold has the lines of jobs wait.
func hold(jobs []*job, pause time.Duration) {
	for _, j := range jobs {
		j.in.stuck, j.in.pause = true, pause
	}
}

// committed tells the Observer of a transaction that gave n messages their
// effects, and how long its commit took.
func (c *Consumer[Tx]) committed(n int, took time.Duration) {
	c.observe(Event{Kind: Committed, Count: n, Duration: took})
}

// finished tells the Observer of messages that are committed, or were before.
func (c *Consumer[Tx]) finished(ctx context.Context, jobs []*job, states []store.State, began time.Time) {
	took := time.Since(began)
	ages := c.ages(ctx, jobs, states)
	for i, j := range jobs {
		e := Event{Kind: Finished, Message: &j.message, Outcome: outcomeFor(j, states[i]), Duration: took}
		switch e.Outcome {
		case Processed:
			e.Handling = j.handling
			c.mine.add(j.message.key)
		case Duplicate:
			e.Age = ages[j]
			e.Cause = c.causeOf(j, e.Age)
		}
		c.observe(e)
	}
}

func (c *Consumer[Tx]) claimFor(jobs []*job) store.Claim {
	keys := make([]store.Key, len(jobs))
	for i, j := range jobs {
		keys[i] = store.Key{Raw: j.message.key, Fingerprint: j.fingerprint}
	}
	return store.Claim{Consumer: c.cfg.StoredName, Keys: keys, Force: len(jobs) == 1 && c.forced(jobs[0])}
}

// takeKeys takes the keys, fingerprints and ordering keys of messages, once.
// The extractors get copies: they are the user's.
func (c *Consumer[Tx]) takeKeys(jobs []*job) {
	mine := copies(jobs)
	forOrder := mine
	if c.cfg.Order != nil {
		forOrder = copies(jobs)
	}
	for i := 0; i < len(jobs); i++ {
		err := guard(func() error {
			for ; i < len(jobs); i++ {
				if err := c.takeKey(jobs[i], mine[i], forOrder[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			jobs[i].bad = err
		}
	}
}

// takeKey is takeKeys for one of them. An error is the message's.
func (c *Consumer[Tx]) takeKey(j *job, m, forOrder *Message) (err error) {
	j.reason = deadletter.NoKey
	if m.key, err = takeKey(c.cfg.StoredName, c.cfg.Key, m); err != nil {
		return fmt.Errorf("take the key: %w", err)
	}
	if c.cfg.Fingerprint != nil {
		j.fingerprint = c.cfg.Fingerprint(m)
	}
	j.message.key = m.key
	j.reason = deadletter.Permanent
	if j.published = j.delivery.Message.PublishedAt; c.cfg.PublishedAt != nil {
		j.published = c.cfg.PublishedAt(m)
	}
	if err := c.takeVersion(j, m); err != nil {
		return err
	}
	if c.cfg.Order != nil {
		forOrder.key = m.key
		j.order = c.cfg.Order(forOrder)
	} else if key := j.delivery.Message.OrderingKey; key != nil {
		j.order = JoinKey(j.delivery.Message.Topic, string(key))
	}
	return nil
}
