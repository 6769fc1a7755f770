package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/store"
)

var _ store.Ager = (*Store)(nil)

// agesOf is what a Dialect may have besides: the query for the stored form of
// each of keys that has a row, and for the age of the row in microseconds by
// the database's clock, NULL if it has no time.
type agesOf interface {
	Ages(t store.Tables, sh Shape, consumer string, keys []string) (query string, args []any)
}

// maxAges is how many keys go into one query.
const maxAges = 1000

// Ages implements store.Ager.
func (s *Store) Ages(ctx context.Context, c store.Claim) ([]time.Duration, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	doing := fmt.Sprintf("read the age of keys of consumer %q", c.Consumer)
	dialect, ok := s.dialect.(agesOf)
	if !ok {
		return nil, fmt.Errorf("%s: %w: the dialect has no method Ages", doing, errors.ErrUnsupported)
	}
	micros := make(map[string]int64, len(c.Keys))
	err := s.onConn(ctx, doing, func(conn *sql.Conn) error {
		shape, err := s.checked(ctx, conn)
		if err != nil {
			return err
		}
		for keys := range slices.Chunk(newKeys(c).stored(), maxAges) {
			query, args := dialect.Ages(s.tables, shape, c.Consumer, keys)
			if err := readAges(ctx, conn, query, args, micros); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return store.AgesOf(c, micros), nil
}

func readAges(ctx context.Context, conn *sql.Conn, query string, args []any, into map[string]int64) error {
	rows, err := conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var stored string
		var micros sql.NullInt64
		if err := rows.Scan(&stored, &micros); err != nil {
			return err
		}
		if micros.Valid {
			into[stored] = micros.Int64
		}
	}
	return rows.Err()
}
