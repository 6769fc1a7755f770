// Package pgsql holds what PostgreSQL needs to hear and what its answers mean,
// whichever client library carries it: the SQL of a claim, the guard before
// COMMIT, the check of the catalogue and the classes of SQLSTATEs.
//
// It imports no driver. All parameters are text (lists travel as array
// literals, fingerprints in hexadecimal), so that the same statement works in
// the simple and in the extended protocol and through database/sql.
package pgsql

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sekali/sekali/store"
)

// Shape is what Check learns of processed_messages that the statements depend
// on.
type Shape struct {
	// LocalTime tells that processed_at is a timestamp without time zone: the
	// time must be turned into UTC before it is assigned, for the assignment
	// would turn it into the session's zone.
	LocalTime bool
	// Fingerprint tells that there is a column fingerprint.
	Fingerprint bool
}

// Statements are the statements for one set of tables. The zero value is of
// no use: see New.
type Statements struct {
	tables store.Tables
	table  string // processed_messages, quoted, with its schema
}

// New returns the statements for t, whose names must be valid.
func New(t store.Tables) Statements {
	t = t.WithDefaults()
	return Statements{tables: t, table: Quote(t, t.ProcessedMessages)}
}

// Quote returns the name of a table in quotes, with its schema if there is
// one: a name such as "order" is a table's name, never a key word.
func Quote(t store.Tables, name string) string {
	if t.Schema == "" {
		return `"` + name + `"`
	}
	return `"` + t.Schema + `"."` + name + `"`
}

// Claim returns the statement that claims keys: $1 is the consumer, $2 an
// Array of stored keys in the order in which they are to be locked and, with
// fingerprints, $3 an array of theirs (see Plan). It returns a row for each
// key that was fresh: its stored form, and the id of the transaction as text.
//
// One statement serves any number of keys, so one prepared statement does.
// WITH ORDINALITY keeps the order of the array, which is the same in every
// process and does not depend on the column's collation.
func (s Statements) Claim(shape Shape, fingerprints bool) string {
	now := "clock_timestamp()"
	if shape.LocalTime {
		now = "clock_timestamp() AT TIME ZONE 'UTC'"
	}
	columns, values, from := "", "", "unnest($2::text[]) WITH ORDINALITY AS k(message_key, n)"
	if fingerprints {
		columns, values = ", fingerprint", ", decode(k.fingerprint, 'hex')"
		from = "unnest($2::text[], $3::text[]) WITH ORDINALITY AS k(message_key, fingerprint, n)"
	}
	return "INSERT INTO " + s.table + " (consumer_name, message_key, processed_at" + columns + ")" +
		" SELECT $1::text, k.message_key, " + now + values + " FROM " + from + " ORDER BY k.n" +
		" ON CONFLICT (consumer_name, message_key) DO NOTHING" +
		// The cast keeps a cached plan valid when the column's type changes.
		" RETURNING message_key::text, pg_current_xact_id()::text"
}

// ClaimOne is Claim for a single key, which is a third cheaper: $2 is its
// stored form, and $3 its fingerprint in hexadecimal, if it may have one.
func (s Statements) ClaimOne(shape Shape, fingerprints bool) string {
	now := "clock_timestamp()"
	if shape.LocalTime {
		now = "clock_timestamp() AT TIME ZONE 'UTC'"
	}
	columns, values := "", ""
	if fingerprints {
		columns, values = ", fingerprint", ", decode($3::text, 'hex')"
	}
	return "INSERT INTO " + s.table + " (consumer_name, message_key, processed_at" + columns + ")" +
		" VALUES ($1::text, $2::text, " + now + values + ")" +
		" ON CONFLICT (consumer_name, message_key) DO NOTHING" +
		" RETURNING message_key::text, pg_current_xact_id()::text"
}

// Fingerprints returns the statement that reads and locks the fingerprints of
// claimed keys that were there: $1 is the consumer, $2 an Array of stored
// keys. It returns the stored form and the fingerprint in hexadecimal, NULL if
// it is unknown. A key without a row has vanished since.
func (s Statements) Fingerprints() string {
	return "SELECT message_key::text, encode(fingerprint, 'hex') FROM " + s.table +
		" WHERE consumer_name = $1::text AND message_key = ANY($2::text[])" +
		" ORDER BY message_key FOR SHARE"
}

// Seen returns the statement that reads keys without claiming them: $1 is the
// consumer, $2 an Array of stored keys. It returns a row for each key: its
// stored form, whether it is there, its fingerprint in hexadecimal (NULL if it
// is unknown), and whether the server is a replica, whose word does not count.
func (s Statements) Seen(shape Shape) string {
	fingerprint := "NULL::text"
	if shape.Fingerprint {
		fingerprint = "encode(m.fingerprint, 'hex')"
	}
	return "SELECT k.message_key, m.message_key IS NOT NULL, " + fingerprint + ", pg_is_in_recovery()" +
		" FROM unnest($2::text[]) AS k(message_key) LEFT JOIN " + s.table + " AS m" +
		" ON m.consumer_name = $1::text AND m.message_key = k.message_key"
}

// Ages returns the statement that tells how old the rows of keys are: $1 is the
// consumer, $2 an Array of stored keys. It returns the stored form of each key
// that is there, and the age in microseconds, NULL if it has no time.
func (s Statements) Ages(shape Shape) string {
	now := "clock_timestamp()"
	if shape.LocalTime {
		now = "clock_timestamp() AT TIME ZONE 'UTC'"
	}
	return "SELECT message_key::text, (extract(epoch FROM " + now + " - processed_at) * 1000000)::bigint FROM " + s.table +
		" WHERE consumer_name = $1::text AND message_key = ANY($2::text[])"
}

// Survived returns the statement that tells whether a claim outlived its
// transaction: $1 is the consumer, $2 an Array of stored keys, $3 the Xmin of
// the transaction. It returns one boolean. A rival's row has another xmin, so
// it is never taken for ours; vacuum keeps xmin readable.
func (s Statements) Survived() string {
	return "SELECT EXISTS (SELECT 1 FROM " + s.table +
		" WHERE consumer_name = $1::text AND message_key = ANY($2::text[]) AND xmin::text = $3::text)"
}

// Advance returns the statement that raises an entity's version: $1 is the
// consumer, $2 the entity's stored form, $3 the version. It returns the newest.
func (s Statements) Advance() string {
	table := Quote(s.tables, s.tables.EntityVersions)
	return "INSERT INTO " + table + " (consumer_name, entity, version, updated_at)" +
		" VALUES ($1::text, $2::text, $3::bigint, statement_timestamp() AT TIME ZONE 'UTC')" +
		" ON CONFLICT (consumer_name, entity) DO UPDATE SET version = GREATEST(" + table + ".version, excluded.version)," +
		" updated_at = excluded.updated_at RETURNING version"
}

// ResolveLetter returns the statement that resolves, in the transaction of
// its claim, a dead letter that was taken: $1 is its id, $2 the token, $3 the
// status. It affects no row if the letter is not ours any more.
func (s Statements) ResolveLetter() string {
	return "UPDATE " + Quote(s.tables, s.tables.DeadLetters) + " SET status = $3::text, open_identity = NULL," +
		" last_at = statement_timestamp() AT TIME ZONE 'UTC', lease_token = NULL, leased_until = 0" +
		" WHERE id = $1::bigint AND lease_token = $2::text AND status IN ('requested', 'held', 'waiting')"
}

// HasMarks returns the query whose one value is 1 if pruning_marks is there,
// else 0. A missing table is an answer, not an error, so that it can be asked in
// a transaction.
func (s Statements) HasMarks() string {
	return "SELECT (to_regclass('" + Quote(s.tables, s.tables.PruningMarks) + "') IS NOT NULL)::int"
}

// ReadMark returns the query for the mark of the consumer $1, NULL if there is
// none, and whether the transaction has one snapshot for all its statements: then
// what a claim waited for is not in it.
func (s Statements) ReadMark() string {
	return "SELECT (SELECT pruned_until FROM " + Quote(s.tables, s.tables.PruningMarks) + " WHERE consumer_name = $1::text)," +
		" (current_setting('transaction_isolation') IN ('repeatable read', 'serializable'))::int"
}

// PinMark returns the statement that makes the mark of the consumer $1 if it is
// not there. One that is not in the snapshot is a serialization failure.
func (s Statements) PinMark() string {
	return "INSERT INTO " + Quote(s.tables, s.tables.PruningMarks) + " (consumer_name) VALUES ($1::text) ON CONFLICT (consumer_name) DO NOTHING"
}

// LockMark returns the query for the mark of the consumer $1, which stays as it
// is until the transaction ends. One that has moved since the snapshot is a
// serialization failure.
func (s Statements) LockMark() string {
	return "SELECT pruned_until FROM " + Quote(s.tables, s.tables.PruningMarks) + " WHERE consumer_name = $1::text FOR SHARE"
}

// CreateTable returns the five lines that make processed_messages.
func (s Statements) CreateTable() string {
	return "CREATE TABLE " + s.tables.In(s.tables.ProcessedMessages) + " (\n" +
		"    consumer_name VARCHAR(100) COLLATE \"C\" NOT NULL,\n" +
		"    message_key   VARCHAR(200) COLLATE \"C\" NOT NULL,\n" +
		"    processed_at  TIMESTAMPTZ NOT NULL DEFAULT now(),\n" +
		"    PRIMARY KEY (consumer_name, message_key));"
}

// loudEnough lets the warning through by which the server says that a commit
// is durable here alone, where a session hides warnings. SET LOCAL ends after
// the wait for the replica.
const loudEnough = "CASE WHEN current_setting('client_min_messages') = 'error'" +
	" THEN set_config('client_min_messages', 'warning', true) END"

// Guard returns the statement to send before COMMIT. It fails (division by
// zero, 22012) unless the transaction is still the one with the given id, and
// fails in an aborted transaction (25P02). An empty id, of a transaction
// that claimed nothing fresh, guards nothing. COALESCE matters: a fresh
// transaction has no id, and 1/NULL is no error.
func Guard(xid string) (string, error) {
	if xid == "" {
		return "SELECT " + loudEnough, nil
	}
	if err := checkXID(xid); err != nil {
		return "", err
	}
	return "SELECT 1/(COALESCE(pg_current_xact_id_if_assigned()::text, '') = '" + xid + "')::int, " + loudEnough, nil
}

// PreparedGuard is Guard for a client that prepares statements: $1 is the id,
// which is not empty.
const PreparedGuard = "SELECT 1/(COALESCE(pg_current_xact_id_if_assigned()::text, '') = $1::text)::int, " + loudEnough

// Xmin returns what rows written by the transaction xid bear as xmin: its
// lower 32 bits.
func Xmin(xid string) (string, error) {
	if err := checkXID(xid); err != nil {
		return "", err
	}
	full, err := strconv.ParseUint(xid, 10, 64)
	if err != nil {
		return "", fmt.Errorf("read the transaction id %q: %w", xid, err)
	}
	return strconv.FormatUint(full&0xFFFFFFFF, 10), nil
}

// checkXID keeps anything but digits out of SQL text.
func checkXID(xid string) error {
	if xid == "" || strings.Trim(xid, "0123456789") != "" {
		return fmt.Errorf("the server gave %q as a transaction id: digits are expected", xid)
	}
	return nil
}

// OutboxLock locks an ordering key of the outbox until the transaction ends.
const OutboxLock = "SELECT pg_advisory_xact_lock(hashtextextended(encode($1::bytea, 'hex'), 7))"
