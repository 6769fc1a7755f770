package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

// DeadLetters returns the dead letters that are kept beside the claims, in the
// table dead_letters, which sekali migrate makes. It takes its connections
// from the store's pool.
func (s *Store) DeadLetters() deadletter.Queue { return letters{s} }

// lend lends the pool to sqlstore, whose tables beside the claims these are,
// for one call at a time: a *sql.DB runs a goroutine until it is closed, and a
// store has no Close. Such calls are rare, and the pool keeps the connections.
func (s *Store) lend() (_ *sqlstore.Store, done func()) {
	db := stdlib.OpenDBFromPool(s.pool)
	// The pool is not closed with db, so nothing that Close returns matters.
	return sqlstore.New(db, postgres.Dialect, sqlstore.WithTables(s.tables)), func() { _ = db.Close() }
}

type letters struct{ s *Store }

var _ deadletter.Holder = letters{}

func (l letters) queue() (q deadletter.Queue, done func()) {
	lent, done := l.s.lend()
	return lent.DeadLetters(), done
}

// Blocked implements deadletter.Holder.
func (l letters) Blocked(ctx context.Context, consumer, orderingKey string) (bool, error) {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Holder).Blocked(ctx, consumer, orderingKey)
}

// Hold implements deadletter.Holder.
func (l letters) Hold(ctx context.Context, letter deadletter.Letter) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Holder).Hold(ctx, letter)
}

// Check implements deadletter.Checker.
func (l letters) Check(ctx context.Context) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Checker).Check(ctx)
}

// Put implements deadletter.Sink.
func (l letters) Put(ctx context.Context, letter deadletter.Letter) error {
	q, done := l.queue()
	defer done()
	return q.Put(ctx, letter)
}

// List implements deadletter.Queue.
func (l letters) List(ctx context.Context, f deadletter.Filter) ([]deadletter.Letter, error) {
	q, done := l.queue()
	defer done()
	return q.List(ctx, f)
}

// Get implements deadletter.Queue.
func (l letters) Get(ctx context.Context, id int64) (deadletter.Letter, error) {
	q, done := l.queue()
	defer done()
	return q.Get(ctx, id)
}

var _ deadletter.Desk = letters{}

// Count implements deadletter.Desk.
func (l letters) Count(ctx context.Context, f deadletter.Filter) (map[deadletter.Reason]int, error) {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Count(ctx, f)
}

// Redrive implements deadletter.Desk.
func (l letters) Redrive(ctx context.Context, id int64, d deadletter.Decision) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Redrive(ctx, id, d)
}

// Discard implements deadletter.Desk.
func (l letters) Discard(ctx context.Context, id int64, d deadletter.Decision) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Discard(ctx, id, d)
}

// Sent implements deadletter.Desk.
func (l letters) Sent(ctx context.Context, id int64, d deadletter.Decision) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Sent(ctx, id, d)
}

// Trail implements deadletter.Desk.
func (l letters) Trail(ctx context.Context, id int64, limit int) ([]deadletter.Audit, error) {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Trail(ctx, id, limit)
}

// Record implements deadletter.Desk.
func (l letters) Record(ctx context.Context, a deadletter.Audit) error {
	q, done := l.queue()
	defer done()
	return q.(deadletter.Desk).Record(ctx, a)
}
