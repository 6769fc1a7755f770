package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/sekali/sekali/store"
)

func lostTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an error that the handler swallows never ends in half an effect", f: swallowedError[Tx]},
		{name: "a lock time-out that the handler swallows never ends in half an effect", f: swallowedTimeout[Tx], on: databases{Postgres, MySQL}},
		{name: "a deadlock that the handler swallows loses the transaction", f: swallowedDeadlock[Tx], on: databases{Postgres, MySQL}},
		{name: "a deadlock whose victim is rolled back leaves no key", f: deadlockThenRollback[Tx], on: databases{Postgres, MySQL}},
		{name: "an error behind a savepoint of the handler's own is forgiven", f: ownSavepoint[Tx]},
		{name: "DDL in a handler is part of the transaction or is found out", f: ddlInHandler[Tx]},
		{name: "a handler that commits by itself is found out by Commit", f: ownCommit[Tx]},
		{name: "a handler that commits by itself is found out by Rollback", f: ownCommitThenRollback[Tx]},
		{name: "a handler that commits and begins anew is found out", f: ownCommitAndBegin[Tx]},
		{name: "a handler that rolls back by itself is found out", f: ownRollback[Tx]},
		{name: "a handler that rolls back and begins anew is found out", f: ownRollbackAndBegin[Tx]},
		{name: "a rival that takes the key after our rollback is not our survivor", f: rivalAfterRollback[Tx]},
		{
			name: "a rival that takes the key after the handler's own rollback is not our survivor",
			f:    rivalAfterOwnRollback[Tx],
			on:   databases{Postgres, MySQL},
		},
		{name: "a connection that is lost in mid-transaction commits nothing", f: lostConnection[Tx], on: databases{Postgres, MySQL}},
	}
}

var (
	lost     = []error{store.ErrTransactionLost}
	survived = []error{store.ErrTransactionLost, store.ErrKeySurvived}
)

// twice fails on every database: the sku is there.
const twice = "INSERT INTO stock VALUES ('" + coffee + "', 1)"

func swallowedError[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.wantClass(b.One, b.swallow(tx, twice), store.ClassFailed)
	_, later := b.h.Exec(b.ctx, tx, sell(tea))
	err := b.One.Store.Commit(b.ctx, tx)
	if b.h.Database == Postgres {
		b.wantError(err, lost, store.ErrKeySurvived)
		b.wantClass(b.One, err, store.ClassFailed)
		b.wantRows(0)
		b.wantSold(coffee, 0)
		b.wantSold(tea, 0)
	} else {
		// The statement alone is undone.
		if later != nil || err != nil {
			b.t.Errorf("the next statement: %v; commit: %v", later, err)
		}
		b.wantRows(1)
		b.wantSold(coffee, 1)
		b.wantSold(tea, 1)
	}
	b.wantIdle()
}

// lockTimeout makes waits for locks short.
func (b *bench[Tx]) lockTimeout() map[string]string {
	return map[Database]map[string]string{
		Postgres: {"lock_timeout": "100"},
		MySQL:    {"innodb_lock_wait_timeout": "1"},
		SQLite:   {"busy_timeout": "50"},
	}[b.h.Database]
}

func swallowedTimeout[Tx any](b *bench[Tx]) {
	hasty := b.with(b.lockTimeout())
	rival := b.begin(b.Two, claimOf("order-41"), store.Fresh)
	b.exec(rival, sell(coffee))
	tx := b.begin(hasty, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(tea))
	b.swallow(tx, sell(coffee))
	err := hasty.Store.Commit(b.ctx, tx)
	if b.h.Database == Postgres {
		b.wantError(err, lost, store.ErrKeySurvived)
		b.wantSold(tea, 0)
	} else {
		// 1205 undoes the statement alone (innodb_rollback_on_timeout is off).
		if err != nil {
			b.t.Errorf("commit: %v", err)
		}
		b.wantSold(tea, 1)
	}
	b.rollback(b.Two, rival)
	b.wantSold(coffee, 0)
	b.wantIdle(hasty)
}

// deadlock makes the transaction tx the victim of one, and returns what it was
// told. It sold one tea before.
//
// PostgreSQL tells whoever waited first, InnoDB whoever changed less.
func (b *bench[Tx]) deadlock(tx Tx) error {
	b.t.Helper()
	b.exec(tx, sell(tea))
	rival, err := b.DB.BeginTx(b.ctx, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = rival.Rollback() }()
	step := func(statement string) {
		if _, err := rival.ExecContext(b.ctx, statement); err != nil {
			b.t.Errorf("the rival: %s: %v", statement, err)
		}
	}
	for n := range 50 {
		step(fmt.Sprintf("INSERT INTO sales VALUES (%d)", n))
	}
	step(sell(coffee))
	var told error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, told = b.h.Exec(b.ctx, tx, sell(coffee))
	}()
	b.wantWaiting(1, done)
	if b.h.Database == Postgres {
		// A session is seen to wait just before it starts its clock, by which
		// it finds the deadlock first.
		b.run("SELECT pg_sleep(0.1)")
	}
	step(sell(tea))
	b.wait(done)
	return told
}

func swallowedDeadlock[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.wantClass(b.One, b.deadlock(tx), store.ClassConflict)
	_, later := b.h.Exec(b.ctx, tx, "INSERT INTO sales VALUES (1000)")
	err := b.One.Store.Commit(b.ctx, tx)
	b.wantError(err, lost, store.ErrKeySurvived)
	b.wantRows(0)
	b.wantSold(tea, 0)
	b.wantSold(coffee, 0)
	written := b.number("SELECT count(*) FROM sales WHERE n = 1000")
	switch {
	case b.h.Database == Postgres && (later == nil || written != 0):
		b.t.Errorf("after the deadlock the transaction goes on: %v, %d rows", later, written)
	case b.h.Database == MySQL && (later != nil || written != 1):
		// Nobody can take it back: MySQL has ended the transaction, and each
		// later statement is one of its own. That is why it must be told.
		b.t.Errorf("after the deadlock: %v, %d rows; MySQL commits later statements one by one", later, written)
	}
	b.wantState("order-42", store.Fresh)
	b.wantIdle()
}

func deadlockThenRollback[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.wantClass(b.One, b.deadlock(tx), store.ClassConflict)
	b.rollback(b.One, tx)
	b.wantRows(0)
	b.wantSold(tea, 0)
	if _, err := b.process(b.One, claimOf("order-42"), b.sellOne); err != nil {
		b.t.Error(err)
	}
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func ownSavepoint[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.exec(tx, "SAVEPOINT handler")
	b.exec(tx, sell(tea))
	b.swallow(tx, twice)
	b.exec(tx, "ROLLBACK TO SAVEPOINT handler")
	b.exec(tx, sell(coffee))
	b.commit(b.One, tx)
	b.wantRows(1)
	b.wantSold(coffee, 2)
	b.wantSold(tea, 0)
	b.wantIdle()
}

func ddlInHandler[Tx any](b *bench[Tx]) {
	for i, end := range []string{"commit", "rollback"} {
		tx := b.begin(b.One, claimOf("order-"+end), store.Fresh)
		b.exec(tx, sell(coffee))
		b.exec(tx, "CREATE TABLE probe_"+end+" (n INT)")
		b.exec(tx, sell(tea))
		finish := b.One.Store.Commit
		if end == "rollback" {
			finish = b.One.Store.Rollback
		}
		err := finish(b.ctx, tx)
		if b.h.Database != MySQL {
			if err != nil {
				b.t.Errorf("%s: %v", end, err)
			}
			b.wantRows(1)
			b.wantSold(coffee, 1)
			b.wantSold(tea, 1)
			continue
		}
		// CREATE TABLE committed the key and the coffee.
		want := survived
		if end == "rollback" {
			want = []error{store.ErrKeySurvived}
		}
		b.wantError(err, want)
		b.wantRows(i + 1)
		b.wantSold(coffee, i+1)
	}
	b.wantIdle()
}

func ownCommit[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.exec(tx, "COMMIT")
	b.wantError(b.One.Store.Commit(b.ctx, tx), survived)
	b.wantRows(1)
	b.wantSold(coffee, 1)
	b.wantIdle()
}

func ownCommitThenRollback[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-41", "order-42"), store.Fresh, store.Fresh)
	b.exec(tx, "COMMIT")
	b.wantError(b.One.Store.Rollback(b.ctx, tx), []error{store.ErrKeySurvived})
	b.wantRows(2)
	b.wantIdle()
}

func ownCommitAndBegin[Tx any](b *bench[Tx]) {
	for i, end := range []string{"commit", "rollback"} {
		tx := b.begin(b.One, claimOf("order-"+end), store.Fresh)
		b.exec(tx, sell(coffee))
		b.exec(tx, "COMMIT")
		b.exec(tx, "BEGIN")
		b.exec(tx, sell(tea))
		if end == "commit" {
			b.wantError(b.One.Store.Commit(b.ctx, tx), survived)
		} else {
			b.wantError(b.One.Store.Rollback(b.ctx, tx), []error{store.ErrKeySurvived})
		}
		b.wantRows(i + 1)
		b.wantSold(coffee, i+1)
		b.wantSold(tea, 0) // the handler's second transaction is rolled back
	}
	b.wantIdle()
}

func ownRollback[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.exec(tx, "ROLLBACK")
	b.wantError(b.One.Store.Commit(b.ctx, tx), lost, store.ErrKeySurvived)
	tx = b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, "ROLLBACK")
	b.rollback(b.One, tx) // it is rolled back, as it was to be
	b.wantRows(0)
	b.wantSold(coffee, 0)
	b.wantState("order-42", store.Fresh)
	b.wantIdle()
}

func ownRollbackAndBegin[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	b.exec(tx, sell(coffee))
	b.exec(tx, "ROLLBACK")
	b.exec(tx, "BEGIN")
	b.exec(tx, sell(tea))
	b.wantError(b.One.Store.Commit(b.ctx, tx), lost, store.ErrKeySurvived)
	b.wantRows(0)
	b.wantSold(coffee, 0)
	b.wantSold(tea, 0)
	b.wantIdle()
}

func rivalAfterRollback[Tx any](b *bench[Tx]) {
	const rounds = 20
	for i := range rounds {
		claim := claimOf(fmt.Sprintf("order-%d", i))
		tx := b.begin(b.One, claim, store.Fresh)
		done := make(chan struct{})
		b.t.Cleanup(func() { b.cancel(); <-done })
		go func() {
			defer close(done)
			if state, err := b.process(b.Two, claim, b.sellOne); err != nil || state != store.Fresh {
				b.t.Errorf("the rival: %v, %v", state, err)
			}
		}()
		if b.h.Database != SQLite { // which cannot tell, and it takes long
			b.wantWaiting(1, done)
		}
		if err := b.One.Store.Rollback(b.ctx, tx); err != nil {
			b.t.Errorf("round %d: %v", i, err)
		}
		b.wait(done)
	}
	b.wantRows(rounds)
	b.wantSold(coffee, rounds)
	b.wantIdle()
}

func rivalAfterOwnRollback[Tx any](b *bench[Tx]) {
	for i, end := range []string{"commit", "rollback"} {
		claim := claimOf("order-" + end)
		tx := b.begin(b.One, claim, store.Fresh)
		b.exec(tx, "ROLLBACK")
		b.commit(b.Two, b.begin(b.Two, claim, store.Fresh))
		if end == "commit" {
			b.wantError(b.One.Store.Commit(b.ctx, tx), lost, store.ErrKeySurvived)
		} else {
			b.rollback(b.One, tx)
		}
		b.wantRows(i + 1)
	}
	b.wantIdle()
}

func lostConnection[Tx any](b *bench[Tx]) {
	id, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
	if b.h.Database == MySQL {
		id, kill = "SELECT CONNECTION_ID()", "KILL %d"
	}
	for _, end := range []string{"commit", "rollback", "work"} {
		tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
		b.exec(tx, sell(coffee))
		n, err := b.h.QueryInt(b.ctx, tx, id)
		if err != nil {
			b.t.Fatal(err)
		}
		b.run(fmt.Sprintf(kill, n))
		switch end {
		case "commit":
			err := b.One.Store.Commit(b.ctx, tx)
			if c := b.One.Store.Classify(err); err == nil || c != store.ClassUnavailable && !errors.Is(err, store.ErrCommitUnknown) {
				b.t.Errorf("commit: %v, of class %v", err, c)
			}
			b.wantError(err, []error{err}, store.ErrTransactionLost, store.ErrKeySurvived)
		case "work":
			_ = b.swallow(tx, sell(coffee))
			fallthrough
		case "rollback":
			err := b.One.Store.Rollback(context.WithoutCancel(b.ctx), tx)
			if err != nil && b.One.Store.Classify(err) != store.ClassUnavailable {
				b.t.Errorf("roll back: %v, of class %v", err, b.One.Store.Classify(err))
			}
		}
		b.wantIdle()
		b.wantState("order-42", store.Fresh)
	}
	b.wantRows(0)
	b.wantSold(coffee, 0)
}
