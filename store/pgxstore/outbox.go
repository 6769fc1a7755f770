package pgxstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

// Outbox returns the events that are to be published, in the table
// outbox_messages, which sekali migrate makes.
func (s *Store) Outbox() outbox.Adder[pgx.Tx] { return events{s} }

type events struct{ s *Store }

var _ outbox.Desk = events{}

// Add implements outbox.Adder, in one round trip.
func (e events) Add(ctx context.Context, tx pgx.Tx, rows []outbox.Row, lock bool) error {
	const doing = "add to the outbox"
	if e.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, e.s.invalid)
	}
	var batch pgx.Batch
	if lock {
		for _, key := range sqlstore.OrderingKeys(rows) {
			batch.Queue(pgsql.OutboxLock, []byte(key))
		}
	}
	texts := postgres.Dialect.Texts(e.s.tables)
	for some := range slices.Chunk(rows, sqlstore.EventsAtOnce) {
		text, args := texts.InsertEvents(some)
		batch.Queue(text, args...)
	}
	err := tx.SendBatch(ctx, &batch).Close()
	switch {
	case err == nil:
		return nil
	case pgsql.IsSchema(err):
		return fmt.Errorf("%s: %w", doing, &store.SchemaError{
			Table: e.s.tables.In(e.s.tables.OutboxMessages), Cause: "it is missing or lacks a column", Err: err,
			Mend: "run `sekali migrate up`",
		})
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// OnCommit implements outbox.Adder. A savepoint's commit is that of the whole.
func (e events) OnCommit(tx pgx.Tx, f func()) bool {
	var t *transaction
	switch x := tx.(type) {
	case *transaction:
		t = x
	case *savepoint:
		t = x.root
	default:
		return false
	}
	t.after = append(t.after, f) // one goroutine at a time uses a transaction
	return true
}

func (e events) rows() (_ outbox.Rows, done func()) {
	lent, done := e.s.lend()
	return lent.Outbox(), done
}

func (e events) desk() (_ outbox.Desk, done func()) {
	rows, done := e.rows()
	return rows.(outbox.Desk), done
}

// Tend implements outbox.Rows.
func (e events) Tend(ctx context.Context, relay string, lease time.Duration, leave []int) ([]int, int, error) {
	rows, done := e.rows()
	defer done()
	return rows.Tend(ctx, relay, lease, leave)
}

// Leave implements outbox.Rows.
func (e events) Leave(ctx context.Context, relay string) error {
	rows, done := e.rows()
	defer done()
	return rows.Leave(ctx, relay)
}

// Pending implements outbox.Rows.
func (e events) Pending(ctx context.Context, w outbox.Want) ([]outbox.Row, error) {
	rows, done := e.rows()
	defer done()
	return rows.Pending(ctx, w)
}

// Done implements outbox.Rows.
func (e events) Done(ctx context.Context, relay string, published []int64, failed []outbox.Failure) error {
	rows, done := e.rows()
	defer done()
	return rows.Done(ctx, relay, published, failed)
}

// Stats implements outbox.Rows.
func (e events) Stats(ctx context.Context) (outbox.Stats, error) {
	rows, done := e.rows()
	defer done()
	return rows.Stats(ctx)
}

// Check implements outbox.Rows.
func (e events) Check(ctx context.Context) error {
	rows, done := e.rows()
	defer done()
	return rows.Check(ctx)
}

// List implements outbox.Desk.
func (e events) List(ctx context.Context, f outbox.Filter) ([]outbox.Row, error) {
	desk, done := e.desk()
	defer done()
	return desk.List(ctx, f)
}

// Get implements outbox.Desk.
func (e events) Get(ctx context.Context, id int64) (outbox.Row, error) {
	desk, done := e.desk()
	defer done()
	return desk.Get(ctx, id)
}

// Retry implements outbox.Desk.
func (e events) Retry(ctx context.Context, id int64, d outbox.Decision) error {
	desk, done := e.desk()
	defer done()
	return desk.Retry(ctx, id, d)
}

// Discard implements outbox.Desk.
func (e events) Discard(ctx context.Context, id int64, d outbox.Decision) error {
	desk, done := e.desk()
	defer done()
	return desk.Discard(ctx, id, d)
}
