package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

// column is a row of table_xinfo.
type column struct {
	kind    string // as declared, in capitals
	needed  bool   // an insert must name it
	primary bool
}

// Check implements sqlstore.Dialect. The names in t are safe in literals.
func (d dialect) Check(ctx context.Context, q sqlstore.Querier, t store.Tables) (sqlstore.Shape, error) {
	columns, err := d.columns(ctx, q, t)
	if err != nil {
		return sqlstore.Shape{}, err
	}
	if len(columns) == 0 {
		return sqlstore.Shape{}, sqltext.NotThere(t, d.Texts(t).CreateTable)
	}
	if err := d.checkColumns(t, columns); err != nil {
		return sqlstore.Shape{}, err
	}
	if err := d.checkPrimary(ctx, q, t); err != nil {
		return sqlstore.Shape{}, err
	}
	private, err := d.checkDatabase(ctx, q, t)
	if err != nil {
		return sqlstore.Shape{}, err
	}
	_, fingerprint := columns["fingerprint"]
	return sqlstore.Shape{Fingerprint: fingerprint, Private: private}, nil
}

// of returns the arguments of a pragma function for table name.
func of(t store.Tables, name string) string {
	if t.Schema == "" {
		return "('" + name + "')"
	}
	return "('" + name + "','" + t.Schema + "')"
}

func (dialect) columns(ctx context.Context, q sqlstore.Querier, t store.Tables) (map[string]column, error) {
	columns := map[string]column{}
	query := `SELECT name, type, "notnull" AND dflt_value IS NULL AND hidden = 0, pk > 0 FROM pragma_table_xinfo` +
		of(t, t.ProcessedMessages)
	err := sqltext.Each(ctx, q, query, nil, func(rows *sql.Rows) error {
		var name string
		var c column
		if err := rows.Scan(&name, &c.kind, &c.needed, &c.primary); err != nil {
			return err
		}
		c.kind = strings.ToUpper(c.kind)
		columns[strings.ToLower(name)] = c
		return nil
	})
	return columns, err
}

func (d dialect) checkColumns(t store.Tables, columns map[string]column) error {
	for _, name := range []string{"consumer_name", "message_key"} {
		c, ok := columns[name]
		switch {
		case !ok:
			return rebuild(t, d, "it has no column %s", name)
		case !keepsText(c.kind):
			return rebuild(t, d, "its column %s is %s, which may turn a key into a number", name, c.kind)
		}
	}
	if _, ok := columns["processed_at"]; !ok {
		return rebuild(t, d, "it has no column processed_at")
	}
	for name, c := range columns {
		switch name {
		case "consumer_name", "message_key", "processed_at":
			continue
		}
		if c.needed {
			return rebuild(t, d, "its column %s must have a value and has no default", name)
		}
	}
	return nil
}

// keepsText tells whether a column of the declared type keeps a text as it is:
// its affinity is TEXT or BLOB. INT comes first in SQLite's rules, so that a
// CHARINT is an integer.
func keepsText(kind string) bool {
	if strings.Contains(kind, "INT") {
		return false
	}
	for _, text := range []string{"CHAR", "CLOB", "TEXT", "BLOB"} {
		if strings.Contains(kind, text) {
			return true
		}
	}
	return kind == ""
}

// rebuild is the error of a table that SQLite cannot alter into shape.
func rebuild(t store.Tables, d dialect, format string, args ...any) *store.SchemaError {
	e := sqltext.Unfit(t, d.Texts(t).CreateTable, format, args...)
	e.Mend = "rename it, create it anew and copy the rows"
	return e
}

// checkPrimary looks at the index of the primary key, whose collations decide
// which keys are equal.
func (d dialect) checkPrimary(ctx context.Context, q sqlstore.Querier, t store.Tables) error {
	var index string
	query := "SELECT name FROM pragma_index_list" + of(t, t.ProcessedMessages) + " WHERE origin = 'pk'"
	err := q.QueryRowContext(ctx, query).Scan(&index)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	parts, folded := map[string]bool{}, ""
	query = "SELECT coalesce(name, ''), coll FROM pragma_index_xinfo(?) WHERE key = 1"
	args := []any{index}
	if t.Schema != "" {
		query = "SELECT coalesce(name, ''), coll FROM pragma_index_xinfo(?, ?) WHERE key = 1"
		args = append(args, t.Schema)
	}
	err = sqltext.Each(ctx, q, query, args, func(rows *sql.Rows) error {
		var name, collation string
		if err := rows.Scan(&name, &collation); err != nil {
			return err
		}
		parts[strings.ToLower(name)] = true
		if !strings.EqualFold(collation, "BINARY") {
			folded = name + " COLLATE " + collation
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(parts) != 2 || !parts["consumer_name"] || !parts["message_key"]:
		return rebuild(t, d, "its primary key is not (consumer_name, message_key)")
	case folded != "":
		return rebuild(t, d, "its primary key has %s, which takes different bytes for equal", folded)
	}
	return nil
}

// checkDatabase tells whether the database lives in one connection alone, and
// refuses one that cannot roll back.
func (d dialect) checkDatabase(ctx context.Context, q sqlstore.Querier, t store.Tables) (private bool, err error) {
	schema := t.Schema
	if schema == "" {
		schema = "main"
	}
	var file sql.NullString
	err = q.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = ?", schema).Scan(&file)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	var journal string
	if err := q.QueryRowContext(ctx, "PRAGMA "+schema+".journal_mode").Scan(&journal); err != nil {
		return false, err
	}
	if strings.EqualFold(journal, "off") {
		return false, &store.SchemaError{
			Table: t.In(t.ProcessedMessages), Cause: "its database has journal_mode off, so that nothing can be rolled back",
			Mend: "choose another journal_mode, such as wal",
		}
	}
	return file.String == "", nil
}
