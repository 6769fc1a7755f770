package sekali

import (
	"context"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// heldBack looks whether something before a message in its ordering key waits
// for somebody's decision, and if so holds the message there. over is false
// when nothing does, and the message may go on.
//
// No lock is needed: the messages of a key pass here one after another, and
// what is released runs in its place among them.
func (c *Consumer[Tx]) heldBack(ctx context.Context, j *job) (pause time.Duration, over, done bool) {
	blocked, err := c.holder.Blocked(ctx, c.cfg.Name, j.order)
	if err == nil && !blocked {
		j.free = true
		return 0, false, false
	}
	var states []store.State
	if err == nil {
		states, err = c.cfg.Store.Seen(ctx, c.claimFor(j))
	}
	switch {
	case err != nil:
	case states[0] != store.Fresh:
		j.free = true // processed before: it has nothing to wait for
		return 0, false, false
	default:
		err = c.holder.Hold(ctx, *c.letterOf(j, deadletter.Held, deadletter.Blocked, "an earlier message of its ordering key is a dead letter"))
	}
	if err != nil {
		if ctx.Err() != nil {
			return 0, true, false
		}
		return c.interrupted(j, err), true, false
	}
	c.observe(Event{Kind: Held, Message: j.message})
	return 0, true, true
}
