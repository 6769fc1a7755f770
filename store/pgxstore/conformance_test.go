//go:build !fast

package pgxstore_test

import (
	"context"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/storetest"
)

func TestTheSuitePasses(t *testing.T) {
	storetest.Run(t, harness("cache_statement"))
}

// This and the next are what PgBouncer in transaction mode asks for.
func TestTheSuitePassesInTheSimpleProtocol(t *testing.T) {
	storetest.Run(t, harness("simple_protocol"))
}

func TestTheSuitePassesWithoutPreparedStatements(t *testing.T) {
	storetest.Run(t, harness("exec"))
}

func harness(mode string) storetest.Harness[pgx.Tx] {
	return storetest.Harness[pgx.Tx]{
		Database: storetest.Postgres,
		Open: func(t *testing.T, empty bool) storetest.Env[pgx.Tx] {
			var opts []dbtest.Option
			if empty {
				opts = append(opts, dbtest.Empty())
			}
			db := dbtest.Postgres(t, opts...)
			return storetest.Env[pgx.Tx]{DB: db.SQL, Client: func(_ *testing.T, settings map[string]string) storetest.Client[pgx.Tx] {
				settings = maps.Clone(settings)
				if settings == nil {
					settings = map[string]string{}
				}
				settings["default_query_exec_mode"] = mode
				return client(db, settings)
			}}
		},
		Exec: func(ctx context.Context, tx pgx.Tx, statement string) (int64, error) {
			tag, err := tx.Exec(ctx, statement)
			return tag.RowsAffected(), err
		},
		QueryInt: func(ctx context.Context, tx pgx.Tx, query string) (n int, err error) {
			err = tx.QueryRow(ctx, query).Scan(&n)
			return n, err
		},
	}
}

func client(db *dbtest.DB, settings map[string]string) storetest.Client[pgx.Tx] {
	pool := db.Pool(settings)
	return storetest.Client[pgx.Tx]{
		Store:    pgxstore.New(pool),
		Begin:    pool.Begin,
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		InUse:    func() int { return int(pool.Stat().AcquiredConns()) },
	}
}
