package pgxstore

import (
	"context"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store/sqlstore"
)

// Effects returns the ledger of effects outside the database, in the table
// external_effects, which sekali migrate makes. It takes its connections from
// the store's pool.
func (s *Store) Effects() effect.Rows { return effects{s} }

type effects struct{ s *Store }

var _ effect.Desk = effects{}

func (e effects) rows() (_ effect.Rows, done func()) {
	var lent *sqlstore.Store
	lent, done = e.s.lend()
	return lent.Effects(), done
}

// Start implements effect.Rows.
func (e effects) Start(ctx context.Context, id effect.ID, key string, lease time.Duration) (effect.Row, bool, error) {
	rows, done := e.rows()
	defer done()
	return rows.Start(ctx, id, key, lease)
}

// Take implements effect.Rows.
func (e effects) Take(ctx context.Context, r effect.Row, lease time.Duration) (effect.Row, bool, error) {
	rows, done := e.rows()
	defer done()
	return rows.Take(ctx, r, lease)
}

// Extend implements effect.Rows.
func (e effects) Extend(ctx context.Context, r effect.Row, lease time.Duration) (bool, error) {
	rows, done := e.rows()
	defer done()
	return rows.Extend(ctx, r, lease)
}

// Bind implements effect.Rows.
func (e effects) Bind(ctx context.Context, r effect.Row, fingerprint []byte) error {
	rows, done := e.rows()
	defer done()
	return rows.Bind(ctx, r, fingerprint)
}

// End implements effect.Rows.
func (e effects) End(ctx context.Context, r effect.Row, to effect.State, result []byte, text string) error {
	rows, done := e.rows()
	defer done()
	return rows.End(ctx, r, to, result, text)
}

// Check implements effect.Rows.
func (e effects) Check(ctx context.Context) error {
	rows, done := e.rows()
	defer done()
	return rows.Check(ctx)
}

// List implements effect.Desk.
func (e effects) List(ctx context.Context, f effect.Filter) ([]effect.Row, error) {
	rows, done := e.rows()
	defer done()
	return rows.(effect.Desk).List(ctx, f)
}

// Get implements effect.Desk.
func (e effects) Get(ctx context.Context, number int64) (effect.Row, error) {
	rows, done := e.rows()
	defer done()
	return rows.(effect.Desk).Get(ctx, number)
}

// Resolve implements effect.Desk.
func (e effects) Resolve(ctx context.Context, number int64, r effect.Resolution) error {
	rows, done := e.rows()
	defer done()
	return rows.(effect.Desk).Resolve(ctx, number, r)
}
