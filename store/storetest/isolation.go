package storetest

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/sekali/sekali/store"
)

func isolationTests[Tx any]() []test[Tx] {
	var tests []test[Tx]
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for _, each := range []test[Tx]{
			{name: "a message has one effect", f: oneEffect[Tx](level)},
			{name: "rivals have one effect", f: oneEffectOfMany[Tx](level)},
			{name: "the second is told of another body after it waited", f: conflictAfterWait[Tx](level)},
			{name: "a key committed after our snapshot is never fresh", f: oldSnapshot[Tx](level)},
		} {
			each.name = level + ": " + each.name
			each.on = databases{Postgres, MySQL}
			tests = append(tests, each)
		}
	}
	return tests
}

// isolated returns a client whose transactions have an isolation level.
func (b *bench[Tx]) isolated(level string) Client[Tx] {
	b.t.Helper()
	if b.h.Database == Postgres {
		return b.with(map[string]string{"default_transaction_isolation": level})
	}
	var version string
	if err := b.DB.QueryRowContext(b.ctx, "SELECT VERSION()").Scan(&version); err != nil {
		b.t.Fatal(err)
	}
	variable := "transaction_isolation"
	if strings.Contains(version, "MariaDB") {
		variable = "tx_isolation"
	}
	return b.with(map[string]string{variable: "'" + strings.ToUpper(strings.ReplaceAll(level, " ", "-")) + "'"})
}

func oneEffect[Tx any](level string) func(*bench[Tx]) {
	return func(b *bench[Tx]) {
		c := b.isolated(level)
		want := []store.State{store.Fresh, store.Duplicate, store.Duplicate}
		for i, w := range want {
			got, err := b.process(c, bodies(bodied("order-42", "one")), b.sellOne)
			if err != nil || got != w {
				b.t.Errorf("delivery %d: %v, %v, want %v", i+1, got, err, w)
			}
		}
		if got, err := b.process(c, bodies(bodied("order-42", "two")), b.sellOne); err != nil || got != store.Conflict {
			b.t.Errorf("another body: %v, %v", got, err)
		}
		b.wantRows(1)
		b.wantSold(coffee, 1)
		b.wantIdle(c)
	}
}

func oneEffectOfMany[Tx any](level string) func(*bench[Tx]) {
	return func(b *bench[Tx]) {
		c := b.isolated(level)
		var fresh atomic.Int64
		b.workers(8, func(_ int, _ Client[Tx]) error {
			for _, raw := range []string{"a", "b", "c"} {
				state, err := b.process(c, claimOf(raw), b.sellOne)
				if err != nil {
					return err
				}
				if state == store.Fresh {
					fresh.Add(1)
				}
			}
			return nil
		})
		if fresh.Load() != 3 {
			b.t.Errorf("%d were fresh, want 3", fresh.Load())
		}
		b.wantRows(3)
		b.wantSold(coffee, 3)
		b.wantIdle(c)
	}
}

func conflictAfterWait[Tx any](level string) func(*bench[Tx]) {
	return func(b *bench[Tx]) {
		c := b.isolated(level)
		first := b.begin(c, bodies(bodied("order-42", "one")), store.Fresh)
		done := make(chan struct{})
		b.t.Cleanup(func() { b.cancel(); <-done })
		var state store.State
		var err error
		go func() {
			defer close(done)
			state, err = b.process(c, bodies(bodied("order-42", "two")), b.sellOne)
		}()
		b.wantWaiting(1, done)
		b.exec(first, sell(tea))
		b.commit(c, first)
		b.wait(done)
		if err != nil || state != store.Conflict {
			b.t.Errorf("the second: %v, %v, want conflict", state, err)
		}
		b.wantRows(1)
		b.wantSold(coffee, 0)
		b.wantIdle(c)
	}
}

// oldSnapshot: the user's transaction has looked at the database before a
// rival commits the key.
func oldSnapshot[Tx any](level string) func(*bench[Tx]) {
	return func(b *bench[Tx]) {
		c := b.isolated(level)
		for _, claim := range []store.Claim{claimOf("order-42"), bodies(bodied("order-43", "one"))} {
			b.ownTx(c, false, func(tx Tx) {
				if _, err := b.h.QueryInt(b.ctx, tx, "SELECT count(*) FROM processed_messages WHERE consumer_name = 'nobody'"); err != nil {
					b.t.Fatal(err)
				}
				// SERIALIZABLE on MySQL may lock what was looked at, so the rival
				// is another one's whole message only where it can be.
				if level == "serializable" && b.h.Database == MySQL {
					return
				}
				b.commit(b.Two, b.begin(b.Two, claim, store.Fresh))
				states, err := c.Store.Claim(b.ctx, tx, claim)
				switch {
				case err != nil:
					b.wantClass(c, err, store.ClassConflict)
					b.wantError(err, []error{err}, store.ErrNoKey)
				case states[0] == store.Fresh:
					b.t.Errorf("a key that was committed is fresh: %v", errors.New(claim.Keys[0].Raw))
				}
			})
		}
		b.wantIdle(c)
	}
}
