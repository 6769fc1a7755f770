// Package dbtest gives each test a schema of its own on a real server, with
// Sekali's tables in it, and drops it afterwards. So tests run in parallel
// against one server.
//
// Files with tests that need a server bear the build constraint !fast.
package dbtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // driver "mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	_ "modernc.org/sqlite"             // driver "sqlite"

	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store"
)

// The environment variables that name the servers.
const (
	PostgresEnv = "SEKALI_TEST_POSTGRES_URL"
	MySQLEnv    = "SEKALI_TEST_MYSQL_URL"
)

// dropTimeout bounds dropping a schema. It passes only if a test left a
// transaction open.
const dropTimeout = 30 * time.Second

// DB is a database, or a schema of one, that belongs to one test.
type DB struct {
	// URL leads to the schema: for pgxpool, for sekali --database.
	URL string
	// SQL is an open pool on it.
	SQL *sql.DB
	// Dialect says what it is.
	Dialect migrate.Dialect
	// Schema is its name; empty on SQLite.
	Schema string

	t testing.TB
}

type options struct {
	empty  bool
	tables store.Tables
}

// Option changes what a test gets.
type Option func(*options)

// Empty leaves the schema without tables.
func Empty() Option { return func(o *options) { o.empty = true } }

// Tables makes tables with other names.
func Tables(t store.Tables) Option { return func(o *options) { o.tables = t } }

// Postgres returns a new schema on the PostgreSQL server that
// SEKALI_TEST_POSTGRES_URL names.
func Postgres(t testing.TB, opts ...Option) *DB {
	t.Helper()
	base := server(t, PostgresEnv)
	d := &DB{Dialect: migrate.Postgres, Schema: newName(t), t: t}
	d.create(base, `CREATE SCHEMA "`+d.Schema+`"`, `DROP SCHEMA "`+d.Schema+`" CASCADE`)
	q := base.Query()
	q.Set("search_path", d.Schema)
	base.RawQuery = q.Encode()
	return d.open(base.String(), opts)
}

// MySQL returns a new database on the MySQL or MariaDB server that
// SEKALI_TEST_MYSQL_URL names. Its default collation folds case.
func MySQL(t testing.TB, opts ...Option) *DB {
	t.Helper()
	base := server(t, MySQLEnv)
	d := &DB{Dialect: migrate.MySQL, Schema: newName(t), t: t}
	d.create(base, "CREATE DATABASE "+d.Schema+" CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "DROP DATABASE "+d.Schema)
	base.Path = "/" + d.Schema
	return d.open(base.String(), opts)
}

// SQLite returns a new file: busy_timeout 5 s, WAL, synchronous=FULL.
func SQLite(t testing.TB, opts ...Option) *DB {
	t.Helper()
	d := &DB{Dialect: migrate.SQLite, t: t}
	return d.open("sqlite:"+filepath.Join(t.TempDir(), "test.db"), opts)
}

func (d *DB) open(u string, opts []Option) *DB {
	d.t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	d.URL = u
	d.SQL = d.Open(nil)
	if o.empty {
		return d
	}
	if _, err := migrate.Up(context.Background(), d.SQL, d.Dialect, migrate.WithTables(o.tables)); err != nil {
		d.t.Fatalf("migrate the schema of the test: %v", err)
	}
	return d
}

// Open returns a further pool on the same database. Settings are run-time
// parameters of its sessions (PostgreSQL), system variables as SQL
// expressions (MySQL), or pragmas (SQLite); they win over the usual ones.
func (d *DB) Open(settings map[string]string) *sql.DB {
	d.t.Helper()
	db, err := sql.Open(d.driver(settings))
	if err != nil {
		d.t.Fatalf("open %s: %v", dburl.Redact(d.URL), err)
	}
	d.t.Cleanup(func() {
		if err := db.Close(); err != nil {
			d.t.Errorf("close %s: %v", dburl.Redact(d.URL), err)
		}
	})
	return db
}

func (d *DB) driver(settings map[string]string) (name, source string) {
	d.t.Helper()
	switch d.Dialect {
	case migrate.Postgres:
		return "pgx", d.With(settings)
	case migrate.MySQL:
		return "mysql", dsn(d.t, parse(d.t, d.With(settings)))
	}
	pragmas := map[string]string{"busy_timeout": "5000", "journal_mode": "WAL", "synchronous": "FULL", "foreign_keys": "1"}
	for name, value := range settings {
		pragmas[name] = value
	}
	q := url.Values{}
	for name, value := range pragmas {
		q.Add("_pragma", name+"("+value+")")
	}
	return "sqlite", "file:" + parse(d.t, d.URL).Opaque + parse(d.t, d.URL).Path + "?" + q.Encode()
}

// With returns the URL with settings as Open takes them.
func (d *DB) With(settings map[string]string) string {
	d.t.Helper()
	u := parse(d.t, d.URL)
	q := u.Query()
	for name, value := range settings {
		q.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes a plus for a plus
	return u.String()
}

// poolSize is how many connections a Pool has at most: more than the few that
// pgx takes for good on a small machine, since tests hold several at once.
const poolSize = 16

// Pool returns a further pool of pgx, of 16 connections at most, on the same
// PostgreSQL schema.
func (d *DB) Pool(settings map[string]string) *pgxpool.Pool {
	d.t.Helper()
	if d.Dialect != migrate.Postgres {
		d.t.Fatalf("a pool of pgx leads to PostgreSQL, not to %s", d.Dialect)
	}
	config, err := pgxpool.ParseConfig(d.With(settings))
	if err != nil {
		d.t.Fatalf("read %s: %v", dburl.Redact(d.URL), err)
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		d.t.Fatalf("open %s: %v", dburl.Redact(d.URL), err)
	}
	d.t.Cleanup(pool.Close)
	return pool
}

// create makes the schema and drops it at the end of the test, when all pools
// on it are closed.
func (d *DB) create(base *url.URL, create, drop string) {
	d.t.Helper()
	run := func(statement string) error {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		driver, source := "pgx", base.String()
		if d.Dialect == migrate.MySQL {
			driver, source = "mysql", dsn(d.t, base)
		}
		db, err := sql.Open(driver, source)
		if err != nil {
			return err
		}
		defer db.Close()
		_, err = db.ExecContext(ctx, statement)
		return err
	}
	server := *base
	base = &server
	if err := run(create); err != nil {
		d.t.Fatalf("make a schema for the test on %s: %v", dburl.Redact(base.String()), err)
	}
	d.t.Cleanup(func() {
		if err := run(drop); err != nil {
			d.t.Errorf("drop the schema of the test, in which a transaction may still be open: %v", err)
		}
	})
}

// server returns the URL of a server, or ends the test.
func server(t testing.TB, env string) *url.URL {
	t.Helper()
	raw := os.Getenv(env)
	if raw == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Debian packages or Docker) and"+
			" `eval \"$(scripts/services env)\"`; or set it to a server of yours", env)
	}
	return parse(t, raw)
}

func parse(t testing.TB, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatalf("read %s as a URL: it cannot be read: use scheme://user:password@host:port/database", dburl.Redact(raw))
	}
	return u
}

func dsn(t testing.TB, u *url.URL) string {
	t.Helper()
	s, err := dburl.MySQLDSN(u)
	if err != nil {
		t.Fatalf("read %s: %v", dburl.Redact(u.String()), err)
	}
	return s
}

func newName(t testing.TB) string {
	t.Helper()
	b := make([]byte, 6)
	if _, err := rand.Read(b); err != nil {
		t.Fatalf("make a name for a schema: %v", err)
	}
	return "test_" + hex.EncodeToString(b)
}
