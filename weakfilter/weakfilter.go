// Package weakfilter drops most repeats of work for which a rare double, or a
// rare loss, is fine: notifications, cache warming, mails that say what a page
// says too. It remembers in Redis, beside the work and not with it.
//
//	filter, err := weakfilter.New(client, weakfilter.Config{Name: "mailer"})
//	outcome, err := filter.Do(ctx, "order-42:paid", func(ctx context.Context) error {
//		return mail.Send(ctx, receipt)
//	})
//
// It is no store, and cannot be handed where one is wanted. For anything that
// must happen exactly once use sekali.Inbox or sekali.Consumer, which record
// the message's key in the same database transaction as its effect.
//
// # What it does not promise
//
//   - Work is done twice when Redis forgets: after a failover or a crash that
//     lost its last writes, when a record is evicted (set maxmemory-policy to
//     noeviction), and when Config.Retention is over.
//   - Work is done twice when it succeeded and that could not be recorded: the
//     process died between the two, or Redis was out of reach.
//   - Work is done twice when its owner was frozen, or cut off from Redis, for
//     longer than Config.Lease, and somebody else began it meanwhile.
//   - Work is not done for as long as the claim's lease lasts when its owner
//     dies between claim and work. It is lost if nobody tries again later: a
//     caller who takes InProgress for a duplicate and acknowledges loses it.
//   - It says nothing about order, and does not compare bodies.
//
// What it does: of several that try at once one does the work; work that
// fails is anybody's again at once; who finishes late, under a claim that is
// no longer its own, changes nothing.
package weakfilter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/store"
)

// What Config's fields default to.
const (
	DefaultLease     = 30 * time.Second
	DefaultRetention = 24 * time.Hour
	DefaultTimeout   = 5 * time.Second
)

// minLease keeps round trips well inside a lease.
const minLease = 100 * time.Millisecond

var (
	// ErrLeaseLost is the cause with which work's context is cancelled when its
	// claim is no longer its own: somebody else may be doing it.
	ErrLeaseLost = errors.New("the claim's lease is over, or somebody else has it")

	// ErrNotRecorded is the error of a Do whose work succeeded and will not be
	// known to have: it may be done again.
	ErrNotRecorded = errors.New("the work is done, but not recorded")
)

// Outcome is what a Do came to.
type Outcome uint8

// The outcomes.
const (
	// Failed: the work was not begun or did not succeed; the error says why. It
	// is anybody's again.
	Failed Outcome = iota
	// Processed: this call did the work. With an error that wraps
	// ErrNotRecorded it may be done again by a repeat.
	Processed
	// Duplicate: the work was done before.
	Duplicate
	// InProgress: somebody else is at it, or died of it. The error is an
	// *InProgressError.
	InProgress
)

// String returns the name of the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case InProgress:
		return "in progress"
	}
	return "unknown"
}

// InProgressError is the error of a Do whose work somebody else has claimed.
// Returned from a Consumer's handler it is a reason to come back later that
// does not count as an attempt.
type InProgressError struct {
	// Key of the work.
	Key string
	// After is when the other's claim ends unless it is renewed.
	After time.Duration
}

// Error says so.
func (e *InProgressError) Error() string {
	return fmt.Sprintf("the work for key %q is in progress elsewhere: try again in %v", e.Key, e.After)
}

// RetryAfter is how long to wait before the next try.
func (e *InProgressError) RetryAfter() time.Duration { return e.After }

// Config says how a Filter remembers.
type Config struct {
	// Name says whose work it is, such as "mailer": filters with different
	// names do not see each other's keys. 1 to 100 bytes, as a consumer's name.
	// Required.
	Name string
	// Lease is how long a claim lasts when its owner is not heard of. While the
	// work runs it is renewed, three times in each Lease. At least 100 ms.
	// Defaults to 30 s.
	Lease time.Duration
	// Retention is how long work is known to have been done. At least Lease.
	// Defaults to 24 h.
	Retention time.Duration
	// Timeout bounds one question to the server, as far as go-redis obeys
	// contexts (redis.Options.ContextTimeoutEnabled). Defaults to 5 s.
	Timeout time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if err := store.CheckConsumer(c.Name); err != nil {
		return c, fmt.Errorf("config field Name: %w", err)
	}
	if c.Lease < 0 || c.Retention < 0 || c.Timeout < 0 {
		return c, errors.New("config field Lease, Retention or Timeout is negative: leave it 0 for its default")
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.Retention == 0 {
		c.Retention = max(DefaultRetention, c.Lease)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Lease < minLease {
		return c, fmt.Errorf("config field Lease is %v: make it %v at least", c.Lease, minLease)
	}
	if c.Retention < c.Lease {
		return c, fmt.Errorf("config field Retention is %v, shorter than a Lease of %v: make it longer", c.Retention, c.Lease)
	}
	return c, nil
}

// Filter remembers which work was done. It is safe for concurrent use.
type Filter struct {
	client redis.UniversalClient
	cfg    Config
}

// New returns a Filter that remembers through client, which stays its owner's
// to close. It does no I/O.
func New(client redis.UniversalClient, cfg Config) (*Filter, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new weak filter: %w", err)
	}
	return &Filter{client, full}, nil
}

// Do does the work unless it is known to have been done under key, or
// somebody else is at it: see Outcome, and the package's documentation for what
// is not promised. The key is any bytes that are not blank (store.ErrNoKey).
//
// Work runs in the caller's goroutine. Its context is ctx, cancelled with the
// cause ErrLeaseLost if the claim is lost. If it fails, panics or calls
// runtime.Goexit, the claim is taken back, whether ctx has ended or not. When
// Redis cannot be reached, work is not begun.
func (f *Filter) Do(ctx context.Context, key string, work func(context.Context) error) (Outcome, error) {
	if store.IsBlank(key) {
		return Failed, fmt.Errorf("weak filter %q: %w", f.cfg.Name, store.ErrNoKey)
	}
	c := &claim{f: f, key: f.redisKey(key), token: "claim " + rand.Text()}
	outcome, after, err := c.take(ctx)
	switch {
	case err != nil:
		return Failed, fmt.Errorf("weak filter %q: claim key %q: %w", f.cfg.Name, key, err)
	case outcome == InProgress:
		return InProgress, &InProgressError{key, after}
	case outcome == Duplicate:
		return Duplicate, nil
	}
	err, back := c.run(ctx, work)
	switch {
	case err != nil && back != nil:
		return Failed, fmt.Errorf("%w (and the claim of weak filter %q could not be taken back, it ends in %v: %w)", err, f.cfg.Name, f.cfg.Lease, back)
	case err != nil:
		return Failed, err
	}
	if err := c.record(ctx); err != nil {
		return Processed, fmt.Errorf("weak filter %q: key %q: %w: %w", f.cfg.Name, key, ErrNotRecorded, err)
	}
	return Processed, nil
}

// redisKey is where a key is remembered. The name's length comes first, so
// that no other name and key can make the same.
func (f *Filter) redisKey(key string) string {
	return fmt.Sprintf("sekali:weak:%d:%s:%s", len(f.cfg.Name), f.cfg.Name, store.StoredKey(key))
}
