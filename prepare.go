package sekali

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sekali/sekali/deadletter"
)

// Commit changes business data, through tx alone, with what Prepare found out
// or had done. It may run several times, each time in a fresh transaction.
type Commit[Tx any] func(ctx context.Context, tx Tx) error

// Preparer is the part of the work that must not happen in a transaction, for
// it takes long or reaches outside the database: what it does there goes
// through an effect.Ledger, because a message may be prepared several times.
// It returns what is to run in the message's transaction; nil: nothing.
type Preparer[Tx any] func(ctx context.Context, m *Message) (Commit[Tx], error)

// errUnprepared is the error of a transaction whose message turned out to be
// fresh although it had looked like a duplicate before: its key's row has gone
// in between.
var errUnprepared = RetryAfter(errors.New("its key's row is gone: it is prepared first"), 0)

// prepareWork prepares messages, one after another: those of different lines
// side by side, as many as there are such workers. Then they wait for their
// transaction, which others may share.
func (c *Consumer[Tx]) prepareWork(ctx context.Context) {
	for {
		j := c.lanes.nextRaw()
		if j == nil {
			return
		}
		for _, j := range c.unheld(ctx, c.unexpired([]*job{j})) {
			c.prepareJob(ctx, j)
		}
		c.lanes.end([]*job{j})
	}
}

// prepareJob brings a message to its transaction, or has it wait.
func (c *Consumer[Tx]) prepareJob(ctx context.Context, j *job) {
	if j.revoked.Load() || c.stopping.Load() {
		return
	}
	err := c.beside(func() error { return c.prepareFresh(ctx, j) })
	if err == nil {
		j.unprepared = false
		return
	}
	pause, done := c.failed(ctx, j, err)
	c.settleStep(j, pause, done)
}

// beside calls f beside others' work.
func (c *Consumer[Tx]) beside(f func() error) error {
	inProcess.enter()
	defer inProcess.leave()
	return f()
}

// prepareFresh prepares a message unless it was processed before or is stale:
// those buy nothing.
func (c *Consumer[Tx]) prepareFresh(ctx context.Context, j *job) error {
	if c.cfg.Prepare == nil || j.prepared != nil {
		return nil
	}
	wanted, err := c.wanted(ctx, j)
	if err != nil || !wanted {
		return err
	}
	return c.prepare(ctx, j)
}

// prepare calls Prepare, once: what it returned stays for all transactions to
// come.
func (c *Consumer[Tx]) prepare(ctx context.Context, j *job) error {
	if c.cfg.Prepare == nil || j.prepared != nil {
		return nil
	}
	return guard(func() error {
		began, own := time.Now(), copies([]*job{j})
		var commit Commit[Tx]
		err := c.traced(ctx, own, func(ctx context.Context) (err error) {
			commit, err = c.cfg.Prepare(ctx, own[0])
			return err
		})
		if err != nil {
			return err
		}
		j.preparing = time.Since(began)
		if commit == nil {
			commit = func(context.Context, Tx) error { return nil }
		}
		j.prepared = commit
		return nil
	})
}

// commit runs in the transaction what Prepare returned.
func (c *Consumer[Tx]) commit(ctx context.Context, tx Tx, j *job) error {
	commit, ok := j.prepared.(Commit[Tx])
	if !ok {
		j.unprepared = true
		return errUnprepared
	}
	return commit(ctx, tx)
}

// preparers starts the workers that prepare. The function that it returns
// waits for them.
func (c *Consumer[Tx]) preparers(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	if c.cfg.Prepare != nil {
		for range c.cfg.MaxPrepares {
			running.Go(func() { c.prepareWork(ctx) })
		}
	}
	return running.Wait
}

// toPrepare marks messages that are to be prepared before their transaction.
// What is suspected of having killed a process is prepared with that noted,
// where it has its transaction.
func (c *Consumer[Tx]) toPrepare(jobs []*job) {
	if c.cfg.Prepare == nil {
		return
	}
	for _, j := range jobs {
		j.unprepared = j.bad == nil && !j.suspect()
	}
}

// isParked tells whether an error in err's tree says that an effect waits for
// a person.
func isParked(err error) bool {
	var p interface{ Parked() bool }
	return errors.As(err, &p) && p.Parked()
}

// parked makes a message a letter that goes on by itself when a person has
// decided about its effect.
func (c *Consumer[Tx]) parked(j *job, err error) {
	j.letter = c.letterOf(j, deadletter.Waiting, deadletter.Parked, err.Error())
	j.outages = 0
}
