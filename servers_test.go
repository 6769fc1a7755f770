//go:build !fast

package sekali_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store"
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

// throughProxy returns a proxy before a database's server, and the URL that
// leads through it.
func throughProxy(t *testing.T, db *dbtest.DB) (*faulty.Proxy, string) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faulty.NewProxy(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	u.Host = proxy.Addr()
	return proxy, u.String()
}

func TestAHundredLostAnswersToCommitLeaveCountersExact(t *testing.T) {
	t.Run("PostgreSQL with pgx", func(t *testing.T) {
		db := dbtest.Postgres(t)
		proxy, through := throughProxy(t, db)
		pool, err := pgxpool.New(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		lostCommits(t, db, proxy, "COMMIT", pgxstore.New(pool), execPgx)
	})
	for name, c := range map[string]struct {
		open    func(testing.TB, ...dbtest.Option) *dbtest.DB
		pattern string
	}{
		"PostgreSQL with database/sql": {dbtest.Postgres, "commit"},
		"MariaDB":                      {dbtest.MySQL, "COMMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			db := c.open(t)
			proxy, through := throughProxy(t, db)
			client, err := dburl.Open(t.Context(), through, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			lostCommits(t, db, proxy, c.pattern, sqlstore.New(client.SQL, client.Dialect()), execSQL)
		})
	}
}

func lostCommits[Tx any](t *testing.T, db *dbtest.DB, proxy *faulty.Proxy, pattern string, s store.Store[Tx],
	exec func(context.Context, Tx, string) error,
) {
	const lost, all = 100, 150
	for _, statement := range []string{`CREATE TABLE stock (quantity BIGINT NOT NULL)`, `INSERT INTO stock VALUES (0)`} {
		if _, err := db.SQL.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	rule := proxy.DropAnswer(pattern, lost)
	inbox := sekali.NewInbox(s, "stock-service")
	outcomes := map[sekali.Outcome]int{}
	for i := range all {
		outcome, err := inbox.Process(t.Context(), fmt.Sprint("order-", i), func(ctx context.Context, tx Tx) error {
			return exec(ctx, tx, `UPDATE stock SET quantity = quantity + 1`)
		})
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		outcomes[outcome]++
	}
	var sold, keys int
	if err := db.SQL.QueryRow(`SELECT (SELECT quantity FROM stock), (SELECT COUNT(*) FROM processed_messages)`).Scan(&sold, &keys); err != nil {
		t.Fatal(err)
	}
	if sold != all || keys != all || rule.Fired() != lost {
		t.Errorf("%d effects and %d keys of %d messages, after %d lost answers", sold, keys, all, rule.Fired())
	}
	// The call did the work, lost the answer, and found its own key.
	if outcomes[sekali.Duplicate] != lost || outcomes[sekali.Processed] != all-lost {
		t.Errorf("the outcomes are %v", outcomes)
	}
}
