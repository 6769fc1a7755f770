package sekali

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait before a further attempt: a random time between
// nothing and a bound that doubles from attempt to attempt ("full jitter", so
// that many clients that failed together do not come back together).
type Backoff struct {
	// Initial is the bound before the second attempt. Defaults to 100 ms.
	Initial time.Duration
	// Max is the highest bound. Defaults to 1 minute.
	Max time.Duration
}

// Pauses that do not count as attempts: transactions that got in each other's
// way, and a database or broker that is not there.
var (
	conflictBackoff = Backoff{Initial: 2 * time.Millisecond, Max: time.Second}
	outageBackoff   = Backoff{Initial: 50 * time.Millisecond, Max: 5 * time.Second}
)

func (b Backoff) withDefaults() Backoff {
	if b.Initial == 0 {
		b.Initial = 100 * time.Millisecond
	}
	if b.Max == 0 {
		b.Max = max(b.Initial, time.Minute)
	}
	return b
}

// after returns the pause after failure number n, counted from 1.
func (b Backoff) after(n int) time.Duration {
	bound := b.Max
	if shift := n - 1; shift < 32 && b.Initial<<shift < b.Max && b.Initial<<shift > 0 {
		bound = b.Initial << shift
	}
	return rand.N(bound) + 1
}

// sleep waits for d, or until ctx ends; then it returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
