package pgxstore

import (
	"context"
	"time"

	"github.com/sekali/sekali/store"
)

// Stats returns what consumers did, in the table consumer_stats, which sekali
// migrate makes. It takes its connections from the store's pool.
func (s *Store) Stats() store.Stats { return stats{s} }

type stats struct{ s *Store }

func (st stats) table() (_ store.Stats, done func()) {
	lent, done := st.s.lend()
	return lent.Stats(), done
}

// Add implements store.Stats.
func (st stats) Add(ctx context.Context, consumer string, c store.Counts) error {
	t, done := st.table()
	defer done()
	return t.Add(ctx, consumer, c)
}

// Stats implements store.Stats.
func (st stats) Stats(ctx context.Context, consumer string, from, to time.Time) ([]store.Minute, error) {
	t, done := st.table()
	defer done()
	return t.Stats(ctx, consumer, from, to)
}

// Check implements store.Stats.
func (st stats) Check(ctx context.Context) error {
	t, done := st.table()
	defer done()
	return t.Check(ctx)
}
