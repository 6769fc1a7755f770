package sekali

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// A redrive comes to the Consumer like a delivery, from a source of its own
// beside the broker's, and stands in the line of its ordering key. What is
// different is how it ends: the letter is resolved in the transaction of the
// claim, so that there is nothing left to acknowledge.

const (
	// redriveLease is how long a letter that was taken stays ours without a
	// sign of life.
	redriveLease = 30 * time.Second
	// redrivesAtOnce bounds how many are taken together.
	redrivesAtOnce = 100
)

// redrives is the broker.Source of the letters that are to be processed.
type redrives[Tx any] struct {
	letters  deadletter.Source[Tx]
	consumer string
	every    time.Duration
	starts   store.Starts[Tx] // nil: none are recorded

	settled chan struct{} // holds a token when one of ours is done: the next of its key may be due
	soon    bool          // do not wait: there may be more
}

func newRedrives[Tx any](letters deadletter.Source[Tx], consumer string, every time.Duration, starts store.Starts[Tx]) *redrives[Tx] {
	return &redrives[Tx]{letters: letters, consumer: consumer, every: every, starts: starts, settled: make(chan struct{}, 1), soon: true}
}

// Receive implements broker.Source.
func (r *redrives[Tx]) Receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	for {
		if !r.soon {
			timer := time.NewTimer(r.every)
			select {
			case <-ctx.Done():
			case <-timer.C:
			case <-r.settled:
			}
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.soon = false
		began := time.Now()
		taken, err := r.letters.Take(ctx, r.consumer, min(most, redrivesAtOnce), redriveLease)
		if err != nil {
			return nil, err
		}
		if len(taken) == 0 {
			continue
		}
		r.soon = true
		if err := r.reset(ctx, taken); err != nil {
			return nil, errors.Join(err, r.letters.Release(context.WithoutCancel(ctx), taken))
		}
		return deliveriesOf(taken, began), nil
	}
}

// reset has crashes counted anew, once for each redrive: what a process that
// died leaves behind must not be forgotten.
func (r *redrives[Tx]) reset(ctx context.Context, taken []deadletter.Redrive) error {
	for i := range taken {
		if key := redriveKey(&taken[i]); r.starts != nil && taken[i].Takes == 1 && key != "" {
			if err := r.starts.End(ctx, r.consumer, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// redriveKey is the message key under which a letter is to be processed; empty
// if the extractor has to take it.
func redriveKey(r *deadletter.Redrive) string {
	if r.Key != "" {
		return r.Key
	}
	return r.Letter.Key
}

// deliveriesOf makes deliveries of letters that were taken at a time. One that
// has had its handler called in vain, or in which a process may have died, is
// treated with care; a held one has not.
func deliveriesOf(taken []deadletter.Redrive, at time.Time) []*broker.Delivery {
	deliveries := make([]*broker.Delivery, len(taken))
	for i := range taken {
		r := &taken[i]
		deliveries[i] = &broker.Delivery{
			Message: r.Letter.Message, Handle: r,
			Redelivered: r.Letter.Status != deadletter.Held || r.Takes > 1,
		}
		deliveries[i].Extend(redriveLease - time.Since(at))
	}
	return deliveries
}

// redriveOf returns the redrive of a delivery; nil if it is the broker's.
func redriveOf(d *broker.Delivery) *deadletter.Redrive {
	r, _ := d.Handle.(*deadletter.Redrive)
	return r
}

// Settle implements broker.Source. What is acknowledged is resolved already.
func (r *redrives[Tx]) Settle(ctx context.Context, s []broker.Settlement) error {
	defer func() {
		select {
		case r.settled <- struct{}{}:
		default: // a token is there
		}
	}()
	var back []deadletter.Redrive
	for _, one := range s {
		if one.Action == broker.Retry {
			back = append(back, *redriveOf(one.Delivery))
		}
	}
	if len(back) == 0 {
		return nil
	}
	return r.letters.Release(ctx, back)
}

// KeepAliveEvery implements broker.KeepAliver.
func (r *redrives[Tx]) KeepAliveEvery() time.Duration { return redriveLease / 3 }

// KeepAlive implements broker.KeepAliver.
func (r *redrives[Tx]) KeepAlive(ctx context.Context, held []*broker.Delivery) error {
	began := time.Now()
	list, of := make([]deadletter.Redrive, len(held)), make(map[int64]*broker.Delivery, len(held))
	for i, d := range held {
		list[i] = *redriveOf(d)
		of[list[i].Letter.ID] = d
	}
	kept, err := r.letters.Extend(ctx, list, redriveLease)
	for _, id := range kept {
		of[id].Extend(redriveLease - time.Since(began))
	}
	return err
}

// Close implements broker.Source.
func (r *redrives[Tx]) Close(context.Context) error { return nil }

// takeRedriveKey takes the key of a letter, if it has one: it was taken when
// the message first came.
func (c *Consumer[Tx]) takeRedriveKey(j *job, r *deadletter.Redrive) {
	key := redriveKey(r)
	if key == "" {
		c.takeKeys([]*job{j})
		return
	}
	j.message.key, j.order = key, r.Letter.OrderingKey
	if err := guard(func() error {
		if c.cfg.Fingerprint != nil {
			j.fingerprint = c.cfg.Fingerprint(copies([]*job{j})[0])
		}
		return c.takeVersion(j, copies([]*job{j})[0])
	}); err != nil {
		j.bad, j.reason = err, deadletter.Permanent
	}
}

// forced tells whether a message is to be processed even if its key is there.
func (c *Consumer[Tx]) forced(j *job) bool { return j.redrive != nil && j.redrive.Force }

// resolve closes the letter of a redrive that had nothing to do.
func (c *Consumer[Tx]) resolve(ctx context.Context, j *job, outcome Outcome) (time.Duration, bool) {
	err := c.redrives.letters.Resolve(ctx, *j.redrive, deadletter.Status(outcome.String()))
	if err == nil || errors.Is(err, deadletter.ErrNotOurs) {
		return 0, true
	}
	return c.interrupted(j, err), false
}

// intake is a source with what settles its deliveries.
type intake struct {
	source broker.Source
	settle *settler
}

// intakes returns the broker's, and that of redrives if there is one.
func (c *Consumer[Tx]) intakes() []*intake {
	if c.redrives == nil {
		return []*intake{c.broker}
	}
	return []*intake{c.broker, c.redriven}
}

// receiveRedrives takes redrives in until ctx ends. Trouble with them is told
// the Observer, and leaves the broker's messages alone.
func (c *Consumer[Tx]) receiveRedrives(ctx context.Context) (wait func()) {
	if c.redrives == nil {
		return func() {}
	}
	var running sync.WaitGroup
	running.Go(func() { _ = c.receive(ctx, c.redriven) }) // it is never closed
	return running.Wait
}
