package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
)

// migrations are the migrations of one dialect for one choice of names.
type migrations struct{ versions }

// prepare looks at what of the database the SQL cannot find out by itself.
func prepare(ctx context.Context, db *sql.DB, d Dialect, opts []Option) (*migrations, error) {
	n, err := namesFor(d, opts)
	if err != nil {
		return nil, err
	}
	switch d {
	case SQLite:
		n.AddFingerprint, err = n.lacksFingerprint(ctx, db)
	case Postgres:
		err = n.findOutside(ctx, db)
	}
	if err != nil {
		return nil, err
	}
	return &migrations{versions{n}}, nil
}

// lacksFingerprint tells whether SQLite has processed_messages without it.
func (n names) lacksFingerprint(ctx context.Context, db *sql.DB) (bool, error) {
	schema := n.tables.Schema
	if schema == "" {
		schema = "main"
	}
	var columns, found int
	err := db.QueryRowContext(ctx,
		"SELECT count(*), count(CASE WHEN name = 'fingerprint' THEN 1 END) FROM pragma_table_info('"+
			n.MessagesName()+"', '"+schema+"')").Scan(&columns, &found)
	if err != nil {
		return false, fmt.Errorf("look for the columns of table %s: %w", n.tables.In(n.MessagesName()), err)
	}
	return columns > 0 && found == 0, nil
}

// findOutside refuses to make a second, empty processed_messages in front of
// one that the connection finds further down its search_path: every message in
// that one would be fresh again.
func (n names) findOutside(ctx context.Context, db *sql.DB) error {
	if n.tables.Schema != "" {
		return nil
	}
	for _, table := range []string{n.MessagesName(), n.LettersName()} {
		var found, current string
		err := db.QueryRowContext(ctx, `SELECT n.nspname, coalesce(current_schema()::text, '') FROM pg_class c
			JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('`+n.Quoted(table)+`')`).
			Scan(&found, &current)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return fmt.Errorf("look for table %s: %w", table, err)
		case found != current:
			return fmt.Errorf("table %s is in schema %q, but the connection makes tables in schema %q:"+
				" put the schema %q first in its search_path, or configure it", table, found, current, found)
		}
	}
	return nil
}

// makeSchema creates the schema that is configured, if it is missing.
func (m *migrations) makeSchema(ctx context.Context, db *sql.DB) error {
	schema := m.tables.Schema
	if schema == "" || m.dialect == SQLite {
		return nil
	}
	look := "SELECT count(*) FROM information_schema.schemata WHERE schema_name = '" + schema + "'"
	if m.dialect == Postgres { // information_schema hides what other roles own
		look = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = '" + schema + "'"
	}
	var count int
	err := db.QueryRowContext(ctx, look).Scan(&count)
	if err != nil {
		return fmt.Errorf("look for schema %q: %w", schema, err)
	}
	if count > 0 {
		return nil // IF NOT EXISTS would ask for a privilege all the same
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+m.Quoted(schema)); err != nil {
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
	return nil
}

func (m *migrations) provider(db *sql.DB) (*goose.Provider, error) {
	rendered, err := render(m.names)
	if err != nil {
		return nil, err
	}
	opts := []goose.ProviderOption{goose.WithStore(m.versions), goose.WithDisableGlobalRegistry(true)}
	if m.dialect != SQLite {
		opts = append(opts, goose.WithSessionLocker(sessionLock{m.names}))
	}
	return goose.NewProvider(goose.DialectCustom, db, rendered, opts...)
}
