package sekali

import (
	"context"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// unheld leaves out jobs behind something in their ordering key that waits for
// somebody's decision: they are held there.
func (c *Consumer[Tx]) unheld(ctx context.Context, jobs []*job) []*job {
	if c.holder == nil {
		return jobs
	}
	var free *line // the last line behind whose first job nothing can be
	clear := jobs[:0:0]
	for _, j := range jobs {
		switch {
		case j.order == "" || j.bad != nil || j.letter != nil || j.redrive != nil || j.in == free:
		case j.in.stuck:
			continue
		default:
			found, blocked, pause := c.heldBack(ctx, j)
			switch {
			case found == kept:
				c.acknowledge([]*job{j})
				continue
			case found == unknown:
				hold([]*job{j}, pause)
				continue
			case !blocked:
				free = j.in
			}
		}
		clear = append(clear, j)
	}
	return clear
}

// What heldBack finds.
type held uint8

const (
	unknown held = iota // the database did not answer
	passes              // it may be processed
	kept                // it is a held row
)

// heldBack looks whether something before a message in its ordering key waits
// for somebody's decision, and if so keeps the message there. blocked tells
// that the next one of the key has to be looked at too.
//
// No lock is needed: the messages of a key pass here one after another, and
// what is released runs in its place among them.
func (c *Consumer[Tx]) heldBack(ctx context.Context, j *job) (found held, blocked bool, pause time.Duration) {
	blocked, err := c.holder.Blocked(ctx, c.cfg.StoredName, j.order)
	if err == nil && !blocked {
		return passes, false, 0
	}
	var states []store.State
	if err == nil {
		states, err = c.cfg.Store.Seen(ctx, c.claimFor([]*job{j}))
	}
	if err == nil && states[0] != store.Fresh {
		return passes, true, 0 // processed before: it has nothing to wait for
	}
	if err == nil {
		var old bool
		if old, err = c.seemsTooOld(ctx, j); old {
			return passes, true, 0 // it becomes a dead letter of its own
		}
	}
	if err == nil {
		err = c.holder.Hold(ctx, *c.letterOf(j, deadletter.Held, deadletter.Blocked, "an earlier message of its ordering key is a dead letter"))
	}
	if err != nil {
		if ctx.Err() != nil {
			return unknown, true, 0
		}
		return unknown, true, c.interrupted(j, err)
	}
	c.observe(Event{Kind: Held, Message: &j.message})
	return kept, true, 0
}
