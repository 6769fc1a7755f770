package sekali

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// A key that a pruner has removed can no longer tell a duplicate. What it leaves
// is a mark: the time at which the youngest of the consumer's removed keys had
// been processed. A message whose key is fresh and that was published before the
// mark may have been processed, so it becomes a dead letter.
//
// The mark is read after the claim, in its transaction: whatever removal made the
// key fresh had moved the mark with it. And since a pruner keeps all keys for
// store.MinKeep, the mark says nothing about younger messages: for those, which
// is all of live traffic, it is not read.

const (
	// clockTolerance is by how much the clock that told when a message was
	// published may be ahead of the database's.
	clockTolerance = 10 * time.Minute
	// alwaysYoung is the age up to which no mark is asked for. What is left of
	// store.MinKeep is for clocks that differ.
	alwaysYoung = store.MinKeep / 2
)

// aged tells whether a message may be older than a mark. A redrive is not
// asked: its letter says that it has not been processed, and while the letter
// was open its key was not removed. A message without a time is as good as new.
func (c *Consumer[Tx]) aged(j *job) bool {
	return c.marks != nil && j.redrive == nil && !j.published.IsZero() && time.Since(j.published) > alwaysYoung
}

// isBefore tells whether a message was published before a mark.
func (j *job) isBefore(mark time.Time) bool {
	return !mark.IsZero() && !j.published.After(mark.Add(clockTolerance))
}

// knownTooOld tells it without asking: a mark never goes back.
func (c *Consumer[Tx]) knownTooOld(j *job) bool {
	mark := c.marked.Load()
	return mark != nil && c.aged(j) && j.isBefore(*mark)
}

// tooOld returns ErrTooOld and the index of the first message that is too old,
// of messages whose keys are fresh in this transaction.
func (c *Consumer[Tx]) tooOld(ctx context.Context, tx Tx, jobs ...*job) (bad int, err error) {
	return c.beforeMark(jobs, func() (time.Time, error) { return c.marks.MarkIn(ctx, tx, c.cfg.Name) })
}

// seemsTooOld is tooOld without a transaction, for a message whose key was just
// seen to be fresh.
func (c *Consumer[Tx]) seemsTooOld(ctx context.Context, j *job) (bool, error) {
	_, err := c.beforeMark([]*job{j}, func() (time.Time, error) { return c.marks.Mark(ctx, c.cfg.Name) })
	if errors.Is(err, ErrTooOld) {
		return true, nil
	}
	return false, err
}

func (c *Consumer[Tx]) beforeMark(jobs []*job, read func() (time.Time, error)) (bad int, err error) {
	var mark time.Time
	asked := false
	for i, j := range jobs {
		if !c.aged(j) {
			continue
		}
		if !asked {
			if mark, err = read(); err != nil {
				return nobody, err
			}
			asked = true
			if !mark.IsZero() {
				c.marked.Store(&mark)
			}
		}
		if j.isBefore(mark) {
			return i, fmt.Errorf("%w: published %s, and keys processed until %s were removed", ErrTooOld,
				j.published.UTC().Format(time.RFC3339), mark.Format(time.RFC3339))
		}
	}
	return nobody, nil
}
