package storetest

import (
	"crypto/sha256"
	"errors"
	"slices"

	"github.com/sekali/sekali/store"
)

func fingerprintTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "the same body is a duplicate and another one a conflict", f: otherBody[Tx]},
		{name: "an unknown fingerprint is no conflict", f: unknownBody[Tx]},
		{name: "another body at the same time waits and is a conflict", f: otherBodyDuring[Tx]},
		{name: "bodies are compared key by key", f: mixedBodies[Tx]},
		{name: "a claim in a transaction of the user's own finds conflicts", f: otherBodyInOwn[Tx]},
		{name: "fingerprints without a column for them are a schema error that says how to add it", f: noColumn[Tx]},
		{name: "a fingerprint of another length is refused", f: badFingerprint[Tx]},
	}
}

// bodied returns a key with the fingerprint of a body; none for "".
func bodied(raw, body string) store.Key {
	if body == "" {
		return store.Key{Raw: raw}
	}
	sum := sha256.Sum256([]byte(body))
	return store.Key{Raw: raw, Fingerprint: sum[:]}
}

func bodies(keys ...store.Key) store.Claim { return store.Claim{Consumer: consumer, Keys: keys} }

// wantStates fails unless Begin and Seen both find the states.
func (b *bench[Tx]) wantStates(claim store.Claim, want ...store.State) {
	b.t.Helper()
	b.rollback(b.Two, b.begin(b.Two, claim, want...))
	got, err := b.Two.Store.Seen(b.ctx, claim)
	if err != nil || !slices.Equal(got, want) {
		b.t.Errorf("seen: %v, %v, want %v", got, err, want)
	}
}

func otherBody[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, bodies(bodied("order-42", "one")), store.Fresh))
	b.wantStates(bodies(bodied("order-42", "one")), store.Duplicate)
	b.wantStates(bodies(bodied("order-42", "two")), store.Conflict)
	b.wantStates(bodies(bodied("order-42", "")), store.Duplicate)
	// A conflict changes nothing, even if its transaction is committed.
	b.commit(b.One, b.begin(b.One, bodies(bodied("order-42", "two")), store.Conflict))
	b.wantStates(bodies(bodied("order-42", "one")), store.Duplicate)
	b.wantRows(1)
	b.wantIdle()
}

func unknownBody[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, bodies(bodied("order-42", "")), store.Fresh))
	b.wantStates(bodies(bodied("order-42", "one")), store.Duplicate)
	b.wantStates(bodies(bodied("order-42", "two")), store.Duplicate)
	b.wantStates(claimOf("order-42"), store.Duplicate)
}

func otherBodyDuring[Tx any](b *bench[Tx]) {
	for end, want := range map[string]store.State{"commit": store.Conflict, "rollback": store.Fresh} {
		first := b.begin(b.One, bodies(bodied("order-"+end, "one")), store.Fresh)
		second, done := b.beginLater(b.ctx, b.Two, bodies(bodied("order-"+end, "two")))
		b.wantWaiting(1, done)
		if end == "commit" {
			b.commit(b.One, first)
		} else {
			b.rollback(b.One, first)
		}
		b.wait(done)
		if second.err != nil {
			b.t.Fatalf("after %s: %v", end, second.err)
		}
		b.rollback(b.Two, second.tx)
		if second.states[0] != want {
			b.t.Errorf("after %s the second is %v, want %v", end, second.states[0], want)
		}
	}
	b.wantIdle()
}

func mixedBodies[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, bodies(bodied("a", "one"), bodied("b", "one"), bodied("c", ""), bodied("d", "one")),
		store.Fresh, store.Fresh, store.Fresh, store.Fresh))
	claim := bodies(bodied("x", "one"), bodied("d", ""), bodied("c", "two"), bodied("b", "two"), bodied("a", "one"), bodied("y", ""))
	want := []store.State{store.Fresh, store.Duplicate, store.Duplicate, store.Conflict, store.Duplicate, store.Fresh}
	b.wantStates(claim, want...)
	b.commit(b.One, b.begin(b.One, claim, want...))
	b.wantStates(bodies(bodied("x", "two"), bodied("y", "two"), bodied("b", "one")), store.Conflict, store.Duplicate, store.Duplicate)
	b.wantRows(6)
}

func otherBodyInOwn[Tx any](b *bench[Tx]) {
	b.ownTx(b.One, true, func(tx Tx) {
		for _, step := range []struct {
			body string
			want store.State
		}{{"one", store.Fresh}, {"one", store.Duplicate}, {"two", store.Conflict}} {
			got, err := b.One.Store.Claim(b.ctx, tx, bodies(bodied("order-42", step.body)))
			if err != nil || got[0] != step.want {
				b.t.Errorf("body %q: %v, %v, want %v", step.body, got, err, step.want)
			}
		}
	})
	b.wantStates(bodies(bodied("order-42", "two")), store.Conflict)
}

func noColumn[Tx any](b *bench[Tx]) {
	b.run("ALTER TABLE processed_messages DROP COLUMN fingerprint")
	claim := bodies(bodied("order-42", "one"))
	tx, _, err := b.One.Store.Begin(b.ctx, claim)
	if err == nil {
		_ = b.One.Store.Rollback(b.ctx, tx)
	}
	b.wantClass(b.One, err, store.ClassMisconfigured)
	var schema *store.SchemaError
	if !errors.As(err, &schema) || schema.SQL == "" {
		b.t.Fatalf("the error is %v, want a SchemaError with SQL", err)
	}
	_, err = b.One.Store.Seen(b.ctx, claim)
	b.wantClass(b.One, err, store.ClassMisconfigured)
	// Without fingerprints the table is good as it is.
	b.commit(b.One, b.begin(b.One, claimOf("order-41"), store.Fresh))
	b.run(schema.SQL)
	b.commit(b.One, b.begin(b.One, claim, store.Fresh))
	b.wantStates(bodies(bodied("order-42", "two"), bodied("order-41", "two")), store.Conflict, store.Duplicate)
	b.wantIdle()
}

func badFingerprint[Tx any](b *bench[Tx]) {
	b.refusals(bodies(store.Key{Raw: "order-42", Fingerprint: []byte("short")}), func(err error) bool {
		return err != nil && !errors.Is(err, store.ErrNoKey)
	})
}
