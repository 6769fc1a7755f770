package sekalitest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"github.com/sekali/sekali/migrate"
)

// template is an SQLite file with Sekali's tables, made once.
var template = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sekalitest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "template.db")
	db := sql.OpenDB(sqliteConnector(file))
	_, err = migrate.Up(context.Background(), db, migrate.SQLite)
	if closing := db.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// SQLite returns a new SQLite database in a temporary file, with Sekali's
// tables, on which it has run statements: the tables of the business and what
// is in them at first. It is closed at the end of the test. It waits a second
// for another's write (busy_timeout), in WAL mode.
func SQLite(t testing.TB, statements ...string) *sql.DB {
	t.Helper()
	bytes, err := template()
	if err != nil {
		t.Fatalf("make an SQLite file with Sekali's tables: %v", err)
	}
	file := filepath.Join(t.TempDir(), "test.db")
	if err := os.WriteFile(file, bytes, 0o600); err != nil {
		t.Fatalf("make an SQLite file with Sekali's tables: %v", err)
	}
	db := openDB(t, sqliteConnector(file))
	execute(t, db, statements)
	register(t, aged{db, migrate.SQLite})
	return db
}

func sqliteConnector(file string) driver.Connector {
	return dsn{&sqlite.Driver{}, "file:" + filepath.ToSlash(file) + "?_pragma=busy_timeout(1000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)"}
}

// dsn is the connector of a driver that has none.
type dsn struct {
	driver driver.Driver
	name   string
}

func (d dsn) Connect(context.Context) (driver.Conn, error) { return d.driver.Open(d.name) }
func (d dsn) Driver() driver.Driver                        { return d.driver }

// Postgres returns a pool on a new schema of the PostgreSQL server that url
// names, with Sekali's tables, in which it has run statements: the tables of
// the business and what is in them at first. The schema is dropped at the end
// of the test.
func Postgres(t testing.TB, url string, statements ...string) *pgxpool.Pool {
	t.Helper()
	config := newSchema(t, url, statements)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("open the schema of the test: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// PostgresDB is Postgres for database/sql.
func PostgresDB(t testing.TB, url string, statements ...string) *sql.DB {
	t.Helper()
	return openDB(t, stdlib.GetConnector(*newSchema(t, url, statements).ConnConfig))
}

// newSchema makes a schema with tables, and returns what leads to it.
func newSchema(t testing.TB, raw string, statements []string) *pgxpool.Config {
	t.Helper()
	if u, err := url.Parse(raw); err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		t.Fatal("the URL of the PostgreSQL server for tests is missing, or cannot be read: give postgres://user:password@host:5432/database" +
			" of a user who may create schemas")
	}
	config, err := pgxpool.ParseConfig(raw)
	if err != nil {
		t.Fatalf("the URL of the PostgreSQL server for tests: %v", err) // pgx leaves passwords out
	}
	name := "sekalitest_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = name
	config.MaxConns = 16 // tests hold several at once
	var tables strings.Builder
	if err := migrate.Print(&tables, migrate.Postgres); err != nil {
		t.Fatalf("make Sekali's tables: %v", err)
	}
	run := func(statements ...string) error { return runOn(config.ConnConfig, statements) }
	t.Cleanup(func() {
		if err := run("DROP SCHEMA IF EXISTS " + name + " CASCADE"); err != nil {
			t.Errorf("drop the schema of the test: %v", err)
		}
	})
	// All at once: a test has dozens of schemas.
	if err := run(slices.Concat([]string{"CREATE SCHEMA " + name, tables.String()}, statements)...); err != nil {
		t.Fatalf("make a schema for the test: %v", err)
	}
	db := stdlib.OpenDB(*config.ConnConfig)
	t.Cleanup(func() { _ = db.Close() })
	register(t, aged{db, migrate.Postgres})
	return config
}

// runOn runs statements on a connection of their own.
func runOn(config *pgx.ConnConfig, statements []string) error {
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, s := range statements {
		if _, err := conn.PgConn().Exec(ctx, s).ReadAll(); err != nil {
			return fmt.Errorf("run %s: %w", firstLine(s), err)
		}
	}
	return nil
}

func execute(t testing.TB, db *sql.DB, statements []string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.Background(), s); err != nil {
			t.Fatalf("run %s: %v", firstLine(s), err)
		}
	}
}

func firstLine(s string) string {
	first, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if more {
		first += " …"
	}
	return fmt.Sprintf("%q", first)
}

// Rows returns a Case.Snapshot: what queries return, a line for each row,
// values apart by " | ", an empty line between two queries. Give each query an
// ORDER BY.
func Rows[DB *sql.DB | *pgxpool.Pool](db DB, queries ...string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		parts := make([]string, len(queries))
		for i, q := range queries {
			var err error
			switch db := any(db).(type) {
			case *sql.DB:
				parts[i], err = rowsOf(ctx, db, q)
			case *pgxpool.Pool:
				lent := stdlib.OpenDBFromPool(db)
				parts[i], err = rowsOf(ctx, lent, q)
				_ = lent.Close() // the pool stays open
			}
			if err != nil {
				return "", fmt.Errorf("%s: %w", firstLine(q), err)
			}
		}
		return strings.Join(parts, "\n"), nil
	}
}

func rowsOf(ctx context.Context, db *sql.DB, query string) (string, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for rows.Next() {
		values, pointers := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			return "", err
		}
		for i, v := range values {
			if bytes, ok := v.([]byte); ok {
				v = string(bytes)
			}
			if i > 0 {
				b.WriteString(" | ")
			}
			fmt.Fprint(&b, v)
		}
		b.WriteByte('\n')
	}
	return b.String(), rows.Err()
}
