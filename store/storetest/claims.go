package storetest

import (
	"fmt"
	"slices"

	"github.com/sekali/sekali/store"
)

func claimTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "the second time a message is a duplicate", f: committedIsDuplicate[Tx]},
		{name: "a message that was rolled back is fresh again", f: rolledBackIsFresh[Tx]},
		{name: "states come in the caller's order", f: callersOrder[Tx]},
		{name: "a thousand keys with old duplicates among them", f: thousandKeys[Tx]},
		{name: "a claim of duplicates alone leaves an open transaction", f: duplicatesAlone[Tx]},
		{name: "a transaction ends once", f: endsOnce[Tx]},
		{name: "a claim in a transaction of the user's own stands and falls with it", f: ownTransaction[Tx]},
		{name: "a second claim in one transaction finds the first", f: claimTwice[Tx]},
		{name: "seen tells without claiming", f: seenDoesNotClaim[Tx]},
	}
}

func committedIsDuplicate[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.wantRows(0) // not before COMMIT
	b.commit(b.One, tx)
	for _, c := range []Client[Tx]{b.One, b.Two} {
		b.rollback(c, b.begin(c, claimOf("order-42"), store.Duplicate))
	}
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func rolledBackIsFresh[Tx any](b *bench[Tx]) {
	for range 3 {
		tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
		b.exec(tx, sell(coffee))
		b.rollback(b.One, tx)
	}
	b.wantRows(0)
	b.wantSold(coffee, 0)
	b.wantState("order-42", store.Fresh)
	b.wantIdle()
}

func callersOrder[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, claimOf("m", "c", "x"), store.Fresh, store.Fresh, store.Fresh))
	claim := claimOf("z", "x", "a", "m", "y", "c", "b")
	b.commit(b.One, b.begin(b.One, claim, store.Fresh, store.Duplicate, store.Fresh, store.Duplicate,
		store.Fresh, store.Duplicate, store.Fresh))
	if got := fmt.Sprint(claim.Keys[0].Raw, claim.Keys[6].Raw); got != "zb" {
		b.t.Errorf("the caller's claim was changed")
	}
	got, err := b.Two.Store.Seen(b.ctx, claimOf("n", "m", "zz", "a"))
	want := []store.State{store.Fresh, store.Duplicate, store.Fresh, store.Duplicate}
	if err != nil || !slices.Equal(got, want) {
		b.t.Errorf("seen: %v, %v, want %v", got, err, want)
	}
	b.wantRows(7)
}

func thousandKeys[Tx any](b *bench[Tx]) {
	const n = 1000
	var all, old []string
	for i := range n {
		raw := fmt.Sprintf("order-%d", i*7919%n) // in no order
		all = append(all, raw)
		if i%3 == 1 {
			old = append(old, raw)
		}
	}
	b.commit(b.One, b.begin(b.One, claimOf(old...), make([]store.State, len(old))...))
	want := make([]store.State, n)
	for i := range want {
		if i%3 == 1 {
			want[i] = store.Duplicate
		}
	}
	// Rolled back: the old ones stay, and they alone.
	b.rollback(b.One, b.begin(b.One, claimOf(all...), want...))
	b.wantRows(len(old))
	b.commit(b.One, b.begin(b.One, claimOf(all...), want...))
	b.wantRows(n)
	b.wantIdle()
}

func duplicatesAlone[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, claimOf("order-42"), store.Fresh))
	tx := b.begin(b.One, claimOf("order-42"), store.Duplicate)
	b.exec(tx, sell(coffee))
	b.rollback(b.One, tx)
	b.wantSold(coffee, 0)
	tx = b.begin(b.One, claimOf("order-42"), store.Duplicate)
	b.exec(tx, sell(coffee))
	b.commit(b.One, tx)
	b.wantSold(coffee, 1)
	b.wantRows(1)
	b.wantIdle()
}

func endsOnce[Tx any](b *bench[Tx]) {
	committed := b.begin(b.One, claimOf("a"), store.Fresh)
	b.commit(b.One, committed)
	b.rollback(b.One, committed) // does nothing
	b.wantState("a", store.Duplicate)
	if err := b.One.Store.Commit(b.ctx, committed); err == nil {
		b.t.Error("a transaction was committed twice")
	}
	undone := b.begin(b.One, claimOf("b"), store.Fresh)
	b.rollback(b.One, undone)
	b.rollback(b.One, undone)
	if err := b.One.Store.Commit(b.ctx, undone); err == nil {
		b.t.Error("a transaction was committed after it was rolled back")
	}
	if _, err := b.h.Exec(b.ctx, undone, sell(coffee)); err == nil {
		b.t.Error("a transaction works after its end")
	}
	b.wantSold(coffee, 0)
	b.wantRows(1)
	b.wantIdle()
}

func ownTransaction[Tx any](b *bench[Tx]) {
	claim := func(want store.State) func(Tx) {
		return func(tx Tx) {
			got, err := b.One.Store.Claim(b.ctx, tx, claimOf("order-42"))
			if err != nil || !slices.Equal(got, []store.State{want}) {
				b.t.Fatalf("claim: %v, %v, want %v", got, err, want)
			}
			b.exec(tx, sell(coffee))
		}
	}
	b.ownTx(b.One, false, claim(store.Fresh))
	b.wantRows(0)
	b.ownTx(b.One, true, claim(store.Fresh))
	b.wantRows(1)
	b.ownTx(b.One, false, claim(store.Duplicate))
	b.wantSold(coffee, 1)
	b.wantState("order-42", store.Duplicate)
	b.wantIdle()
}

func claimTwice[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	for _, want := range [][]store.State{{store.Duplicate, store.Fresh}, {store.Duplicate, store.Duplicate}} {
		got, err := b.One.Store.Claim(b.ctx, tx, claimOf("a", "b"))
		if err != nil || !slices.Equal(got, want) {
			b.t.Errorf("claim: %v, %v, want %v", got, err, want)
		}
	}
	b.commit(b.One, tx)
	b.wantRows(2)
}

func seenDoesNotClaim[Tx any](b *bench[Tx]) {
	want := func(want store.State) {
		b.t.Helper()
		got, err := b.Two.Store.Seen(b.ctx, claimOf("order-42"))
		if err != nil || !slices.Equal(got, []store.State{want}) {
			b.t.Errorf("seen: %v, %v, want %v", got, err, want)
		}
	}
	want(store.Fresh)
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	want(store.Fresh) // it is not there now, and nobody waits
	b.commit(b.One, tx)
	want(store.Duplicate)
	b.wantRows(1)
	b.wantIdle()
}
