package pgxstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// Starts returns the starts of handlers that have not ended, in the table
// message_starts, which sekali migrate makes.
func (s *Store) Starts() store.Starts[pgx.Tx] { return starts{s} }

type starts struct{ s *Store }

func (st starts) table() (_ store.Starts[*sql.Tx], done func()) {
	lent, done := st.s.lend()
	return lent.Starts(), done
}

// Look implements store.Starts.
func (st starts) Look(ctx context.Context, consumer, key string) (bool, int, error) {
	t, done := st.table()
	defer done()
	return t.Look(ctx, consumer, key)
}

// Start implements store.Starts.
func (st starts) Start(ctx context.Context, consumer, key string, lone bool) (int, error) {
	t, done := st.table()
	defer done()
	return t.Start(ctx, consumer, key, lone)
}

// TakeBack implements store.Starts.
func (st starts) TakeBack(ctx context.Context, consumer, key string) error {
	t, done := st.table()
	defer done()
	return t.TakeBack(ctx, consumer, key)
}

// End implements store.Starts.
func (st starts) End(ctx context.Context, consumer, key string) error {
	t, done := st.table()
	defer done()
	return t.End(ctx, consumer, key)
}

// EndIn implements store.Starts.
func (st starts) EndIn(ctx context.Context, tx pgx.Tx, consumer, key string) error {
	_, err := tx.Exec(ctx, "DELETE FROM "+pgsql.Quote(st.s.tables, st.s.tables.MessageStarts)+
		" WHERE consumer_name = $1 AND message_key = $2", consumer, store.StoredKey(key))
	if err != nil {
		return fmt.Errorf("end the starts of a message of consumer %q: %w", consumer, err)
	}
	return nil
}

// Check implements store.Starts.
func (st starts) Check(ctx context.Context) error {
	t, done := st.table()
	defer done()
	return t.Check(ctx)
}
