package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sekali/sekali/store"
)

func rivalTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "the second waits and is a duplicate when the first commits", f: secondIsDuplicate[Tx]},
		{name: "the second waits and is fresh when the first rolls back", f: secondIsFresh[Tx]},
		{name: "the second waits for a claim in a transaction of the user's own", f: secondWaitsForOwn[Tx]},
		{name: "other keys do not wait", f: otherKeysGoOn[Tx], on: databases{Postgres, MySQL}},
		{name: "twenty workers with one key have one effect", f: twentyWorkers[Tx]},
		{name: "three inserts of one key of which the first rolls back", f: threeInserts[Tx]},
		{name: "batches that have the same keys in opposite order do not get in each other's way", f: oppositeOrder[Tx]},
		{name: "batches that overlap at random have each effect once", f: overlapping[Tx]},
		{name: "two processes that race for a thousand keys have a thousand effects", f: race[Tx]},
	}
}

// atOnce opens two claims of one key, of which the second waits, and ends the
// first by end. It returns what the second came to.
func (b *bench[Tx]) atOnce(claim store.Claim, end func(tx Tx)) *outcome[Tx] {
	b.t.Helper()
	first := b.begin(b.One, claim, store.Fresh)
	second, done := b.beginLater(b.ctx, b.Two, claim)
	b.wantWaiting(1, done)
	end(first)
	b.wait(done)
	if second.err != nil {
		b.t.Fatalf("the second: %v", second.err)
	}
	return second
}

func secondIsDuplicate[Tx any](b *bench[Tx]) {
	second := b.atOnce(claimOf("order-42"), func(tx Tx) {
		b.exec(tx, sell(coffee))
		b.commit(b.One, tx)
	})
	if second.states[0] != store.Duplicate {
		b.t.Errorf("the second is %v", second.states[0])
	}
	b.rollback(b.Two, second.tx)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func secondIsFresh[Tx any](b *bench[Tx]) {
	second := b.atOnce(claimOf("order-42"), func(tx Tx) {
		b.exec(tx, sell(coffee))
		b.rollback(b.One, tx)
	})
	if second.states[0] != store.Fresh {
		b.t.Errorf("the second is %v", second.states[0])
	}
	b.exec(second.tx, sell(coffee))
	b.commit(b.Two, second.tx)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func secondWaitsForOwn[Tx any](b *bench[Tx]) {
	var second *outcome[Tx]
	var done <-chan struct{}
	b.ownTx(b.One, true, func(tx Tx) {
		if _, err := b.One.Store.Claim(b.ctx, tx, claimOf("order-42")); err != nil {
			b.t.Fatal(err)
		}
		second, done = b.beginLater(b.ctx, b.Two, claimOf("order-42"))
		b.wantWaiting(1, done)
	})
	b.wait(done)
	if second.err != nil || second.states[0] != store.Duplicate {
		b.t.Fatalf("the second: %v, %v", second.states, second.err)
	}
	b.rollback(b.Two, second.tx)
	b.wantRows(1)
}

func otherKeysGoOn[Tx any](b *bench[Tx]) {
	first := b.begin(b.One, claimOf("b"), store.Fresh)
	for _, raw := range []string{"a", "c", "B", "b "} {
		b.commit(b.Two, b.begin(b.Two, claimOf(raw), store.Fresh))
	}
	b.commit(b.One, first)
	b.wantRows(5)
}

// workers runs f in n goroutines, half of them with each client, and waits.
func (b *bench[Tx]) workers(n int, f func(i int, c Client[Tx]) error) {
	b.t.Helper()
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		c := b.One
		if i%2 == 1 {
			c = b.Two
		}
		all.Go(func() {
			<-start
			if err := f(i, c); err != nil {
				b.t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	close(start)
	all.Wait()
}

func twentyWorkers[Tx any](b *bench[Tx]) {
	var fresh, duplicates atomic.Int64
	b.workers(20, func(_ int, c Client[Tx]) error {
		state, err := b.process(c, claimOf("order-42"), b.sellOne)
		switch state {
		case store.Fresh:
			fresh.Add(1)
		case store.Duplicate:
			duplicates.Add(1)
		}
		return err
	})
	if fresh.Load() != 1 || duplicates.Load() != 19 {
		b.t.Errorf("%d were fresh and %d duplicates, want 1 and 19", fresh.Load(), duplicates.Load())
	}
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

// threeInserts: when the first rolls back, InnoDB lets both others have a
// shared lock, and makes a deadlock of it. Whoever loses tries again.
func threeInserts[Tx any](b *bench[Tx]) {
	first := b.begin(b.One, claimOf("order-42"), store.Fresh)
	var fresh atomic.Int64
	var others sync.WaitGroup
	ended := make(chan struct{}, 2)
	for range 2 {
		others.Go(func() {
			state, err := b.process(b.Two, claimOf("order-42"), b.sellOne)
			if err != nil {
				b.t.Error(err)
			}
			if err == nil && state == store.Fresh {
				fresh.Add(1)
			}
			ended <- struct{}{}
		})
	}
	done := make(chan struct{})
	b.t.Cleanup(func() { b.cancel(); others.Wait() })
	go func() { <-ended; close(done); <-ended }()
	b.wantWaiting(2, done)
	b.rollback(b.One, first)
	others.Wait()
	if fresh.Load() != 1 {
		b.t.Errorf("%d of the two others were fresh, want 1", fresh.Load())
	}
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

// batch processes a claim of many keys, again after a conflict, and sells one
// coffee for each key that was fresh.
func (b *bench[Tx]) batch(c Client[Tx], claim store.Claim) (fresh int, err error) {
	for {
		fresh, err = b.tryBatch(c, claim)
		if err == nil || b.ctx.Err() != nil || c.Store.Classify(err) != store.ClassConflict {
			return fresh, err
		}
	}
}

func (b *bench[Tx]) tryBatch(c Client[Tx], claim store.Claim) (fresh int, err error) {
	tx, states, err := c.Store.Begin(b.ctx, claim)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	for _, s := range states {
		if s == store.Fresh {
			fresh++
		}
	}
	if fresh > 0 {
		statement := fmt.Sprintf("UPDATE stock SET quantity = quantity - %d WHERE sku = '%s'", fresh, coffee)
		if _, err := b.h.Exec(b.ctx, tx, statement); err != nil {
			return 0, errors.Join(fmt.Errorf("sell: %w", err), c.Store.Rollback(b.ctx, tx))
		}
	}
	return fresh, c.Store.Commit(b.ctx, tx)
}

// oppositeOrder: the same keys, forwards and backwards. Stores claim them in
// one order, so that not even a conflict may come of it.
func oppositeOrder[Tx any](b *bench[Tx]) {
	const rounds, size = 20, 20
	for round := 0; round < rounds && !b.t.Failed(); round++ {
		var forwards []string
		for i := range size {
			forwards = append(forwards, fmt.Sprintf("order-%d-%d", round, i))
		}
		backwards := slices.Clone(forwards)
		slices.Reverse(backwards)
		var fresh atomic.Int64
		b.workers(2, func(i int, c Client[Tx]) error {
			n, err := b.tryBatch(c, claimOf([][]string{forwards, backwards}[i]...))
			fresh.Add(int64(n))
			return err
		})
		if fresh.Load() != size {
			b.t.Errorf("round %d: %d keys were fresh, want %d", round, fresh.Load(), size)
		}
	}
	b.wantRows(rounds * size)
	b.wantSold(coffee, rounds*size)
	b.wantIdle()
}

func overlapping[Tx any](b *bench[Tx]) {
	const workers, rounds, size, keys = 4, 15, 20, 200
	seed := rand.Uint64()
	b.t.Logf("seed %d", seed)
	var mu sync.Mutex
	used := map[string]bool{}
	b.workers(workers, func(i int, c Client[Tx]) error {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		for range rounds {
			var raw []string
			for _, k := range random.Perm(keys)[:size] {
				raw = append(raw, fmt.Sprintf("order-%d", k))
			}
			if _, err := b.batch(c, claimOf(raw...)); err != nil {
				return err
			}
			mu.Lock()
			for _, r := range raw {
				used[r] = true
			}
			mu.Unlock()
		}
		return nil
	})
	b.wantRows(len(used))
	b.wantSold(coffee, len(used))
	b.wantIdle()
}

func race[Tx any](b *bench[Tx]) {
	const keys = 1000
	var fresh atomic.Int64
	b.workers(4, func(i int, c Client[Tx]) error {
		random := rand.New(rand.NewPCG(1, uint64(i)/2))
		for _, k := range random.Perm(keys) {
			state, err := b.process(c, claimOf(fmt.Sprintf("order-%d", k)), b.sellOne)
			if err != nil {
				return err
			}
			if state == store.Fresh {
				fresh.Add(1)
			}
		}
		return nil
	})
	if fresh.Load() != keys {
		b.t.Errorf("%d were fresh, want %d", fresh.Load(), keys)
	}
	b.wantRows(keys)
	b.wantSold(coffee, keys)
	b.wantIdle()
}
