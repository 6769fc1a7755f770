package sqlstore_test

import (
	"context"
	"database/sql"
	"testing"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
	"github.com/sekali/sekali/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheSuitePassesOnSQLite(t *testing.T) {
	storetest.Run(t, harness(storetest.SQLite, sqlite.Dialect, dbtest.SQLite, nil))
}

// harness gives the suite a store on databases that open makes. Its sessions
// have the settings always besides those of the test.
func harness(
	kind storetest.Database, d sqlstore.Dialect, open func(testing.TB, ...dbtest.Option) *dbtest.DB, always map[string]string,
) storetest.Harness[*sql.Tx] {
	return storetest.Harness[*sql.Tx]{
		Database: kind,
		Open: func(t *testing.T, empty bool) storetest.Env[*sql.Tx] {
			var opts []dbtest.Option
			if empty {
				opts = append(opts, dbtest.Empty())
			}
			db := open(t, opts...)
			return storetest.Env[*sql.Tx]{DB: db.SQL, Client: func(_ *testing.T, settings map[string]string) storetest.Client[*sql.Tx] {
				all := map[string]string{}
				for _, some := range []map[string]string{always, settings} {
					for name, value := range some {
						all[name] = value
					}
				}
				return client(db.Open(all), d)
			}}
		},
		Exec: func(ctx context.Context, tx *sql.Tx, statement string) (int64, error) {
			result, err := tx.ExecContext(ctx, statement)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		},
		QueryInt: func(ctx context.Context, tx *sql.Tx, query string) (n int, err error) {
			err = tx.QueryRowContext(ctx, query).Scan(&n)
			return n, err
		},
	}
}

func client(pool *sql.DB, d sqlstore.Dialect) storetest.Client[*sql.Tx] {
	return storetest.Client[*sql.Tx]{
		Store:    sqlstore.New(pool, d),
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return pool.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		InUse:    func() int { return pool.Stats().InUse },
	}
}
