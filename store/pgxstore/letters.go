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

// letters lends the pool to sqlstore, whose queue it is, for one call at a
// time: a *sql.DB runs a goroutine until it is closed, and a store has no
// Close. Letters are rare, and the pool keeps the connections.
type letters struct{ s *Store }

func (l letters) queue() (q deadletter.Queue, done func()) {
	db := stdlib.OpenDBFromPool(l.s.pool)
	// The pool is not closed with db, so nothing that Close returns matters.
	return sqlstore.New(db, postgres.Dialect, sqlstore.WithTables(l.s.tables)).DeadLetters(), func() { _ = db.Close() }
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
