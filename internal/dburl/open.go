package dburl

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// ErrURL is the error of a URL that names no database that Sekali knows: bad
// usage, not a failure of the database.
var ErrURL = errors.New("use postgres://user:password@host:5432/database, mysql://user:password@host:3306/database or sqlite:path")

// openTimeout is how long a server may take to answer.
const openTimeout = 8 * time.Second

// Kind is a kind of database.
type Kind string

// The kinds.
const (
	PostgreSQL Kind = "postgresql"
	MySQL      Kind = "mysql"
	SQLite     Kind = "sqlite"
)

// KindOf returns the kind of database that a URL names.
func KindOf(raw string) (Kind, error) {
	scheme, _, found := strings.Cut(raw, ":")
	if found {
		switch scheme {
		case "postgres", "postgresql":
			return PostgreSQL, nil
		case "mysql", "mariadb":
			return MySQL, nil
		case "sqlite":
			return SQLite, nil
		}
	}
	return "", fmt.Errorf("database URL %q: its kind is unknown: %w", Redact(raw), ErrURL)
}

// Placeholders returns query with its question marks as the kind of database
// wants them. The query must have no other question marks.
func (k Kind) Placeholders(query string) string {
	if k != PostgreSQL {
		return query
	}
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			fmt.Fprintf(&b, "$%d", i)
		}
		b.WriteString(part)
	}
	return b.String()
}

// DB is an open database.
type DB struct {
	Kind Kind
	// SQL is there for every kind.
	SQL *sql.DB
	// Pool is there for PostgreSQL; SQL borrows its connections.
	Pool *pgxpool.Pool
}

// Dialect returns the database's dialect of sqlstore.
func (d *DB) Dialect() sqlstore.Dialect {
	switch d.Kind {
	case PostgreSQL:
		return postgres.Dialect
	case MySQL:
		return mysql.Dialect
	default:
		return sqlite.Dialect
	}
}

// Migrations returns the dialect's name for package migrate.
func (d *DB) Migrations() migrate.Dialect {
	switch d.Kind {
	case PostgreSQL:
		return migrate.Postgres
	case MySQL:
		return migrate.MySQL
	default:
		return migrate.SQLite
	}
}

// Close closes the database.
func (d *DB) Close() error {
	err := d.SQL.Close()
	if d.Pool != nil {
		d.Pool.Close()
	}
	return err
}

// Create says whether Open makes an SQLite file that is not there.
type Create bool

// Open opens the database that a URL names and waits for its answer. A URL of
// no known kind is an error that wraps ErrURL. No error holds a password.
func Open(ctx context.Context, raw string, create Create) (*DB, error) {
	kind, err := KindOf(raw)
	if err != nil {
		return nil, err
	}
	var db *DB
	switch kind {
	case PostgreSQL:
		db, err = openPostgres(ctx, raw)
	case MySQL:
		db, err = openMySQL(raw)
	default:
		db, err = openSQLite(raw, create)
	}
	if err != nil {
		return nil, err
	}
	answer, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := db.SQL.PingContext(answer); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("database %s: it does not answer: %w: is it running, and are address, name and password right?", Redact(raw), err)
	}
	return db, nil
}

func openPostgres(ctx context.Context, raw string) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(raw)
	if err != nil {
		// pgx's own text quotes the URL, though without its password.
		return nil, fmt.Errorf("database URL %s: it cannot be read as PostgreSQL's: %w", Redact(raw), ErrURL)
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = openTimeout / 2
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", Redact(raw), err)
	}
	return &DB{Kind: PostgreSQL, SQL: stdlib.OpenDBFromPool(pool), Pool: pool}, nil
}

func openMySQL(raw string) (*DB, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL %s: it cannot be read: %w", Redact(raw), ErrURL)
	}
	q := u.Query()
	for name, value := range map[string]string{"timeout": "4s", "interpolateParams": "true"} {
		if !q.Has(name) {
			q.Set(name, value)
		}
	}
	u.RawQuery = q.Encode()
	dsn, err := MySQLDSN(u)
	if err != nil {
		return nil, fmt.Errorf("database URL %s: %w: %w", Redact(raw), err, ErrURL)
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", Redact(raw), err)
	}
	return &DB{Kind: MySQL, SQL: db}, nil
}

// openSQLite opens the file of sqlite:path, sqlite:///absolute/path or
// sqlite://relative/path, durably: what is committed survives a loss of power.
func openSQLite(raw string, create Create) (*DB, error) {
	path, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(raw, "sqlite:"), "//"), "?")
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, fmt.Errorf("database URL %q: it names no file: %w", raw, ErrURL)
	}
	if _, err := os.Stat(path); err != nil && !bool(create) {
		return nil, fmt.Errorf("database %s: %w: is the path right? `sekali migrate up` makes the file", raw, err)
	}
	dsn := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"},
	}.Encode()}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", raw, err)
	}
	return &DB{Kind: SQLite, SQL: db}, nil
}
