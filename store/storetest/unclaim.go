package storetest

import (
	"context"

	"github.com/sekali/sekali/store"
)

func unclaimTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a claim that is taken back is fresh for others after the commit", f: unclaims[Tx]},
		{name: "a rival gets a key that is taken back", f: unclaimsForRival[Tx]},
	}
}

func (b *bench[Tx]) unclaim(c Client[Tx], tx Tx, keys ...string) {
	b.t.Helper()
	u, ok := store.As[store.Unclaimer[Tx]](c.Store)
	if !ok {
		b.t.Fatalf("a %T takes no claims back", c.Store)
	}
	b.ok(u.Unclaim(b.ctx, tx, claimOf(keys...)))
}

func unclaims[Tx any](b *bench[Tx]) {
	tx, _, err := b.One.Store.Begin(b.ctx, claimOf("a", "b ", "b", "c\x00", "d"))
	b.ok(err)
	b.unclaim(b.One, tx, "b", "c\x00")
	b.ok(b.One.Store.Commit(b.ctx, tx))
	states, err := b.Two.Store.Seen(b.ctx, claimOf("a", "b ", "b", "c\x00", "d"))
	b.ok(err)
	want := []store.State{store.Duplicate, store.Duplicate, store.Fresh, store.Fresh, store.Duplicate}
	for i := range want {
		if states[i] != want[i] {
			b.t.Errorf("key %d is %v, want %v", i, states[i], want[i])
		}
	}
}

func unclaimsForRival[Tx any](b *bench[Tx]) {
	tx, _, err := b.One.Store.Begin(b.ctx, claimOf("a", "b"))
	b.ok(err)
	ctx, cancel := context.WithTimeout(b.ctx, Patience)
	defer cancel()
	type result struct {
		states []store.State
		err    error
	}
	rival := make(chan result, 1)
	go func() { // it waits for the first one's end
		tx, states, err := b.Two.Store.Begin(ctx, claimOf("a", "b"))
		if err == nil {
			err = b.Two.Store.Commit(ctx, tx)
		}
		rival <- result{states, err}
	}()
	b.unclaim(b.One, tx, "b")
	b.ok(b.One.Store.Commit(b.ctx, tx))
	got := <-rival
	b.ok(got.err)
	if got.states[0] != store.Duplicate || got.states[1] != store.Fresh {
		b.t.Errorf("the rival got %v, want a duplicate and a fresh one", got.states)
	}
}
