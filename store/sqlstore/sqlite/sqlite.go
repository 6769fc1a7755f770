// Package sqlite is the dialect of sqlstore for SQLite through
// modernc.org/sqlite.
//
// Give the pool a busy time-out (_pragma=busy_timeout(5000) in the DSN):
// SQLite has one writer at a time, and without it the others fail at once with
// an error of ClassConflict. WAL (_pragma=journal_mode(wal)) keeps readers from
// disturbing the writer.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

// Dialect is SQLite's.
var Dialect sqlstore.Dialect = dialect{}

type dialect struct{}

// now is the time in UTC, in milliseconds.
const now = "strftime('%Y-%m-%d %H:%M:%f','now')"

// exact compares keys byte for byte, whatever collation the columns have; that
// of the primary key Check has seen.
const exact = " WHERE consumer_name = ? COLLATE BINARY AND message_key COLLATE BINARY IN ("

func table(t store.Tables) string { return sqltext.Quote(t, t.ProcessedMessages, `"`) }

func (dialect) Claim(
	ctx context.Context, q sqlstore.Querier, t store.Tables, _ sqlstore.Shape, k *sqlstore.Keys,
) (string, error) {
	columns, row := "consumer_name, message_key, processed_at", "(?,?,"+now+")"
	fingerprints := k.HasFingerprints()
	if fingerprints {
		columns, row = columns+", fingerprint", "(?,?,"+now+",?)"
	}
	for keys := range sqltext.Chunks(k.Pending()) {
		args := make([]any, 0, 3*len(keys))
		for _, key := range keys {
			args = append(args, k.Consumer, key.Stored)
			if fingerprints {
				args = append(args, sqltext.Optional(key.Fingerprint))
			}
		}
		query := "INSERT INTO " + table(t) + " (" + columns + ") VALUES " + sqltext.Repeat(row, len(keys)) +
			" ON CONFLICT (consumer_name, message_key) DO NOTHING RETURNING message_key"
		if err := sqltext.Each(ctx, q, query, args, func(rows *sql.Rows) error {
			var stored string
			if err := rows.Scan(&stored); err != nil {
				return err
			}
			return k.Fresh(stored)
		}); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (dialect) Read(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys, _ bool,
) error {
	fingerprint := "NULL"
	if sh.Fingerprint {
		fingerprint = "fingerprint"
	}
	for keys := range sqltext.Chunks(k.Pending()) {
		query := "SELECT message_key, " + fingerprint + " FROM " + table(t) +
			exact + sqltext.Repeat("?", len(keys)) + ")"
		if err := sqltext.Each(ctx, q, query, sqlstore.Args(k, keys), k.ScanFound); err != nil {
			return err
		}
	}
	return nil
}

// Ages is for store.Ager.
func (dialect) Ages(t store.Tables, _ sqlstore.Shape, consumer string, keys []string) (query string, args []any) {
	return "SELECT message_key, CAST((julianday('now') - julianday(processed_at)) * 86400000000 AS INTEGER) FROM " + table(t) +
		exact + sqltext.Repeat("?", len(keys)) + ")", sqlstore.Args(&sqlstore.Keys{Consumer: consumer}, keys)
}

// Desk is for Store.Admin.
func (dialect) Desk(sqlstore.Shape) sqlstore.DeskTexts {
	return sqlstore.DeskTexts{
		Micros: "CAST(round((julianday(processed_at) - 2440587.5) * 86400000) AS INTEGER) * 1000",
		Time:   "strftime('%Y-%m-%d %H:%M:%f', ? / 1000000.0, 'unixepoch')",
		Exact:  " COLLATE BINARY",
	}
}

// Guard makes a savepoint and releases it: it is gone if the transaction is.
func (dialect) Guard(string) (protect, prove string, err error) {
	return "SAVEPOINT sekali_claim", "RELEASE SAVEPOINT sekali_claim", nil
}

func (dialect) Survived(
	ctx context.Context, q sqlstore.Querier, t store.Tables, _ sqlstore.Shape, k *sqlstore.Keys, _ string,
) (bool, error) {
	for keys := range sqltext.Chunks(k.Claimed()) {
		query := "SELECT EXISTS (SELECT 1 FROM " + table(t) + exact + sqltext.Repeat("?", len(keys)) + "))"
		var survived bool
		if err := q.QueryRowContext(ctx, query, sqlstore.Args(k, keys)...).Scan(&survived); err != nil || survived {
			return survived, err
		}
	}
	return false, nil
}

// Kind goes by the primary result code, in the lowest byte. SQLITE_ERROR says
// no more than "something": no such table, no such savepoint, no transaction.
// An interrupt is the caller's cancellation.
func (dialect) Kind(err error) sqlstore.Kind {
	var e *driver.Error
	if !errors.As(err, &e) {
		return sqlstore.KindNone
	}
	switch e.Code() {
	case codes.SQLITE_CONSTRAINT_PRIMARYKEY, codes.SQLITE_CONSTRAINT_UNIQUE, codes.SQLITE_CONSTRAINT_ROWID:
		return sqlstore.KindDuplicate
	}
	switch e.Code() & 0xff {
	case codes.SQLITE_ERROR:
		return sqlstore.KindLost
	case codes.SQLITE_INTERRUPT:
		return sqlstore.KindNone
	case codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_SCHEMA:
		return sqlstore.KindConflict
	case codes.SQLITE_FULL, codes.SQLITE_IOERR, codes.SQLITE_READONLY, codes.SQLITE_CANTOPEN,
		codes.SQLITE_NOMEM, codes.SQLITE_PROTOCOL:
		return sqlstore.KindUnavailable
	}
	return sqlstore.KindStatement
}

func (dialect) Texts(t store.Tables) sqlstore.Texts {
	return sqlstore.Texts{
		CreateTable: "CREATE TABLE " + t.In(t.ProcessedMessages) + ` (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL,
    processed_at  TIMESTAMP NOT NULL DEFAULT (` + now + `),
    PRIMARY KEY (consumer_name, message_key)) WITHOUT ROWID;`,
		AddFingerprint:    "ALTER TABLE " + t.In(t.ProcessedMessages) + " ADD COLUMN fingerprint BLOB;",
		ProcessedMessages: sqltext.Quote(t, t.ProcessedMessages, `"`),
		DeadLetters:       sqltext.Quote(t, t.DeadLetters, `"`),
		Placeholder:       func(int) string { return "?" },
		Now:               now,
		// As an expression: a column's declared type would make the driver
		// parse it.
		TimeText:        func(column string) string { return column + " || ''" },
		OnCopy:          sqltext.OnCopy(""),
		Millis:          "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
		ExternalEffects: sqltext.Quote(t, t.ExternalEffects, `"`),
		EntityVersions:  sqltext.Quote(t, t.EntityVersions, `"`),
		OnVersion:       sqltext.OnVersion("max", ""),
		ConsumerStats:   sqltext.Quote(t, t.ConsumerStats, `"`),
		OnStats:         sqltext.OnStats(""),
		AuditTrail:      sqltext.Quote(t, t.AuditTrail, `"`),
		MillisOf: func(column string) string {
			return "CAST((julianday(" + column + ") - 2440587.5) * 86400000 AS INTEGER)"
		},
		OutboxMessages: sqltext.Quote(t, t.OutboxMessages, `"`),
		OutboxLanes:    sqltext.Quote(t, t.OutboxMessages+"_lanes", `"`),
		OutboxRelays:   sqltext.Quote(t, t.OutboxMessages+"_relays", `"`),
		MessageStarts:  sqltext.Quote(t, t.MessageStarts, `"`),
		OnStart:        sqltext.OnStart(""),
		Pruning:        pruning(t),
	}
}

func pruning(t store.Tables) sqlstore.PruningTexts {
	marks := sqltext.Quote(t, t.PruningMarks, `"`)
	schema := t.Schema
	if schema == "" {
		schema = "main"
	}
	ago := func(age time.Duration) string {
		return "strftime('%Y-%m-%d %H:%M:%f', 'now', '-" + strconv.FormatFloat(age.Seconds(), 'f', 6, 64) + " seconds')"
	}
	return sqlstore.PruningTexts{
		Marks:    marks,
		HasMarks: "SELECT COUNT(*) FROM " + schema + ".sqlite_master WHERE type = 'table' AND name = '" + t.PruningMarks + "'",
		// The claim is a write, after which nobody else writes.
		ReadMark: "SELECT MAX(pruned_until), 0 FROM " + marks + " WHERE consumer_name = ?",
		OnMark:   sqltext.OnMark("max", ""),
		Indexed: "SELECT COUNT(*) FROM pragma_index_list" + of(t, t.ProcessedMessages) + " l WHERE l.partial = 0 AND" +
			" (SELECT i.name FROM pragma_index_info(l.name, '" + schema + "') i WHERE i.seqno = 0) = 'processed_at'",
		Ago:          ago,
		ProcessedAgo: func(_ sqlstore.Shape, age time.Duration) string { return ago(age) },
		Micros: func(sqlstore.Shape) string {
			return "CAST(ROUND((julianday(r.processed_at) - 2440587.5) * 86400000) * 1000 AS INTEGER)"
		},
	}
}
