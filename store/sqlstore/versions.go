package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/sekali/sekali/store"
)

// Versions returns the newest versions of entities, in the table
// entity_versions, which sekali migrate makes.
func (s *Store) Versions() store.Versions[*sql.Tx] { return versions{letters{s}} }

// versions is the table entity_versions, the same code for every database.
type versions struct{ letters }

// Advance implements store.Versions. What it read is read after the write, with
// a lock: how many rows an upsert counts differs between servers and clients.
func (v versions) Advance(ctx context.Context, tx *sql.Tx, consumer, entity string, version int64) (bool, error) {
	q := v.query()
	q.add("INSERT INTO "+q.texts.EntityVersions+" (consumer_name, entity, version, updated_at) VALUES (?, ?, ?, "+q.texts.Now+") "+q.texts.OnVersion,
		consumer, store.StoredKey(entity), version)
	if _, err := v.exec(ctx, tx, q); err != nil {
		return false, fmt.Errorf("raise the version of entity %q for consumer %q: %w", entity, consumer, err)
	}
	newest, err := v.newest(ctx, tx, consumer, entity, q.texts.ForUpdate)
	if err != nil {
		return false, fmt.Errorf("read the version of entity %q for consumer %q: %w", entity, consumer, err)
	}
	return newest > version, nil
}

// newest returns an entity's version; the least there is if it has none.
func (v versions) newest(ctx context.Context, from queryRower, consumer, entity, lock string) (newest int64, err error) {
	if v.s.invalid != nil {
		return 0, v.s.invalid
	}
	q := v.query()
	q.add("SELECT version FROM "+q.texts.EntityVersions+" WHERE consumer_name = ? AND entity = ?"+lock, consumer, store.StoredKey(entity))
	err = from.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&newest)
	if errors.Is(err, sql.ErrNoRows) {
		return -1 << 63, nil
	}
	return newest, err
}

type queryRower interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Stale implements store.Versions.
func (v versions) Stale(ctx context.Context, consumer, entity string, version int64) (bool, error) {
	newest, err := v.newest(ctx, v.s.db, consumer, entity, "")
	if err != nil {
		return false, v.failed(ctx, fmt.Sprintf("read the version of entity %q for consumer %q", entity, consumer), err)
	}
	return newest > version, nil
}

// Check implements store.Versions.
func (v versions) Check(ctx context.Context) error {
	_, err := v.Stale(ctx, "", "", 0)
	return err
}

func (v versions) failed(ctx context.Context, doing string, err error) error {
	return v.s.failedOn(ctx, v.s.tables.EntityVersions, v.s.texts.EntityVersions, doing, err)
}
