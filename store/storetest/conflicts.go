package storetest

import (
	"fmt"

	"github.com/sekali/sekali/store"
)

func conflictTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a deferred constraint that fails at COMMIT commits nothing", f: deferredConstraint[Tx], on: databases{Postgres, SQLite}},
		{name: "a serialization failure in the work is a conflict", f: serialization[Tx], on: databases{Postgres}},
		{name: "a serialization failure at COMMIT is a conflict", f: serializationAtCommit[Tx], on: databases{Postgres}},
		{name: "a lock that is not given in time is a conflict", f: lockTimeout[Tx], on: databases{Postgres, MySQL}},
		{name: "a rival's key that is not given up in time is a conflict", f: claimTimeout[Tx]},
		{name: "a read that cannot become a write is a conflict", f: upgrade[Tx], on: databases{SQLite}},
		{name: "errors that stores do not know are the message's fault", f: unknownErrors[Tx]},
	}
}

// goesOn fails unless the pool of c works as before.
func (b *bench[Tx]) goesOn(c Client[Tx], raw string) {
	b.t.Helper()
	b.wantIdle(c)
	for range 3 { // more than one connection may be in the pool
		b.rollback(c, b.begin(c, claimOf(raw), store.Fresh))
	}
	before := b.number("SELECT count(*) FROM processed_messages")
	b.commit(c, b.begin(c, claimOf(raw), store.Fresh))
	b.wantRows(before + 1)
	b.wantIdle(c)
}

func deferredConstraint[Tx any](b *bench[Tx]) {
	b.run("CREATE TABLE orders (n INT PRIMARY KEY)",
		"CREATE TABLE lines (n INT REFERENCES orders (n) DEFERRABLE INITIALLY DEFERRED)")
	for range 2 {
		tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
		b.exec(tx, sell(coffee))
		b.exec(tx, "INSERT INTO lines VALUES (7)")
		err := b.One.Store.Commit(b.ctx, tx)
		b.wantClass(b.One, err, store.ClassFailed)
		b.wantError(err, []error{err}, store.ErrTransactionLost, store.ErrCommitUnknown, store.ErrKeySurvived)
		b.wantRows(0)
		b.wantSold(coffee, 0)
		b.wantIdle()
	}
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, "INSERT INTO lines VALUES (7)")
	b.exec(tx, "INSERT INTO orders VALUES (7)")
	b.commit(b.One, tx)
	b.wantRows(1)
	b.goesOn(b.One, "order-43")
}

func serialization[Tx any](b *bench[Tx]) {
	c := b.with(map[string]string{"default_transaction_isolation": "repeatable read"})
	tx := b.begin(c, claimOf("order-42"), store.Fresh)
	b.run(sell(coffee)) // after our snapshot
	_, err := b.h.Exec(b.ctx, tx, sell(coffee))
	b.wantClass(c, err, store.ClassConflict)
	b.rollback(c, tx)
	b.wantRows(0)
	b.goesOn(c, "order-42")
}

func serializationAtCommit[Tx any](b *bench[Tx]) {
	c := b.with(map[string]string{"default_transaction_isolation": "serializable"})
	one := b.begin(c, claimOf("order-41"), store.Fresh)
	two := b.begin(c, claimOf("order-42"), store.Fresh)
	// Each reads what the other writes.
	for _, tx := range []Tx{one, two} {
		if _, err := b.h.QueryInt(b.ctx, tx, "SELECT sum(quantity)::int FROM stock"); err != nil {
			b.t.Fatal(err)
		}
	}
	b.exec(one, sell(coffee))
	b.exec(two, sell(tea))
	b.commit(c, one)
	err := c.Store.Commit(b.ctx, two)
	b.wantClass(c, err, store.ClassConflict)
	b.wantError(err, []error{err}, store.ErrTransactionLost, store.ErrCommitUnknown, store.ErrKeySurvived)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantSold(tea, 0)
	b.goesOn(c, "order-42")
}

func lockTimeout[Tx any](b *bench[Tx]) {
	hasty := b.with(b.lockTimeout())
	rival := b.begin(b.Two, claimOf("order-41"), store.Fresh)
	b.exec(rival, sell(coffee))
	tx := b.begin(hasty, claimOf("order-42"), store.Fresh)
	b.wantClass(hasty, b.swallow(tx, sell(coffee)), store.ClassConflict)
	b.rollback(hasty, tx)
	b.commit(b.Two, rival)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.goesOn(hasty, "order-42")
}

func claimTimeout[Tx any](b *bench[Tx]) {
	hasty := b.with(b.lockTimeout())
	if err := hasty.Store.Check(b.ctx); err != nil {
		b.t.Fatal(err)
	}
	rival := b.begin(b.Two, claimOf("order-42"), store.Fresh)
	for range 2 {
		tx, _, err := hasty.Store.Begin(b.ctx, claimOf("order-42"))
		if err == nil {
			_ = hasty.Store.Rollback(b.ctx, tx)
		}
		b.wantClass(hasty, err, store.ClassConflict)
		b.wantError(err, []error{err}, store.ErrTransactionLost, store.ErrKeySurvived)
		if n := hasty.InUse(); n != 0 {
			b.t.Errorf("%d connections are in use after the claim failed", n)
		}
	}
	b.commit(b.Two, rival)
	b.rollback(hasty, b.begin(hasty, claimOf("order-42"), store.Duplicate))
	b.goesOn(hasty, "order-43")
}

// upgrade: SQLite refuses, at once and however long one would wait, to make a
// writer of a transaction whose snapshot is old.
func upgrade[Tx any](b *bench[Tx]) {
	b.ownTx(b.One, false, func(tx Tx) {
		if _, err := b.h.QueryInt(b.ctx, tx, "SELECT quantity FROM stock WHERE sku = '"+coffee+"'"); err != nil {
			b.t.Fatal(err)
		}
		b.commit(b.Two, b.begin(b.Two, claimOf("order-41"), store.Fresh))
		_, err := b.One.Store.Claim(b.ctx, tx, claimOf("order-42"))
		b.wantClass(b.One, err, store.ClassConflict)
	})
	b.wantRows(1)
	b.goesOn(b.One, "order-42")
}

func unknownErrors[Tx any](b *bench[Tx]) {
	b.wantClass(b.One, fmt.Errorf("no such sku"), store.ClassFailed)
	b.wantClass(b.One, fmt.Errorf("say so: %w", store.ErrUnavailable), store.ClassUnavailable)
	b.wantClass(b.One, fmt.Errorf("say so: %w", &store.SchemaError{}), store.ClassMisconfigured)
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	// A handler's own missing table is not Sekali's schema.
	b.wantClass(b.One, b.swallow(tx, "INSERT INTO no_such_table VALUES (1)"), store.ClassFailed)
	b.rollback(b.One, tx)
	b.wantIdle()
}
