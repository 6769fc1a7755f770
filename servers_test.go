//go:build !fast

package sekali_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

func execPgx(ctx context.Context, tx pgx.Tx, statement string) error {
	_, err := tx.Exec(ctx, statement)
	return err
}

func TestPostgreSQLWithPgx(t *testing.T) {
	db := dbtest.Postgres(t)
	whole(t, stack[pgx.Tx]{"pgx", db, pgxstore.New(db.Pool(nil)), execPgx, natstest.RealURL(t)})
}

func TestPostgreSQLWithDatabaseSQL(t *testing.T) {
	db := dbtest.Postgres(t)
	whole(t, stack[*sql.Tx]{"postgres", db, sqlstore.New(db.SQL, postgres.Dialect), execSQL, natstest.RealURL(t)})
}

func TestMariaDB(t *testing.T) {
	db := dbtest.MySQL(t)
	whole(t, stack[*sql.Tx]{"mysql", db, sqlstore.New(db.SQL, mysql.Dialect), execSQL, natstest.RealURL(t)})
}

func serverRacer(kind, url string) error {
	if kind == "pgx" {
		pool, err := pgxpool.New(context.Background(), url)
		if err != nil {
			return err
		}
		defer pool.Close()
		return runRacer(pgxstore.New(pool), execPgx)
	}
	db, err := dburl.Open(context.Background(), url, false)
	if err != nil {
		return fmt.Errorf("racer: %w", err)
	}
	defer db.Close()
	return runRacer(sqlstore.New(db.SQL, db.Dialect()), execSQL)
}
