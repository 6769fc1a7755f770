// Package mysql is the dialect of sqlstore for MariaDB 10.5 or newer and MySQL 8
// through github.com/go-sql-driver/mysql. MySQL 8 is expected to work, but not
// tested.
//
// interpolateParams=true in the DSN saves a round trip for each statement with
// parameters. readTimeout bounds how long a lost server occupies a
// connection. clientFoundRows, parseTime and time_zone make no difference.
package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

// Dialect is MySQL's and MariaDB's.
var Dialect sqlstore.Dialect = dialect{}

type dialect struct{}

func table(t store.Tables) string { return sqltext.Quote(t, t.ProcessedMessages, "`") }

// maxRounds is how often the keys that were not there are inserted, before
// rivals that insert and roll back are taken for a conflict.
const maxRounds = 5

// Claim inserts plainly and goes by error 1062: INSERT IGNORE would hide other
// errors, and what ON DUPLICATE KEY UPDATE counts depends on clientFoundRows.
// Check has seen that no index but the primary key can say 1062.
func (d dialect) Claim(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys,
) (mark string, err error) {
	for keys := range sqltext.Chunks(k.Pending()) {
		m, err := d.claim(ctx, q, insertion{t: t, sh: sh, k: k, fingerprints: k.HasFingerprints()}, keys)
		if err != nil {
			return "", err
		}
		if m != "" {
			mark = m
		}
	}
	return mark, nil
}

// claim inserts keys in one statement. If one is there, the statement inserts
// none: then a locking read tells which, and the rest goes again.
func (d dialect) claim(ctx context.Context, q sqlstore.Querier, in insertion, keys []sqlstore.Key) (string, error) {
	for range maxRounds {
		mark, err := in.insert(ctx, q, keys)
		if err == nil {
			for _, key := range keys {
				if err := in.k.Fresh(key.Stored); err != nil {
					return "", err
				}
			}
			return mark, nil
		}
		if d.Kind(err) != sqlstore.KindDuplicate {
			return "", err
		}
		if len(keys) == 1 {
			return "", nil
		}
		if keys, err = in.absent(ctx, q, keys); err != nil || len(keys) == 0 {
			return "", err
		}
	}
	return "", sqlstore.ErrUnsettled
}

type insertion struct {
	t            store.Tables
	sh           sqlstore.Shape
	k            *sqlstore.Keys
	fingerprints bool
}

// written is when a row was written, in a form that does not depend on the
// session's zone, which a handler may change.
func written(sh sqlstore.Shape) string {
	if sh.LocalTime {
		return "CAST(processed_at AS CHAR)"
	}
	return "CAST(UNIX_TIMESTAMP(processed_at) AS CHAR)"
}

// insert returns when the rows were written, where the server can tell: in the
// microsecond that is a mark which no rival's row bears.
func (in insertion) insert(ctx context.Context, q sqlstore.Querier, keys []sqlstore.Key) (mark string, err error) {
	now := "CURRENT_TIMESTAMP(6)"
	if in.sh.LocalTime {
		now = "UTC_TIMESTAMP(6)"
	}
	columns, row := "consumer_name, message_key, processed_at", "(?,?,"+now+")"
	if in.fingerprints {
		columns, row = columns+", fingerprint", "(?,?,"+now+",?)"
	}
	args := make([]any, 0, 3*len(keys))
	for _, key := range keys {
		args = append(args, in.k.Consumer, key.Stored)
		if in.fingerprints {
			args = append(args, sqltext.Optional(key.Fingerprint))
		}
	}
	query := "INSERT INTO " + table(in.t) + " (" + columns + ") VALUES " + sqltext.Repeat(row, len(keys))
	if !in.sh.Returning {
		_, err := q.ExecContext(ctx, query, args...)
		return "", err
	}
	err = sqltext.Each(ctx, q, query+" RETURNING "+written(in.sh), args, func(rows *sql.Rows) error {
		return rows.Scan(&mark)
	})
	return mark, err
}

// absent returns those of keys that have no row, and locks the others' rows.
func (in insertion) absent(ctx context.Context, q sqlstore.Querier, keys []sqlstore.Key) ([]sqlstore.Key, error) {
	there := make(map[string]bool, len(keys))
	query := "SELECT message_key FROM " + table(in.t) + where(len(keys)) + " FOR UPDATE"
	err := sqltext.Each(ctx, q, query, sqlstore.Args(in.k, keys), func(rows *sql.Rows) error {
		var stored string
		if err := rows.Scan(&stored); err != nil {
			return err
		}
		there[stored] = true
		return nil
	})
	var absent []sqlstore.Key
	for _, key := range keys {
		if !there[key.Stored] {
			absent = append(absent, key)
		}
	}
	return absent, err
}

func where(keys int) string {
	return " WHERE consumer_name = ? AND message_key IN (" + sqltext.Repeat("?", keys) + ")"
}

func (dialect) Read(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys, lock bool,
) error {
	fingerprint, locking := "NULL", ""
	if sh.Fingerprint {
		fingerprint = "fingerprint"
	}
	if lock {
		locking = " LOCK IN SHARE MODE" // FOR SHARE is MySQL's alone
	}
	for keys := range sqltext.Chunks(k.Pending()) {
		query := "SELECT message_key, " + fingerprint + " FROM " + table(t) + where(len(keys)) + locking
		if err := sqltext.Each(ctx, q, query, sqlstore.Args(k, keys), k.ScanFound); err != nil {
			return err
		}
	}
	return nil
}

// Ages is for store.Ager. UNIX_TIMESTAMP() of now has no fraction; that of
// NOW(6) would go through the session's zone, where an hour comes twice a year.
func (dialect) Ages(t store.Tables, sh sqlstore.Shape, consumer string, keys []string) (query string, args []any) {
	age := "CAST((UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) / 1000000 - UNIX_TIMESTAMP(processed_at)) * 1000000 AS SIGNED)"
	if sh.LocalTime {
		age = "TIMESTAMPDIFF(MICROSECOND, processed_at, UTC_TIMESTAMP(6))"
	}
	return "SELECT message_key, " + age + " FROM " + table(t) + where(len(keys)), sqlstore.Args(&sqlstore.Keys{Consumer: consumer}, keys)
}

// Desk is for Store.Admin. A time that comes twice, when a session's zone sets
// its clock back, is the later one.
func (dialect) Desk(sh sqlstore.Shape) sqlstore.DeskTexts {
	if sh.LocalTime {
		return sqlstore.DeskTexts{
			Micros: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', processed_at)",
			Time:   "TIMESTAMPADD(MICROSECOND, ?, '1970-01-01')",
		}
	}
	return sqlstore.DeskTexts{
		Micros: "CAST(UNIX_TIMESTAMP(processed_at) * 1000000 AS SIGNED)",
		Time:   "FROM_UNIXTIME(? / 1000000)",
	}
}

// Guard makes a savepoint and releases it: whatever ends the transaction (a
// deadlock, DDL, a COMMIT of the handler's own) takes it away.
func (dialect) Guard(string) (protect, prove string, err error) {
	return "SAVEPOINT sekali_claim", "RELEASE SAVEPOINT sekali_claim", nil
}

// Survived goes by the time of writing where the server told it. Without, or
// where the column keeps whole seconds, a rival's row may be taken for ours:
// then a person is asked to look, which is the safe mistake.
func (dialect) Survived(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys, mark string,
) (bool, error) {
	for keys := range sqltext.Chunks(k.Claimed()) {
		query, args := "SELECT COUNT(*) FROM "+table(t)+where(len(keys)), sqlstore.Args(k, keys)
		if mark != "" {
			query, args = query+" AND "+written(sh)+" = ?", append(args, mark)
		}
		var n int
		if err := q.QueryRowContext(ctx, query, args...).Scan(&n); err != nil || n > 0 {
			return n > 0, err
		}
	}
	return false, nil
}

// Unread tells whether something that the server sent is still unread. It is
// true of a connection that is closed as well.
func (dialect) Unread(driverConn any) bool {
	c, ok := driverConn.(interface{ IsValid() bool })
	return ok && !c.IsValid()
}

func (dialect) Texts(t store.Tables) sqlstore.Texts {
	return sqlstore.Texts{
		CreateTable:       createTable(t, nopadMariaDB),
		AddFingerprint:    "ALTER TABLE " + t.In(t.ProcessedMessages) + " ADD COLUMN fingerprint BINARY(32) NULL;",
		ProcessedMessages: sqltext.Quote(t, t.ProcessedMessages, "`"),
		DeadLetters:       sqltext.Quote(t, t.DeadLetters, "`"),
		Placeholder:       func(int) string { return "?" },
		Now:               "UTC_TIMESTAMP(6)",
		TimeText:          func(column string) string { return "DATE_FORMAT(" + column + ", '%Y-%m-%d %H:%i:%s.%f')" },
		// VALUES() is the only form that both servers know.
		OnCopy: func(columns ...string) string {
			set := "ON DUPLICATE KEY UPDATE copies = copies + 1"
			for _, c := range columns {
				if c == "status" {
					set += ", status = CASE WHEN status = 'requested' THEN status ELSE VALUES(status) END"
					continue
				}
				set += ", " + c + " = VALUES(" + c + ")"
			}
			return set
		},
		Millis:          "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
		ExternalEffects: sqltext.Quote(t, t.ExternalEffects, "`"),
		EntityVersions:  sqltext.Quote(t, t.EntityVersions, "`"),
		OnVersion:       "ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version)), updated_at = VALUES(updated_at)",
		ForUpdate:       " FOR UPDATE",
		AuditTrail:      sqltext.Quote(t, t.AuditTrail, "`"),
		MillisOf: func(column string) string {
			return "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + column + ") / 1000 AS SIGNED)"
		},
		OutboxMessages: sqltext.Quote(t, t.OutboxMessages, "`"),
		OutboxLanes:    sqltext.Quote(t, t.OutboxMessages+"_lanes", "`"),
		OutboxRelays:   sqltext.Quote(t, t.OutboxMessages+"_relays", "`"),
		// A write, so that on Galera two nodes get in each other's way.
		OutboxLock:    "UPDATE " + sqltext.Quote(t, t.OutboxMessages+"_locks", "`") + " SET adds = adds + 1 WHERE slot = CRC32(?) % 256",
		ConsumerStats: sqltext.Quote(t, t.ConsumerStats, "`"),
		OnStats: func(columns ...string) string {
			set := make([]string, len(columns))
			for i, c := range columns {
				set[i] = c + " = " + c + " + VALUES(" + c + ")"
			}
			return "ON DUPLICATE KEY UPDATE " + strings.Join(set, ", ")
		},
		MessageStarts: sqltext.Quote(t, t.MessageStarts, "`"),
		OnStart:       "ON DUPLICATE KEY UPDATE lone_starts = lone_starts + VALUES(lone_starts), started_at = VALUES(started_at)",
		Pruning:       pruning(t),
	}
}

// pruning: the session of the pruner is in UTC, so that no hour of a TIMESTAMP
// comes twice, and does not wait long for locks.
func pruning(t store.Tables) sqlstore.PruningTexts {
	marks := sqltext.Quote(t, t.PruningMarks, "`")
	schema := "DATABASE()"
	if t.Schema != "" {
		schema = "'" + t.Schema + "'"
	}
	there := func(name string) string { return "TABLE_SCHEMA = " + schema + " AND TABLE_NAME = '" + name + "'" }
	ago := func(age time.Duration) string {
		return "UTC_TIMESTAMP(6) - INTERVAL " + strconv.FormatInt(age.Microseconds(), 10) + " MICROSECOND"
	}
	return sqlstore.PruningTexts{
		Marks:    marks,
		HasMarks: "SELECT COUNT(*) FROM information_schema.TABLES WHERE " + there(t.PruningMarks),
		// The lock makes it see what is committed now, at any isolation level.
		ReadMark: "SELECT MAX(pruned_until), 0 FROM " + marks + " WHERE consumer_name = ? LOCK IN SHARE MODE",
		OnMark:   "ON DUPLICATE KEY UPDATE pruned_until = GREATEST(pruned_until, VALUES(pruned_until))",
		Indexed: "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE " + there(t.ProcessedMessages) +
			" AND SEQ_IN_INDEX = 1 AND COLUMN_NAME = 'processed_at'",
		Ago:          ago,
		ProcessedAgo: func(_ sqlstore.Shape, age time.Duration) string { return ago(age) },
		Micros: func(sqlstore.Shape) string {
			return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', r.processed_at)"
		},
		Before: "SET @sekali_zone = @@session.time_zone, @sekali_wait = @@session.innodb_lock_wait_timeout," +
			" time_zone = '+00:00', innodb_lock_wait_timeout = 1",
		After: "SET time_zone = @sekali_zone, innodb_lock_wait_timeout = @sekali_wait",
	}
}

func createTable(t store.Tables, collation string) string {
	return "CREATE TABLE " + t.In(t.ProcessedMessages) + ` (
    consumer_name VARCHAR(100) NOT NULL,
    message_key   VARCHAR(200) NOT NULL,
    processed_at  TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (consumer_name, message_key)) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE ` + collation + ";"
}
