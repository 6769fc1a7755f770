package sekali

import (
	"context"
	"errors"

	"github.com/sekali/sekali/store"
)

var errNoEntity = errors.New("Config.Version returned a blank entity")

// takeVersion takes the entity and the version of a message.
func (c *Consumer[Tx]) takeVersion(j *job, m *Message) error {
	if c.cfg.Version == nil {
		return nil
	}
	j.entity, j.version, j.versioned = c.cfg.Version(m)
	if j.versioned && store.IsBlank(j.entity) {
		return errNoEntity
	}
	return nil
}

// advance raises the version of a message's entity in its transaction, and
// tells whether the message is stale.
func (c *Consumer[Tx]) advance(ctx context.Context, tx Tx, j *job) (stale bool, err error) {
	if !j.versioned {
		return false, nil
	}
	j.stale, err = c.versions.Advance(ctx, tx, c.cfg.StoredName, j.entity, j.version)
	return j.stale, err
}

// current does it for several, and returns the indexes of those that are not
// stale.
func (c *Consumer[Tx]) current(ctx context.Context, tx Tx, jobs []*job) ([]int, error) {
	live := make([]int, 0, len(jobs))
	for i, j := range jobs {
		stale, err := c.advance(ctx, tx, j)
		if err != nil {
			return nil, err
		}
		if !stale {
			live = append(live, i)
		}
	}
	return live, nil
}

// wanted tells, without a transaction, whether a message is to be processed:
// it is neither processed, nor too old to know, nor stale.
func (c *Consumer[Tx]) wanted(ctx context.Context, j *job) (bool, error) {
	states, err := c.cfg.Store.Seen(ctx, c.claimFor([]*job{j}))
	if err != nil || states[0] != store.Fresh && !c.forced(j) {
		return false, err
	}
	if old, err := c.seemsTooOld(ctx, j); err != nil || old {
		return false, err
	}
	if !j.versioned {
		return true, nil
	}
	stale, err := c.versions.Stale(ctx, c.cfg.StoredName, j.entity, j.version)
	return !stale, err
}
