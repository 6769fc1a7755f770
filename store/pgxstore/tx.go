package pgxstore

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store/internal/pgsql"
)

// transaction is what Begin hands out.
type transaction struct {
	scope
	conn *pgxpool.Conn
	plan *pgsql.Plan
	xid  string // of the transaction; empty if no key was fresh

	over  atomic.Bool
	large atomic.Bool // LargeObjects was called

	after []func() // the commit
}

func newTransaction(conn *pgxpool.Conn, inner pgx.Tx, plan *pgsql.Plan, xid string) *transaction {
	t := &transaction{conn: conn, plan: plan, xid: xid}
	t.scope = scope{root: t, inner: inner, raw: conn.Conn()}
	return t
}

// Commit does nothing but return ErrStoreEnds, or pgx.ErrTxClosed after the
// end.
func (t *transaction) Commit(context.Context) error { return t.refuse() }

// Rollback does nothing but return ErrStoreEnds, or pgx.ErrTxClosed after the
// end, so that a deferred Rollback does no harm.
func (t *transaction) Rollback(context.Context) error { return t.refuse() }

func (t *transaction) refuse() error {
	if t.over.Load() {
		return pgx.ErrTxClosed
	}
	return ErrStoreEnds
}

// giveBack returns the connection to the pool, which closes it if it is still
// in a transaction, busy or broken.
func (t *transaction) giveBack() {
	if t.large.Load() {
		// A LargeObjects that outlives the transaction holds pgx's own Tx.
		// Commit marks that as closed even if, as here, nothing can be sent.
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = t.inner.Commit(ended)
	}
	t.conn.Release()
}

// savepoint is a nested transaction. The handler ends it.
type savepoint struct{ scope }

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error { return s.tx().Commit(ctx) }

// Rollback rolls back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error { return s.tx().Rollback(ctx) }

// scope is what a transaction and a savepoint have in common: pgx's own Tx as
// long as the whole is open, and one that is closed from then on. The
// connection may serve somebody else by then.
type scope struct {
	root  *transaction
	inner pgx.Tx
	raw   *pgx.Conn
}

func (s *scope) tx() pgx.Tx {
	if s.root.over.Load() {
		return closedTx()
	}
	return s.inner
}

// closedTx returns a Tx all of whose methods fail with pgx.ErrTxClosed.
func closedTx() pgx.Tx {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx()
}

func (s *scope) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := s.tx().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{scope{root: s.root, inner: inner, raw: s.raw}}, nil
}

func (s *scope) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource,
) (int64, error) {
	return s.tx().CopyFrom(ctx, table, columns, source)
}

func (s *scope) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return s.tx().SendBatch(ctx, b)
}

func (s *scope) LargeObjects() pgx.LargeObjects {
	s.root.large.Store(true)
	return s.tx().LargeObjects()
}

func (s *scope) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return s.tx().Prepare(ctx, name, sql)
}

func (s *scope) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.tx().Exec(ctx, sql, args...)
}

func (s *scope) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.tx().Query(ctx, sql, args...)
}

func (s *scope) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.tx().QueryRow(ctx, sql, args...)
}

// Conn returns the connection. As with pgx, it must not be used after the end
// of the transaction.
func (s *scope) Conn() *pgx.Conn { return s.raw }
