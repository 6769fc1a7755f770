package pgxstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// Versions returns the newest versions of entities, in the table
// entity_versions, which sekali migrate makes.
func (s *Store) Versions() store.Versions[pgx.Tx] { return versions{s} }

type versions struct{ s *Store }

func (v versions) table() (_ store.Versions[*sql.Tx], done func()) {
	lent, done := v.s.lend()
	return lent.Versions(), done
}

// Advance implements store.Versions, in one round trip.
func (v versions) Advance(ctx context.Context, tx pgx.Tx, consumer, entity string, version int64) (bool, error) {
	var newest int64
	err := tx.QueryRow(ctx, pgsql.New(v.s.tables).Advance(), consumer, store.StoredKey(entity), version).Scan(&newest)
	if err != nil {
		return false, fmt.Errorf("raise the version of entity %q for consumer %q: %w", entity, consumer, err)
	}
	return newest > version, nil
}

// Stale implements store.Versions.
func (v versions) Stale(ctx context.Context, consumer, entity string, version int64) (bool, error) {
	t, done := v.table()
	defer done()
	return t.Stale(ctx, consumer, entity, version)
}

// Check implements store.Versions.
func (v versions) Check(ctx context.Context) error {
	t, done := v.table()
	defer done()
	return t.Check(ctx)
}
