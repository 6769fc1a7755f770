// Package migrate makes and alters the tables that Sekali's stores use.
//
//	db, err := sql.Open("pgx", url) // with import _ "github.com/jackc/pgx/v5/stdlib"
//	applied, err := migrate.Up(ctx, db, migrate.Postgres)
//
// Migrations are SQL files, one tree for each dialect, run by goose, which
// keeps a table of its own, sekali_migrations. Every migration can be run over
// tables that are there already: a processed_messages of three columns that
// was made by hand keeps its rows and gains what it lacks.
//
// Whoever runs SQL by other means takes it from Print, or the files from FS.
//
// Stores never import this package, and this package imports no driver.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/sekali/sekali/store"
)

// Dialect names the kind of database.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres"
	MySQL    Dialect = "mysql" // MariaDB too
	SQLite   Dialect = "sqlite"
)

// Applied is a migration that was applied or, by Down, taken back.
type Applied struct {
	Version  int64
	Name     string // of its file
	Duration time.Duration
}

// Option changes what the functions of this package do.
type Option func(*options)

type options struct{ tables store.Tables }

// WithTables renames the tables, and says in which schema (on MySQL: in which
// database) they are; Up creates the schema if it is missing. Defaults to
// store.Tables{}. Each choice of names has its own table of migrations, so
// that several can be in one schema.
func WithTables(t store.Tables) Option { return func(o *options) { o.tables = t } }

// Up applies all migrations that are pending, in order, and returns those that
// it applied. It may run in several processes at once: one works, the others
// wait for it. After an error it returns what was applied before; running it
// again goes on from there.
//
// It takes one connection of db. With PostgreSQL and MySQL it holds a lock of
// that session: behind PgBouncer use session mode, or connect directly.
func Up(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) ([]Applied, error) {
	applied, err := again(ctx, d, func() ([]Applied, error) {
		m, err := prepare(ctx, db, d, opts)
		if err != nil {
			return nil, err
		}
		if err := m.makeSchema(ctx, db); err != nil {
			return nil, err
		}
		p, err := m.provider(db)
		if err != nil {
			return nil, err
		}
		results, err := p.Up(ctx)
		return list(results, err), err
	})
	if coded := interface{ SQLState() string }(nil); errors.As(err, &coded) && coded.SQLState() == noSchema {
		err = fmt.Errorf("no schema of the search_path exists: make it (CREATE SCHEMA …), or set search_path to one that does: %w", err)
	}
	if err != nil {
		return applied, fmt.Errorf("migrate up: %w", err)
	}
	return applied, nil
}

// noSchema is PostgreSQL's invalid_schema_name.
const noSchema = "3F000"

// Down takes back the newest migration that is applied, with everything that
// is in its tables, and returns it; nothing if none is applied.
func Down(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) ([]Applied, error) {
	applied, err := again(ctx, d, func() ([]Applied, error) {
		m, err := prepare(ctx, db, d, opts)
		if err != nil {
			return nil, err
		}
		if there, err := m.versions.TableExists(ctx, db); err != nil || !there {
			return nil, err
		}
		p, err := m.provider(db)
		if err != nil {
			return nil, err
		}
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil, nil
		}
		return list([]*goose.MigrationResult{result}, err), err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate down: %w", err)
	}
	return applied, nil
}

// list returns what was done, also where an error came in between.
func list(results []*goose.MigrationResult, err error) []Applied {
	var partial *goose.PartialError
	switch {
	case errors.As(err, &partial):
		results = partial.Applied
	case err != nil:
		return nil
	}
	applied := make([]Applied, 0, len(results))
	for _, r := range results {
		applied = append(applied, Applied{Version: r.Source.Version, Name: path.Base(r.Source.Path), Duration: r.Duration})
	}
	return applied
}

// maxTries is how often a migration of SQLite is tried, and pause what it
// waits at first in between, twice as long each time.
const (
	maxTries = 5
	pause    = 50 * time.Millisecond
)

// again runs f once, but on SQLite again after an error. SQLite has no lock
// that a session could take before it reads what is pending, so of two
// processes at once one fails, and finds the other's work when it looks again.
func again(ctx context.Context, d Dialect, f func() ([]Applied, error)) ([]Applied, error) {
	var all []Applied
	for try := 1; ; try++ {
		applied, err := f()
		all = append(all, applied...)
		if err == nil || d != SQLite || try == maxTries || ctx.Err() != nil {
			return all, err
		}
		timer := time.NewTimer(pause << (try - 1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return all, err
		}
	}
}

// State is a migration and what became of it.
type State struct {
	Version int64
	Name    string // of its file
	// AppliedAt is when it was applied, in UTC, to the second; zero: pending.
	AppliedAt time.Time
}

// Pending tells that the migration is not applied.
func (s State) Pending() bool { return s.AppliedAt.IsZero() }

// Status returns all migrations, oldest first. It changes nothing.
func Status(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) ([]State, error) {
	m, err := prepare(ctx, db, d, opts)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	states, err := m.status(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	return states, nil
}

func (m *migrations) status(ctx context.Context, db *sql.DB) ([]State, error) {
	there, err := m.versions.TableExists(ctx, db)
	if err != nil {
		return nil, err
	}
	p, err := m.provider(db)
	if err != nil {
		return nil, err
	}
	var states []State
	for _, s := range p.ListSources() {
		state := State{Version: s.Version, Name: path.Base(s.Path)}
		if there {
			if state.AppliedAt, err = m.versions.appliedAt(ctx, db, s.Version); err != nil {
				return nil, err
			}
		}
		states = append(states, state)
	}
	return states, nil
}
