// Package postgres is the dialect of sqlstore for PostgreSQL 14 or newer,
// through any driver of database/sql whose errors have a method
// SQLState() string: pgx's stdlib and lib/pq.
//
// Who uses pgx without database/sql takes pgxstore: it needs fewer round
// trips, and sees the warning that a commit has not reached the standby.
package postgres

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

// Dialect is PostgreSQL's.
var Dialect sqlstore.Dialect = dialect{}

type dialect struct{}

// Check implements sqlstore.Dialect.
func (dialect) Check(ctx context.Context, q sqlstore.Querier, t store.Tables) (sqlstore.Shape, error) {
	shape, err := pgsql.New(t).Check(ctx, func(ctx context.Context, query string, args ...any) pgsql.Row {
		return q.QueryRowContext(ctx, query, args...)
	})
	return sqlstore.Shape{Fingerprint: shape.Fingerprint, LocalTime: shape.LocalTime}, err
}

// Claim returns the transaction's id as the mark.
func (dialect) Claim(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys,
) (xid string, err error) {
	keys, fingerprints := arrays(k.Pending())
	args := []any{k.Consumer, keys}
	if k.HasFingerprints() {
		args = append(args, fingerprints)
	}
	query := pgsql.New(t).Claim(pgsql.Shape{LocalTime: sh.LocalTime, Fingerprint: sh.Fingerprint}, k.HasFingerprints())
	err = sqltext.Each(ctx, q, query, args, func(rows *sql.Rows) error {
		var stored string
		if err := rows.Scan(&stored, &xid); err != nil {
			return err
		}
		return k.Fresh(stored)
	})
	return xid, err
}

// arrays returns array literals of the keys and of their fingerprints.
func arrays(keys []sqlstore.Key) (stored, fingerprints string) {
	names, prints := make([]string, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		names[i], prints[i] = key.Stored, "NULL"
		if key.Fingerprint != nil {
			prints[i] = hex.EncodeToString(key.Fingerprint)
		}
	}
	return pgsql.Array(names), "{" + strings.Join(prints, ",") + "}"
}

// Read implements sqlstore.Dialect. Without the lock it refuses a replica: it
// may not know yet what the primary knows.
func (dialect) Read(
	ctx context.Context, q sqlstore.Querier, t store.Tables, sh sqlstore.Shape, k *sqlstore.Keys, lock bool,
) error {
	keys, _ := arrays(k.Pending())
	found := func(stored string, fingerprint sql.NullString) error {
		if !fingerprint.Valid {
			return k.Found(stored, nil)
		}
		theirs, err := hex.DecodeString(fingerprint.String)
		if err != nil {
			return fmt.Errorf("read the fingerprint of key %q: %w", stored, err)
		}
		return k.Found(stored, theirs)
	}
	if lock {
		return sqltext.Each(ctx, q, pgsql.New(t).Fingerprints(), []any{k.Consumer, keys}, func(rows *sql.Rows) error {
			var stored string
			var fingerprint sql.NullString
			if err := rows.Scan(&stored, &fingerprint); err != nil {
				return err
			}
			return found(stored, fingerprint)
		})
	}
	query := pgsql.New(t).Seen(pgsql.Shape{LocalTime: sh.LocalTime, Fingerprint: sh.Fingerprint})
	return sqltext.Each(ctx, q, query, []any{k.Consumer, keys}, func(rows *sql.Rows) error {
		var stored string
		var fingerprint sql.NullString
		var there, replica bool
		if err := rows.Scan(&stored, &there, &fingerprint, &replica); err != nil {
			return err
		}
		switch {
		case replica:
			return fmt.Errorf("%w: the server is a read replica; connect to the primary", store.ErrUnavailable)
		case !there:
			return nil
		}
		return found(stored, fingerprint)
	})
}

// Ages is for store.Ager.
func (dialect) Ages(t store.Tables, sh sqlstore.Shape, consumer string, keys []string) (query string, args []any) {
	return pgsql.New(t).Ages(pgsql.Shape{LocalTime: sh.LocalTime}), []any{consumer, pgsql.Array(keys)}
}

// Desk is for Store.Admin.
func (dialect) Desk(sh sqlstore.Shape) sqlstore.DeskTexts {
	at := "to_timestamp(CAST(? AS bigint) / 1000000.0)"
	if sh.LocalTime {
		at += " AT TIME ZONE 'UTC'"
	}
	return sqlstore.DeskTexts{Micros: "CAST(extract(epoch FROM processed_at) * 1000000 AS bigint)", Time: at}
}

// Guard compares the transaction's id.
func (dialect) Guard(xid string) (protect, prove string, err error) {
	prove, err = pgsql.Guard(xid)
	return "", prove, err
}

// Survived looks for a row that this very transaction wrote.
func (dialect) Survived(
	ctx context.Context, q sqlstore.Querier, t store.Tables, _ sqlstore.Shape, k *sqlstore.Keys, xid string,
) (survived bool, err error) {
	xmin, err := pgsql.Xmin(xid)
	if err != nil {
		return false, err
	}
	err = q.QueryRowContext(ctx, pgsql.New(t).Survived(), k.Consumer, pgsql.Array(k.Claimed()), xmin).Scan(&survived)
	return survived, err
}

// Kind goes by SQLSTATE.
func (dialect) Kind(err error) sqlstore.Kind {
	var connect *pgconn.ConnectError
	state := pgsql.State(err)
	switch {
	case err == nil:
		return sqlstore.KindNone
	case state == "" && (errors.As(err, &connect) || pgconn.SafeToRetry(err)):
		// Among the latter is "conn closed", which no driver.ErrBadConn tells
		// of where pgx finds it out while it reads.
		return sqlstore.KindUnavailable
	case state == "":
		return sqlstore.KindNone
	case state == "23505":
		return sqlstore.KindDuplicate
	case state == "25P02", state == "22012":
		return sqlstore.KindLost // aborted; the guard's division by zero
	case pgsql.IsSchema(err):
		return sqlstore.KindSchema
	}
	switch pgsql.Classify(err) {
	case store.ClassConflict:
		return sqlstore.KindConflict
	case store.ClassUnavailable:
		return sqlstore.KindUnavailable
	}
	return sqlstore.KindStatement
}

// Texts implements sqlstore.Dialect.
func (dialect) Texts(t store.Tables) sqlstore.Texts {
	s := pgsql.New(t)
	letters, starts := pgsql.Quote(t, t.DeadLetters), pgsql.Quote(t, t.MessageStarts)
	return sqlstore.Texts{
		CreateTable:       s.CreateTable(),
		AddFingerprint:    s.NoFingerprint().SQL,
		ProcessedMessages: pgsql.Quote(t, t.ProcessedMessages),
		DeadLetters:       letters,
		Placeholder:       func(n int) string { return "$" + strconv.Itoa(n) },
		// Once for the statement: first_at and last_at are the same then.
		Now:             "statement_timestamp() AT TIME ZONE 'UTC'",
		TimeText:        func(column string) string { return "to_char(" + column + ", 'YYYY-MM-DD HH24:MI:SS.US')" },
		OnCopy:          sqltext.OnCopy(letters + "."),
		Millis:          "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
		ExternalEffects: pgsql.Quote(t, t.ExternalEffects),
		EntityVersions:  pgsql.Quote(t, t.EntityVersions),
		OnVersion:       sqltext.OnVersion("GREATEST", pgsql.Quote(t, t.EntityVersions)+"."),
		ForUpdate:       " FOR UPDATE",
		ConsumerStats:   pgsql.Quote(t, t.ConsumerStats),
		OnStats:         sqltext.OnStats(pgsql.Quote(t, t.ConsumerStats) + "."),
		AuditTrail:      pgsql.Quote(t, t.AuditTrail),
		MillisOf:        func(column string) string { return "CAST(extract(epoch FROM " + column + ") * 1000 AS bigint)" },
		OutboxMessages:  pgsql.Quote(t, t.OutboxMessages),
		OutboxLanes:     pgsql.Quote(t, t.OutboxMessages+"_lanes"),
		OutboxRelays:    pgsql.Quote(t, t.OutboxMessages+"_relays"),
		OutboxLock:      pgsql.OutboxLock,
		MessageStarts:   starts,
		OnStart:         sqltext.OnStart(starts + "."),
		Pruning:         pruning(t),
	}
}

func pruning(t store.Tables) sqlstore.PruningTexts {
	s, marks := pgsql.New(t), pgsql.Quote(t, t.PruningMarks)
	ago := func(from string, age time.Duration) string {
		return from + " - " + strconv.FormatInt(age.Microseconds(), 10) + " * interval '1 microsecond'"
	}
	return sqlstore.PruningTexts{
		Marks: marks, HasMarks: s.HasMarks(), ReadMark: s.ReadMark(), PinMark: s.PinMark(), LockMark: s.LockMark(),
		OnMark: sqltext.OnMark("GREATEST", marks+"."),
		Indexed: "SELECT COUNT(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]" +
			" WHERE i.indrelid = to_regclass('" + pgsql.Quote(t, t.ProcessedMessages) + "') AND i.indisvalid AND i.indpred IS NULL" +
			" AND a.attname = 'processed_at'",
		Ago: func(age time.Duration) string { return ago("statement_timestamp() AT TIME ZONE 'UTC'", age) },
		ProcessedAgo: func(sh sqlstore.Shape, age time.Duration) string {
			if sh.LocalTime {
				return ago("statement_timestamp() AT TIME ZONE 'UTC'", age)
			}
			return ago("statement_timestamp()", age)
		},
		Micros: func(sqlstore.Shape) string { return "CAST(extract(epoch FROM r.processed_at) * 1000000 AS bigint)" },
		Local:  "SET LOCAL lock_timeout = '1s'",
	}
}
