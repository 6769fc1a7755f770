//go:build !fast

package pgxstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

func TestASwallowedErrorIsALostTransaction(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	if _, err := tx.Exec(context.Background(), "SELECT 1/0"); err == nil {
		t.Fatal("1/0 must fail")
	}
	err := s.Commit(context.Background(), tx)
	wantError(t, err, store.ErrTransactionLost)
	wantNotError(t, err, store.ErrKeySurvived)
	wantFound(t, pool, 0, 0)
}

func TestAHandlerThatEndsTheTransactionIsFoundOut(t *testing.T) {
	for _, c := range []struct {
		statements string
		survived   bool
		sold       int
	}{
		{"COMMIT", true, 1},
		{"COMMIT; BEGIN", true, 1},
		{"COMMIT AND CHAIN", true, 1},
		{"COMMIT; BEGIN; " + sell, true, 1},
		{"COMMIT; BEGIN; SELECT pg_current_xact_id()", true, 1},
		{"ROLLBACK", false, 0},
		{"ROLLBACK; BEGIN", false, 0},
		{"ROLLBACK; BEGIN; " + sell, false, 0},
		{"ROLLBACK AND CHAIN", false, 0},
	} {
		t.Run(c.statements, func(t *testing.T) {
			pool := newPool(t, schemaTable)
			s := pgxstore.New(pool)
			keys := 0
			if c.survived {
				keys = 1
			}
			handle := func(key string) pgx.Tx {
				tx := begin(t, s, claimOf(key), store.Fresh)
				mustExec(t, tx, sell)
				mustExec(t, tx, c.statements)
				return tx
			}
			err := s.Commit(context.Background(), handle("committed"))
			wantError(t, err, store.ErrTransactionLost)
			if c.survived {
				wantError(t, err, store.ErrKeySurvived)
			} else {
				wantNotError(t, err, store.ErrKeySurvived)
			}
			wantFound(t, pool, keys, c.sold)

			err = s.Rollback(context.Background(), handle("rolled back"))
			if c.survived {
				wantError(t, err, store.ErrKeySurvived)
			} else if err != nil {
				t.Fatal(err)
			}
			wantFound(t, pool, 2*keys, 2*c.sold)
		})
	}
}

func TestARivalsRowIsNotTakenForASurvivor(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, "ROLLBACK")
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	rollBack(t, s, tx)
	wantFound(t, pool, 1, 0)
}

func TestADeferredConstraintFailsTheCommitOnceAndForThatAttemptAlone(t *testing.T) {
	pool := newPool(t, schemaTable+`
		CREATE TABLE orders (id INT UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO orders VALUES (1);`)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell+"; INSERT INTO orders VALUES (1)")
	err := s.Commit(context.Background(), tx)
	if err == nil {
		t.Fatal("the commit must fail")
	}
	for _, not := range []error{store.ErrCommitUnknown, store.ErrTransactionLost, store.ErrUnavailable} {
		wantNotError(t, err, not)
	}
	if got := s.Classify(err); got != store.ClassFailed {
		t.Errorf("the class is %v", got)
	}
	wantFound(t, pool, 0, 0)
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made: the first must be good for more", n)
	}
	tx = begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	commit(t, s, tx)
	wantFound(t, pool, 1, 1)
}

func TestAWarningOfAHandlersOwnTriggerAtCommitIsNoDoubt(t *testing.T) {
	pool := newPool(t, schemaTable+`
		CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'low'; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER low AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION warn();`)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	commit(t, s, tx)
	wantFound(t, pool, 1, 1)
}

func TestALostAnswerToCommitIsUnknownAndTheKeyTells(t *testing.T) {
	var w wire
	pool := newPool(t, schemaTable, w.tap)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	other := newConn(t, pool)
	w.on("COMMIT", nil, func() {
		w.deaf.Store(true)
		waitUntil(t, other, "SELECT count(*) = 1 FROM processed_messages")
	})
	wantError(t, s.Commit(context.Background(), tx), store.ErrCommitUnknown)
	w.on("", nil, nil)
	w.deaf.Store(false)
	rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
	wantFound(t, pool, 1, 1)
}

func TestACommitThatTakesTooLongIsUnknown(t *testing.T) {
	pool := newPool(t, schemaTable+`
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_xact_lock(hashtext(current_schema)); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait();`)
	s := pgxstore.New(pool, pgxstore.WithCommitTimeout(50*time.Millisecond))
	blocker, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, blocker, "SELECT pg_advisory_xact_lock(hashtext(current_schema))")
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	wantError(t, s.Commit(context.Background(), tx), store.ErrCommitUnknown)
	if err := blocker.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Whether it came to be or not, the claim says the same as the stock.
	rollBack(t, s, begin(t, s, claimOf("other"), store.Fresh))
	waitUntil(t, pool, "SELECT (SELECT count(*) FROM processed_messages) = (SELECT 100 - quantity FROM stock)")
}

func TestTheDeadlineOfACommitEndsWithIt(t *testing.T) {
	pool := newPool(t, schemaTable, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := pgxstore.New(pool, pgxstore.WithCommitTimeout(500*time.Millisecond))
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	mustExec(t, pool, "SELECT pg_sleep(0.6)")
	wantFound(t, pool, 1, 0)
}

func TestATransactionOfDuplicatesAloneIsLostToo(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	commit(t, s, begin(t, s, claimOf("k"), store.Duplicate))
	tx := begin(t, s, claimOf("k"), store.Duplicate)
	mustExec(t, tx, "COMMIT")
	err := s.Commit(context.Background(), tx)
	wantError(t, err, store.ErrTransactionLost)
	wantNotError(t, err, store.ErrKeySurvived)
	wantFound(t, pool, 1, 0)
}

func TestCommitAndRollbackIgnoreTheCallersCancellation(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx, cancel := context.WithCancel(context.Background())
	tx, _, err := s.Begin(ctx, claimOf("k"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	mustExec(t, tx, sell)
	if err := s.Commit(ctx, tx); err != nil {
		t.Fatal(err)
	}
	tx = begin(t, s, claimOf("l"), store.Fresh)
	if err := s.Rollback(ctx, tx); err != nil {
		t.Fatal(err)
	}
	wantFound(t, pool, 1, 1)
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
}

func TestALostConnectionIsNeverTheHandlersFault(t *testing.T) {
	for _, end := range []string{"commit", "rollback"} {
		for _, noticed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, noticed before: %v", end, noticed), func(t *testing.T) {
				pool := newPool(t, schemaTable)
				s := pgxstore.New(pool)
				commit(t, s, begin(t, s, claimOf("before"), store.Fresh)) // it prepares what is prepared once
				tx := begin(t, s, claimOf("k"), store.Fresh)
				mustExec(t, tx, sell)
				pid := tx.Conn().PgConn().PID()
				value[bool](t, pool, "SELECT pg_terminate_backend($1)", pid)
				waitUntil(t, pool, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", pid)
				if noticed {
					if _, err := tx.Exec(context.Background(), sell); err == nil {
						t.Fatal("the connection must be gone")
					}
				}
				var err error
				if end == "commit" {
					err = s.Commit(context.Background(), tx)
				} else {
					err = s.Rollback(context.Background(), tx)
				}
				if end == "commit" && !noticed {
					wantError(t, err, store.ErrCommitUnknown)
				} else {
					wantError(t, err, store.ErrUnavailable)
				}
				wantFound(t, pool, 1, 0)
			})
		}
	}
}

func TestASurvivorIsFoundEvenThoughTheConnectionIsLost(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, "COMMIT")
	if err := tx.Conn().Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Rollback(context.Background(), tx), store.ErrKeySurvived)
	wantFound(t, pool, 1, 0)
}

func TestAHandlerThatIsIdleForTooLongFailsInsteadOfRunningForEver(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	tx := begin(t, s, claimOf("k"), store.Fresh)
	pid := tx.Conn().PgConn().PID()
	mustExec(t, tx, "SET LOCAL idle_in_transaction_session_timeout = 10")
	waitUntil(t, pool, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", pid)
	err := s.Commit(context.Background(), tx)
	if err == nil {
		t.Fatal("the commit must fail")
	}
	wantNotError(t, err, store.ErrCommitUnknown)
	if got := s.Classify(err); got != store.ClassFailed {
		t.Errorf("the class of %v is %v", err, got)
	}
	wantFound(t, pool, 0, 0)
}

func TestAResultLeftUnreadCommitsNothing(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	unread := func() pgx.Tx {
		tx := begin(t, s, claimOf("k"), store.Fresh)
		mustExec(t, tx, sell)
		if _, err := tx.Query(context.Background(), "SELECT generate_series(1, 100000)"); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	err := s.Commit(context.Background(), unread())
	wantNotError(t, err, store.ErrCommitUnknown)
	if err == nil || s.Classify(err) != store.ClassFailed {
		t.Fatalf("the error is %v", err)
	}
	rollBack(t, s, unread())
	rollBack(t, s, begin(t, s, claimOf("k"), store.Fresh))
	wantFound(t, pool, 0, 0)
}

func TestATransactionEndsOnce(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx := context.Background()
	tx := begin(t, s, claimOf("k"), store.Fresh)
	commit(t, s, tx)
	rollBack(t, s, tx)
	wantError(t, s.Commit(ctx, tx), pgx.ErrTxClosed)
	other, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.Commit(ctx, other) == nil || s.Rollback(ctx, other) == nil {
		t.Error("a transaction of the user's own is not the store's to end")
	}
	if err := other.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wantFound(t, pool, 1, 0)
}

func TestAMessageCostsThreeRoundTrips(t *testing.T) {
	for name, m := range modes {
		t.Run(name, func(t *testing.T) {
			var w wire
			pool := newPool(t, schemaTable, w.tap, mode(m))
			s := pgxstore.New(pool)
			message := func(key string) {
				tx := begin(t, s, claimOf(key), store.Fresh)
				if _, err := tx.Exec(context.Background(), sell); err != nil {
					t.Fatal(err)
				}
				commit(t, s, tx)
			}
			message("first") // checks the schema, prepares statements
			before := w.count()
			message("second")
			got, want := w.count()-before, 3
			if m == pgx.QueryExecModeDescribeExec {
				want = 4 // that mode describes every statement first
			}
			if got != want {
				t.Errorf("a message took %d round trips, want %d", got, want)
			}
		})
	}
}

func BenchmarkOneMessage(b *testing.B) {
	pool := newPool(b, schemaTable, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := pgxstore.New(pool)
	for i := 0; b.Loop(); i++ {
		tx := begin(b, s, claimOf(fmt.Sprint("k", i)), store.Fresh)
		if _, err := tx.Exec(context.Background(), sell); err != nil {
			b.Fatal(err)
		}
		commit(b, s, tx)
	}
}
