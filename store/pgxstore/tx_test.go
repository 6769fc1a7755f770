//go:build !fast

package pgxstore_test

import (
	"context"
	"io"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

func TestAHandlersOwnCommitAndRollbackAreRefusedAndDoNothing(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx := context.Background()
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	wantError(t, tx.Commit(ctx), pgxstore.ErrStoreEnds)
	if p, ok := pgxstore.ErrStoreEnds.(interface{ Permanent() bool }); !ok || !p.Permanent() {
		t.Error("a handler that returns it is tried again")
	}
	wantError(t, tx.Rollback(ctx), pgxstore.ErrStoreEnds)
	mustExec(t, tx, sell)
	commit(t, s, tx)
	wantFound(t, pool, 1, 2)
}

func TestPartsOfTheWorkCanBeUndone(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx := context.Background()
	tx := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, tx, sell)
	outer, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, outer, sell)
	inner, err := outer.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Exec(ctx, "SELECT 1/0"); err == nil {
		t.Fatal("1/0 must fail")
	}
	if err := inner.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wantError(t, inner.Rollback(ctx), pgx.ErrTxClosed)
	mustExec(t, outer, sell)
	if err := outer.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	undone, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, undone, sell)
	if err := undone.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	commit(t, s, tx)
	wantFound(t, pool, 1, 3)
}

func TestWhatATransactionCanDoItCanDoInEveryQueryMode(t *testing.T) {
	for name, m := range modes {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, schemaTable, mode(m))
			s := pgxstore.New(pool)
			tx := begin(t, s, claimOf("k"), store.Fresh)
			do(t, tx)
			commit(t, s, tx)
			if got := value[int](t, pool, "SELECT count(*) FROM stock"); got != 1+3 {
				t.Errorf("%d rows in stock, want 4", got)
			}
			wantKeys(t, pool, 1)
		})
	}
}

// do uses every method that does work.
func do(t *testing.T, tx pgx.Tx) {
	t.Helper()
	ctx := context.Background()
	n, err := tx.CopyFrom(ctx, pgx.Identifier{"stock"}, []string{"sku", "quantity"},
		pgx.CopyFromRows([][]any{{"a", 1}, {"b", 2}}))
	if err != nil || n != 2 {
		t.Fatalf("CopyFrom: %d, %v", n, err)
	}
	var b pgx.Batch
	b.Queue("INSERT INTO stock VALUES ($1, $2)", "c", 3)
	b.Queue("SELECT count(*) FROM stock")
	results := tx.SendBatch(ctx, &b)
	if _, err := results.Exec(); err != nil {
		t.Fatal(err)
	}
	var count int
	if err := results.QueryRow().Scan(&count); err != nil || count != 4 {
		t.Fatalf("SendBatch: %d, %v", count, err)
	}
	if err := results.Close(); err != nil {
		t.Fatal(err)
	}
	name := "double_" + strconv.Itoa(count)
	if _, err := tx.Prepare(ctx, name, "SELECT $1::int * 2"); err != nil {
		t.Fatal(err)
	}
	if tx.Conn().Config().DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
		if err := tx.QueryRow(ctx, name, 21).Scan(&count); err != nil || count != 42 {
			t.Fatalf("Prepare: %d, %v", count, err)
		}
	}
	large := tx.LargeObjects()
	oid, err := large.Create(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	object, err := large.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(object, "label"); err != nil {
		t.Fatal(err)
	}
	if err := large.Unlink(ctx, oid); err != nil {
		t.Fatal(err)
	}
}

func TestAfterTheEndNothingReachesTheConnection(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx := context.Background()
	for _, end := range []func(context.Context, pgx.Tx) error{s.Commit, s.Rollback} {
		for _, large := range []bool{false, true} {
			tx := begin(t, s, claimOf("k"), store.Fresh)
			nested, err := tx.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var held []pgx.LargeObjects
			if large {
				held = append(held, tx.LargeObjects(), nested.LargeObjects())
			}
			if err := end(ctx, tx); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, tx)
			wantClosed(t, nested)
			for _, l := range append(held, tx.LargeObjects(), nested.LargeObjects()) {
				_, err := l.Create(ctx, 0)
				wantError(t, err, pgx.ErrTxClosed)
			}
			mustExec(t, pool, "DELETE FROM processed_messages")
		}
	}
	wantFound(t, pool, 0, 0)
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
}

func wantClosed(t *testing.T, tx pgx.Tx) {
	t.Helper()
	ctx := context.Background()
	_, err := tx.Exec(ctx, sell)
	wantError(t, err, pgx.ErrTxClosed)
	rows, err := tx.Query(ctx, sell)
	wantError(t, err, pgx.ErrTxClosed)
	if rows.Next() {
		t.Error("rows after the end")
	}
	wantError(t, tx.QueryRow(ctx, "SELECT 1").Scan(new(int)), pgx.ErrTxClosed)
	_, err = tx.Begin(ctx)
	wantError(t, err, pgx.ErrTxClosed)
	_, err = tx.Prepare(ctx, "p", "SELECT 1")
	wantError(t, err, pgx.ErrTxClosed)
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"stock"}, []string{"sku"}, pgx.CopyFromRows(nil))
	wantError(t, err, pgx.ErrTxClosed)
	var b pgx.Batch
	b.Queue(sell)
	wantError(t, tx.SendBatch(ctx, &b).Close(), pgx.ErrTxClosed)
	wantError(t, tx.Commit(ctx), pgx.ErrTxClosed)
	wantError(t, tx.Rollback(ctx), pgx.ErrTxClosed)
}
