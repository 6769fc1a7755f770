package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/store"
)

func cancelTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a context that has ended claims nothing", f: endedBefore[Tx]},
		{name: "a transaction outlives the context of its claim", f: outlives[Tx]},
		{name: "Commit commits under a context that has ended", f: commitsAnyway[Tx]},
		{name: "Rollback rolls back under a context that has ended", f: rollsBackAnyway[Tx]},
		{name: "a claim that waits is cancelled", f: cancelledWait[Tx]},
		{name: "work that is cancelled leaves no key", f: cancelledWork[Tx]},
		{name: "a context cancelled at any moment leaves no key without its effect nor the reverse", f: anyMoment[Tx]},
	}
}

func endedBefore[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	canceled := []error{context.Canceled}
	for range 2 { // the second time the schema is known
		tx, _, err := b.One.Store.Begin(ctx, claimOf("order-42"))
		if err == nil {
			_ = b.One.Store.Rollback(b.ctx, tx)
		}
		b.wantError(err, canceled)
		_, err = b.One.Store.Seen(ctx, claimOf("order-42"))
		b.wantError(err, canceled)
		b.wantRows(0)
		b.wantIdle()
		b.rollback(b.One, b.begin(b.One, claimOf("order-42"), store.Fresh))
	}
	b.ownTx(b.One, false, func(tx Tx) {
		_, err := b.One.Store.Claim(ctx, tx, claimOf("order-42"))
		b.wantError(err, canceled)
	})
	b.wantIdle()
}

func outlives[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	tx, _, err := b.One.Store.Begin(ctx, claimOf("order-42"))
	cancel()
	if err != nil {
		b.t.Fatal(err)
	}
	b.exec(tx, sell(coffee))
	b.commit(b.One, tx)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func commitsAnyway[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	cancel()
	if err := b.One.Store.Commit(ctx, tx); err != nil {
		b.t.Errorf("commit: %v", err)
	}
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func rollsBackAnyway[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	cancel()
	if err := b.One.Store.Rollback(ctx, tx); err != nil {
		b.t.Errorf("roll back: %v", err)
	}
	b.wantRows(0)
	b.wantSold(coffee, 0)
	b.wantIdle()
	b.wantState("order-42", store.Fresh)
}

func cancelledWait[Tx any](b *bench[Tx]) {
	first := b.begin(b.One, claimOf("order-42"), store.Fresh)
	ctx, cancel := context.WithCancel(b.ctx)
	second, done := b.beginLater(ctx, b.Two, claimOf("order-42"))
	b.wantWaiting(1, done)
	cancel()
	b.wait(done)
	if second.err == nil {
		_ = b.Two.Store.Rollback(b.ctx, second.tx)
	}
	b.wantError(second.err, []error{context.Canceled}, store.ErrKeySurvived)
	b.exec(first, sell(coffee))
	b.commit(b.One, first)
	b.wantState("order-42", store.Duplicate)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func cancelledWork[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	cancel()
	if _, err := b.h.Exec(ctx, tx, sell(coffee)); err == nil {
		b.t.Error("work under a context that has ended went on")
	}
	err := b.One.Store.Rollback(ctx, tx)
	if err != nil && b.One.Store.Classify(err) != store.ClassUnavailable {
		b.t.Errorf("roll back: %v", err)
	}
	b.wantRows(0)
	b.wantSold(coffee, 0)
	b.wantIdle()
	b.wantState("order-42", store.Fresh)
}

// anyMoment cancels at a random moment, in as many rounds as it takes to meet
// every one of them. A round's key is round-N, its effect the row N of sales.
func anyMoment[Tx any](b *bench[Tx]) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	seed := rand.Uint64()
	b.t.Logf("seed %d", seed)
	var next, committed, most atomic.Int64
	most.Store(int64(time.Millisecond))
	b.workers(4, func(i int, c Client[Tx]) error {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		for n := next.Add(1); n <= int64(rounds); n = next.Add(1) {
			after := time.Duration(random.Int64N(most.Load()))
			ok, err := b.cancelledRound(c, n, after)
			if err != nil {
				return fmt.Errorf("round %d, cancelled after %v: %w", n, after, err)
			}
			// So that half of them come to their end, however fast the machine is.
			percent := int64(102)
			if ok {
				committed.Add(1)
				percent = 98
			}
			most.Store(max(most.Load()*percent/100, int64(10*time.Microsecond)))
		}
		return nil
	})
	b.wantIdle()
	b.t.Logf("%d of %d rounds were committed", committed.Load(), rounds)
	b.wantRows(b.number("SELECT count(*) FROM sales"))
	keys, effects := b.rounds("SELECT message_key FROM processed_messages"), b.rounds("SELECT n FROM sales")
	for n := range keys {
		if !effects[n] {
			b.t.Errorf("%s has its key and not its effect", n)
		}
	}
	if len(effects) != len(keys) || len(keys) != int(committed.Load()) {
		b.t.Errorf("%d keys, %d effects, %d committed", len(keys), len(effects), committed.Load())
	}
}

// rounds reads numbers of rounds: "round-7" and 7 are both "round-7".
func (b *bench[Tx]) rounds(query string) map[string]bool {
	b.t.Helper()
	rows, err := b.DB.QueryContext(b.ctx, query)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]bool{}
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			b.t.Fatal(err)
		}
		if s[0] != 'r' {
			s = "round-" + s
		}
		found[s] = true
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return found
}

// cancelledRound is one message under a context that ends after a time. Its
// result is whether it was committed.
func (b *bench[Tx]) cancelledRound(c Client[Tx], n int64, after time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(b.ctx, after)
	defer cancel()
	tx, states, err := c.Store.Begin(ctx, claimOf(fmt.Sprintf("round-%d", n)))
	if err != nil {
		return false, b.excused(ctx, c, err)
	}
	if states[0] != store.Fresh {
		return false, errors.Join(fmt.Errorf("the key is %v", states[0]), c.Store.Rollback(ctx, tx))
	}
	if _, err := b.h.Exec(ctx, tx, fmt.Sprintf("INSERT INTO sales VALUES (%d)", n)); err != nil {
		failed := b.excused(ctx, c, err)
		if err := c.Store.Rollback(ctx, tx); err != nil && c.Store.Classify(err) != store.ClassUnavailable {
			return false, fmt.Errorf("roll back: %w", err)
		}
		return false, failed
	}
	// From here on the context does not count, but a driver may have closed the
	// connection when it ended right after the work.
	err = c.Store.Commit(ctx, tx)
	switch {
	case err == nil:
		return true, nil
	case ended(ctx) && c.Store.Classify(err) == store.ClassUnavailable && !errors.Is(err, store.ErrCommitUnknown):
		return false, nil
	}
	return false, fmt.Errorf("commit: %w", err)
}

// excused returns nil for an error that comes of the cancellation or of a
// conflict, which a busy database may have at any time.
func (b *bench[Tx]) excused(ctx context.Context, c Client[Tx], err error) error {
	if ended(ctx) || c.Store.Classify(err) == store.ClassConflict {
		return nil
	}
	return err
}

// ended tells that the context's time is over. Sockets may notice before the
// context does.
func ended(ctx context.Context) bool {
	deadline, _ := ctx.Deadline()
	return ctx.Err() != nil || !time.Now().Before(deadline)
}
