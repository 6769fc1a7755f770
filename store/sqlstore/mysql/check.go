package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

// The collations under which only equal bytes are equal. Others ending in
// _bin pad: trailing blanks make no difference to them.
const (
	nopadMariaDB = "utf8mb4_nopad_bin"
	nopadMySQL   = "utf8mb4_0900_bin"
)

// server is what the check wants to know of the server and the table.
type server struct {
	version   string
	charset   string // of what the connection sends
	kind      sql.NullString
	engine    sql.NullString
	undoes    sql.NullString // YES if the engine has transactions
	collation string         // the one to choose
}

func (s server) isMariaDB() bool { return strings.Contains(s.version, "MariaDB") }

// hasReturning tells whether INSERT … RETURNING is there: MariaDB 10.5.
func (s server) hasReturning() bool {
	if !s.isMariaDB() {
		return false
	}
	version := strings.TrimPrefix(s.version, "5.5.5-") // a prefix for old clients
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major > 10 || major == 10 && minor >= 5)
}

// column is a row of information_schema.columns.
type column struct {
	kind      string
	width     int64 // in characters
	collation string
	needed    bool // an insert must name it
}

// Check implements sqlstore.Dialect.
func (d dialect) Check(ctx context.Context, q sqlstore.Querier, t store.Tables) (sqlstore.Shape, error) {
	s, err := describe(ctx, q, t)
	if err != nil {
		return sqlstore.Shape{}, err
	}
	if err := s.check(t); err != nil {
		return sqlstore.Shape{}, err
	}
	columns, err := readColumns(ctx, q, t)
	if err != nil {
		return sqlstore.Shape{}, err
	}
	if err := checkKeys(t, s, columns); err != nil {
		return sqlstore.Shape{}, err
	}
	if err := checkOthers(t, columns); err != nil {
		return sqlstore.Shape{}, err
	}
	if err := checkIndexes(ctx, q, t); err != nil {
		return sqlstore.Shape{}, err
	}
	_, fingerprint := columns["fingerprint"]
	return sqlstore.Shape{
		Fingerprint: fingerprint, LocalTime: columns["processed_at"].kind == "datetime", Returning: s.hasReturning(),
	}, nil
}

// here is the condition that chooses the table in information_schema. The
// names are safe in literals.
func here(t store.Tables, alias string) string {
	schema := "DATABASE()"
	if t.Schema != "" {
		schema = "'" + t.Schema + "'"
	}
	return alias + "TABLE_SCHEMA = " + schema + " AND " + alias + "TABLE_NAME = '" + t.ProcessedMessages + "'"
}

func describe(ctx context.Context, q sqlstore.Querier, t store.Tables) (server, error) {
	s := server{collation: nopadMySQL}
	err := q.QueryRowContext(ctx, "SELECT VERSION(), @@character_set_client, t.TABLE_TYPE, t.ENGINE, e.TRANSACTIONS"+
		" FROM (SELECT 1) AS one LEFT JOIN information_schema.TABLES AS t ON "+here(t, "t.")+
		" LEFT JOIN information_schema.ENGINES AS e ON e.ENGINE = t.ENGINE").
		Scan(&s.version, &s.charset, &s.kind, &s.engine, &s.undoes)
	if s.isMariaDB() {
		s.collation = nopadMariaDB
	}
	return s, err
}

func (s server) check(t store.Tables) error {
	switch {
	case !s.kind.Valid:
		return sqltext.NotThere(t, createTable(t, s.collation))
	case s.kind.String != "BASE TABLE":
		e := sqltext.Unfit(t, createTable(t, s.collation), "it is not a table")
		e.Mend = "choose the name of a table, or create it"
		return e
	case s.undoes.String != "YES":
		return sqltext.Unfit(t, "ALTER TABLE "+t.In(t.ProcessedMessages)+" ENGINE=InnoDB;",
			"its engine %s has no transactions", s.engine.String)
	case s.charset != "utf8mb4":
		e := sqltext.Unfit(t, "", "the connection sends %s, in which different keys may become one", s.charset)
		e.Mend = "put charset=utf8mb4 into the DSN, or leave charset out"
		return e
	}
	return nil
}

func readColumns(ctx context.Context, q sqlstore.Querier, t store.Tables) (map[string]column, error) {
	columns := map[string]column{}
	query := "SELECT LOWER(COLUMN_NAME), LOWER(DATA_TYPE), COALESCE(CHARACTER_MAXIMUM_LENGTH, 0), COALESCE(COLLATION_NAME, '')," +
		" IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND EXTRA NOT LIKE '%auto_increment%' AND EXTRA NOT LIKE '%GENERATED%'" +
		" FROM information_schema.COLUMNS WHERE " + here(t, "")
	err := sqltext.Each(ctx, q, query, nil, func(rows *sql.Rows) error {
		var name string
		var c column
		var width uint64 // LONGTEXT's is 2³²-1
		if err := rows.Scan(&name, &c.kind, &width, &c.collation, &c.needed); err != nil {
			return err
		}
		c.width = int64(width)
		columns[name] = c
		return nil
	})
	return columns, err
}

// checkKeys looks whether the key columns are wide enough and compare byte for
// byte.
func checkKeys(t store.Tables, s server, columns map[string]column) error {
	want := []struct {
		name  string
		width int64
	}{{"consumer_name", store.MaxConsumer}, {"message_key", store.MaxStoredKey}}
	var alter []string
	for _, w := range want {
		alter = append(alter, fmt.Sprintf("MODIFY %s VARCHAR(%d) CHARACTER SET utf8mb4 COLLATE %s NOT NULL",
			w.name, max(w.width, columns[w.name].width), s.collation))
	}
	mend := "ALTER TABLE " + t.In(t.ProcessedMessages) + " " + strings.Join(alter, ", ") + ";"
	for _, w := range want {
		c, ok := columns[w.name]
		switch {
		case !ok:
			return sqltext.Unfit(t, "", "it has no column %s", w.name)
		case c.kind != "varchar" && c.kind != "varbinary":
			return sqltext.Unfit(t, mend, "its column %s is %s, which may not compare byte for byte", w.name, c.kind)
		case c.width < w.width:
			return sqltext.Unfit(t, mend, "its column %s is %s(%d), narrower than %d", w.name, c.kind, c.width, w.width)
		case c.kind == "varchar" && c.collation != nopadMariaDB && c.collation != nopadMySQL:
			return sqltext.Unfit(t, mend, "its column %s has the collation %s, which takes different bytes for equal"+
				" (letter case, accents or trailing blanks) or cannot keep all of them", w.name, c.collation)
		}
	}
	return nil
}

func checkOthers(t store.Tables, columns map[string]column) error {
	at, ok := columns["processed_at"]
	switch {
	case !ok:
		return sqltext.Unfit(t, "ALTER TABLE "+t.In(t.ProcessedMessages)+
			" ADD COLUMN processed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6);", "it has no column processed_at")
	case at.kind != "timestamp" && at.kind != "datetime":
		return sqltext.Unfit(t, "", "its column processed_at is %s, no time that can be written", at.kind)
	}
	if c, ok := columns["fingerprint"]; ok && !keepsFingerprint(c) {
		return sqltext.Unfit(t, "ALTER TABLE "+t.In(t.ProcessedMessages)+" MODIFY fingerprint BINARY(32) NULL;",
			"its column fingerprint is %s(%d) instead of BINARY(32)", c.kind, c.width)
	}
	for name, c := range columns {
		switch name {
		case "consumer_name", "message_key", "processed_at":
			continue
		}
		if c.needed {
			return sqltext.Unfit(t, "", "its column %s must have a value and has no default", name)
		}
	}
	return nil
}

// keepsFingerprint: a longer BINARY would fill up with zeros.
func keepsFingerprint(c column) bool {
	switch c.kind {
	case "binary":
		return c.width == 32
	case "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		return c.width >= 32
	}
	return false
}

// checkIndexes wants the primary key, and no other unique index that could
// refuse what is no duplicate: both say 1062.
func checkIndexes(ctx context.Context, q sqlstore.Querier, t store.Tables) error {
	indexes := map[string][]string{}
	query := "SELECT INDEX_NAME, COALESCE(LOWER(COLUMN_NAME), ''), SUB_PART IS NOT NULL FROM information_schema.STATISTICS" +
		" WHERE NON_UNIQUE = 0 AND " + here(t, "")
	err := sqltext.Each(ctx, q, query, nil, func(rows *sql.Rows) error {
		var index, name string
		var part bool
		if err := rows.Scan(&index, &name, &part); err != nil {
			return err
		}
		if part {
			name = "a part of " + name
		}
		indexes[index] = append(indexes[index], name)
		return nil
	})
	if err != nil {
		return err
	}
	if names := indexes["PRIMARY"]; len(names) != 2 || !hasKey(names) {
		return sqltext.Unfit(t, "ALTER TABLE "+t.In(t.ProcessedMessages)+" ADD PRIMARY KEY (consumer_name, message_key);",
			"its primary key is not (consumer_name, message_key)")
	}
	for index, names := range indexes {
		if !hasKey(names) {
			return sqltext.Unfit(t, "ALTER TABLE "+t.In(t.ProcessedMessages)+" DROP INDEX `"+index+"`;",
				"its unique index %s refuses what is no duplicate", index)
		}
	}
	return nil
}

// hasKey tells whether both key columns are among names.
func hasKey(names []string) bool {
	found := 0
	for _, name := range names {
		if name == "consumer_name" || name == "message_key" {
			found++
		}
	}
	return found == 2
}
