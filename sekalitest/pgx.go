package sekalitest

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// watched returns the transaction for a handler whose statements are to be
// seen. database/sql's are seen by OpenDB.
func watched[Tx any](ctx context.Context, tx Tx) Tx {
	real, ok := any(tx).(pgx.Tx)
	if _, watching := ctx.Value(watchKey{}).(*watch); !ok || !watching {
		return tx
	}
	wrapped, ok := any(pgxTx{real}).(Tx)
	if !ok {
		return tx
	}
	return wrapped
}

// pgxTx is a transaction of pgx whose statements are seen.
type pgxTx struct{ pgx.Tx }

// Begin makes a savepoint.
func (t pgxTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := statement(ctx, true); err != nil {
		return nil, err
	}
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return pgxTx{inner}, nil
}

func (t pgxTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := statement(ctx, true); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, sql, args...)
}

func (t pgxTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := statement(ctx, true); err != nil {
		return failed{err: err}, err // as pgx does, whose callers may look at the rows alone
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t pgxTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := statement(ctx, true); err != nil {
		return failed{err: err}
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

// SendBatch counts as one statement: it is sent as a whole or not. pgx sends
// nothing for a context that has ended.
func (t pgxTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := statement(ctx, true); err != nil {
		b = new(pgx.Batch)
		b.Queue("sekalitest: this fails") // as what stands in its place does
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t pgxTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := statement(ctx, true); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, source)
}

// failed are the rows of a query that was not sent.
type failed struct {
	pgx.Rows
	err error
}

func (f failed) Close()                        {}
func (f failed) Err() error                    { return f.err }
func (f failed) Next() bool                    { return false }
func (f failed) Scan(...any) error             { return f.err }
func (f failed) Values() ([]any, error)        { return nil, f.err }
func (f failed) RawValues() [][]byte           { return nil }
func (f failed) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
func (f failed) Conn() *pgx.Conn               { return nil }
func (f failed) FieldDescriptions() []pgconn.FieldDescription {
	return nil
}
