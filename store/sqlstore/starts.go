package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sekali/sekali/store"
)

// Starts returns the starts of handlers that have not ended, in the table
// message_starts, which sekali migrate makes.
func (s *Store) Starts() store.Starts[*sql.Tx] { return starts{s} }

// starts is the table message_starts, the same code for every database.
type starts struct{ s *Store }

func (st starts) query() *query { return &query{texts: st.s.texts} }

// exec runs one statement on the pool.
func (st starts) exec(ctx context.Context, doing string, q *query) error {
	if st.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, st.s.invalid)
	}
	if _, err := st.s.db.ExecContext(ctx, q.sql.String(), q.args...); err != nil {
		return st.failed(ctx, doing, err)
	}
	return nil
}

// Look implements store.Starts.
func (st starts) Look(ctx context.Context, consumer, key string) (recorded bool, lone int, err error) {
	doing := fmt.Sprintf("look for starts of consumer %q", consumer)
	if st.s.invalid != nil {
		return false, 0, fmt.Errorf("%s: %w", doing, st.s.invalid)
	}
	q := st.query()
	q.add("SELECT lone_starts FROM "+q.texts.MessageStarts+where, consumer, store.StoredKey(key))
	err = st.s.db.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&lone)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, 0, nil
	case err != nil:
		return false, 0, st.failed(ctx, doing, err)
	}
	return true, lone, nil
}

const where = " WHERE consumer_name = ? AND message_key = ?"

// Start implements store.Starts.
func (st starts) Start(ctx context.Context, consumer, key string, lone bool) (int, error) {
	count := 0
	if lone {
		count = 1
	}
	q := st.query()
	q.add("INSERT INTO "+q.texts.MessageStarts+" (consumer_name, message_key, lone_starts, started_at) VALUES (?, ?, ?, "+
		q.texts.Now+") "+q.texts.OnStart, consumer, store.StoredKey(key), count)
	if err := st.exec(ctx, fmt.Sprintf("record a start of consumer %q", consumer), q); err != nil {
		return 0, err
	}
	_, count, err := st.Look(ctx, consumer, key)
	return count, err
}

// TakeBack implements store.Starts.
func (st starts) TakeBack(ctx context.Context, consumer, key string) error {
	q := st.query()
	q.add("UPDATE "+q.texts.MessageStarts+" SET lone_starts = lone_starts - 1"+where+" AND lone_starts > 0", consumer, store.StoredKey(key))
	return st.exec(ctx, fmt.Sprintf("take a start of consumer %q back", consumer), q)
}

// End implements store.Starts.
func (st starts) End(ctx context.Context, consumer, key string) error {
	return st.exec(ctx, fmt.Sprintf("end the starts of a message of consumer %q", consumer), st.end(consumer, key))
}

func (st starts) end(consumer, key string) *query {
	q := st.query()
	q.add("DELETE FROM "+q.texts.MessageStarts+where, consumer, store.StoredKey(key))
	return q
}

// EndIn implements store.Starts.
func (st starts) EndIn(ctx context.Context, tx *sql.Tx, consumer, key string) error {
	q := st.end(consumer, key)
	if _, err := tx.ExecContext(ctx, q.sql.String(), q.args...); err != nil {
		return fmt.Errorf("end the starts of a message of consumer %q: %w", consumer, err)
	}
	return nil
}

// Check implements store.Starts.
func (st starts) Check(ctx context.Context) error {
	_, _, err := st.Look(ctx, "", "")
	return err
}

func (st starts) failed(ctx context.Context, doing string, err error) error {
	return st.s.failedOn(ctx, st.s.tables.MessageStarts, st.s.texts.MessageStarts, doing, err)
}
