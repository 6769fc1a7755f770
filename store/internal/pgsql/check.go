package pgsql

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/sekali/sekali/store"
)

// Row is one row of a result: *sql.Row and pgx.Row both are.
type Row interface{ Scan(dest ...any) error }

// QueryRow runs a query of one row.
type QueryRow func(ctx context.Context, sql string, args ...any) Row

// catalogue reads all that Check wants to know in one row of JSON; $1 is the
// quoted name of the table. A missing table is an answer, not an error, so
// that the check can run inside a user's transaction without aborting it.
const catalogue = `SELECT json_build_object(
	'found', c.oid IS NOT NULL,
	'kind', c.relkind,
	'persistence', c.relpersistence,
	'role', current_user,
	'insert', has_table_privilege(c.oid, 'INSERT'),
	'select', has_table_privilege(c.oid, 'SELECT'),
	'columns', (SELECT json_agg(json_build_object(
			'name', a.attname,
			'type', CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname ELSE 'other' END,
			'shown', format_type(a.atttypid, a.atttypmod),
			'mod', a.atttypmod,
			'needed', a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
			'generated', a.attgenerated <> '' OR a.attidentity = 'a',
			'nondeterministic', NOT coalesce(l.collisdeterministic, true)) ORDER BY a.attnum)
		FROM pg_attribute a
		JOIN pg_type t ON t.oid = a.atttypid
		LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
	'primary', (SELECT json_agg(a.attname ORDER BY a.attname)
		FROM pg_index i
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
		WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate))::text
FROM (SELECT to_regclass($1::text)::oid AS wanted) w LEFT JOIN pg_class c ON c.oid = w.wanted`

// found is what the catalogue says.
type found struct {
	Found       bool
	Kind        string
	Persistence string
	Role        string
	Insert      bool
	Select      bool
	Columns     []column
	Primary     []string
}

type column struct {
	Name             string
	Type             string // in pg_catalog; anything else is "other"
	Shown            string // as people write it
	Mod              int    // length + 4, or -1 without a limit
	Needed           bool   // an insert must name it
	Generated        bool   // an insert must not name it
	Nondeterministic bool
}

// Check compares processed_messages with what Sekali needs. A
// *store.SchemaError says what is wrong; any other error is the query's.
func (s Statements) Check(ctx context.Context, query QueryRow) (Shape, error) {
	var text string
	if err := query(ctx, catalogue, s.table).Scan(&text); err != nil {
		return Shape{}, fmt.Errorf("read the catalogue for table %s: %w", s.name(), err)
	}
	var f found
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return Shape{}, fmt.Errorf("read the catalogue for table %s: %w", s.name(), err)
	}
	return s.judge(f)
}

func (s Statements) name() string { return s.tables.In(s.tables.ProcessedMessages) }

func (s Statements) judge(f found) (Shape, error) {
	if !f.Found {
		return Shape{}, s.Missing(nil)
	}
	for _, check := range []func(found) *store.SchemaError{s.checkTable, s.checkKeys, s.checkPrimary, s.checkOthers} {
		if err := check(f); err != nil {
			return Shape{}, err
		}
	}
	at, _ := f.column("processed_at")
	_, fingerprint := f.column("fingerprint")
	return Shape{LocalTime: at.Type == "timestamp", Fingerprint: fingerprint}, nil
}

func (f found) column(name string) (column, bool) {
	i := slices.IndexFunc(f.Columns, func(c column) bool { return c.Name == name })
	if i < 0 {
		return column{}, false
	}
	return f.Columns[i], true
}

// Missing is the error of a table that is not there; said is what the server
// said, nil if it was not asked.
func (s Statements) Missing(said error) *store.SchemaError {
	return &store.SchemaError{
		Table: s.name(), Cause: "it does not exist, or is not in the search path", Err: said,
		Mend: "run `sekali migrate up`, or create it", SQL: s.CreateTable(),
	}
}

// Unfit is the error of a statement of Sekali's own that failed with an error
// for which IsSchema is true.
func (s Statements) Unfit(said error) *store.SchemaError {
	switch State(said) {
	case "42P01", "3F000":
		return s.Missing(said)
	}
	return s.unfit("it lacks a column or its primary key", "", said)
}

// NoFingerprint is the error of a claim with fingerprints on a table that has
// no column for them.
func (s Statements) NoFingerprint() *store.SchemaError {
	return s.unfit("it has no column fingerprint, which fingerprints need",
		"ALTER TABLE "+s.name()+" ADD COLUMN fingerprint BYTEA;", nil)
}

func (s Statements) unfit(cause, sql string, said error) *store.SchemaError {
	mend := "run `sekali migrate up`, or alter the table"
	return &store.SchemaError{Table: s.name(), Cause: cause, Mend: mend, SQL: sql, Err: said}
}

func (s Statements) checkTable(f found) *store.SchemaError {
	switch {
	case f.Kind != "r" && f.Kind != "p":
		return &store.SchemaError{
			Table: s.name(), Cause: "it is not a table", Mend: "choose the name of a table, or create it", SQL: s.CreateTable(),
		}
	case f.Persistence != "p":
		return s.unfit("it is unlogged or temporary, so that a crash of the server forgets what was processed",
			"ALTER TABLE "+s.name()+" SET LOGGED;", nil)
	case !f.Insert || !f.Select:
		return &store.SchemaError{
			Table: s.name(), Cause: fmt.Sprintf("the role %q may not SELECT and INSERT", f.Role),
			Mend: "let it", SQL: fmt.Sprintf("GRANT SELECT, INSERT ON %s TO %q;", s.name(), f.Role),
		}
	}
	return nil
}

func (s Statements) checkKeys(f found) *store.SchemaError {
	for _, want := range []struct {
		name  string
		width int
	}{{"consumer_name", store.MaxConsumer}, {"message_key", store.MaxStoredKey}} {
		mend := fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE VARCHAR(%d) COLLATE \"C\";", s.name(), want.name, want.width)
		c, ok := f.column(want.name)
		switch {
		case !ok:
			return s.unfit("it has no column "+want.name, "", nil)
		case c.Type != "varchar" && c.Type != "text":
			return s.unfit("its column "+want.name+" is "+c.Shown+", which may not compare byte for byte", mend, nil)
		case c.Type == "varchar" && c.Mod >= 0 && c.Mod-4 < want.width:
			return s.unfit(fmt.Sprintf("its column %s is %s, narrower than %d", want.name, c.Shown, want.width), mend, nil)
		case c.Nondeterministic:
			return s.unfit("its column "+want.name+" has a collation that takes different bytes for equal", mend, nil)
		}
	}
	return nil
}

func (s Statements) checkPrimary(f found) *store.SchemaError {
	if slices.Equal(f.Primary, []string{"consumer_name", "message_key"}) {
		return nil
	}
	return s.unfit("its primary key is not (consumer_name, message_key), checked at once",
		"ALTER TABLE "+s.name()+" ADD PRIMARY KEY (consumer_name, message_key);", nil)
}

func (s Statements) checkOthers(f found) *store.SchemaError {
	at, ok := f.column("processed_at")
	if !ok {
		return s.unfit("it has no column processed_at",
			"ALTER TABLE "+s.name()+" ADD COLUMN processed_at TIMESTAMPTZ NOT NULL DEFAULT now();", nil)
	}
	if at.Type != "timestamp" && at.Type != "timestamptz" || at.Generated {
		return s.unfit("its column processed_at is "+at.Shown+", no time that can be written", "", nil)
	}
	if c, ok := f.column("fingerprint"); ok && (c.Type != "bytea" || c.Generated) {
		return s.unfit("its column fingerprint is "+c.Shown+" instead of bytea", "", nil)
	}
	for _, c := range f.Columns {
		switch c.Name {
		case "consumer_name", "message_key", "processed_at":
			continue
		}
		if c.Needed {
			return s.unfit("its column "+c.Name+" must have a value and has no default",
				"ALTER TABLE "+s.name()+" ALTER COLUMN "+fmt.Sprintf("%q", c.Name)+" DROP NOT NULL;", nil)
		}
	}
	return nil
}
