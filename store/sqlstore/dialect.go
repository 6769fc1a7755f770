package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"github.com/sekali/sekali/store"
)

// Querier runs statements: *sql.Tx, *sql.Conn, a GORM ConnPool. A wrapper that
// rewrites placeholders may not understand those of PostgreSQL; Bun's does
// not: hand over the *sql.Tx inside bun.Tx.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Dialect is what differs between the databases. Its implementations are in
// the packages postgres, mysql and sqlite below this one, each of which
// imports one driver. A Dialect has no state and is safe for concurrent use.
//
// A Dialect may have a method Unread(driverConn any) bool as well. It tells,
// without I/O, that a result was not read to its end, where a further
// statement would break such a connection. And it may have a method
//
//	Ages(t store.Tables, sh Shape, consumer string, keys []string) (query string, args []any)
//
// that returns the query for store.Ager: the stored form of each of keys that
// has a row, and how many microseconds ago that was written, or NULL. For
// Store.Admin it has the methods of DeskDialect.
type Dialect interface {
	// Check compares processed_messages with what Sekali needs, by reading the
	// catalogue through q. A *store.SchemaError says what is wrong. A missing
	// table must not make a statement fail: q may be a user's transaction.
	Check(ctx context.Context, q Querier, t store.Tables) (Shape, error)

	// Claim inserts the pending keys of k, in their order, and calls k.Fresh
	// for each that it inserted; those that were there stay pending. It waits
	// for rivals. The mark that it returns lets Survived tell our rows from a
	// rival's; it is empty where that cannot be told.
	Claim(ctx context.Context, q Querier, t store.Tables, sh Shape, k *Keys) (mark string, err error)

	// Read calls k.Found for each pending key that has a row. With lock it
	// sees what is committed now, and the rows stay as they are until the
	// transaction ends.
	Read(ctx context.Context, q Querier, t store.Tables, sh Shape, k *Keys, lock bool) error

	// Guard returns the statement to run right after a claim with that mark
	// (empty: none), and the one whose success proves, before the end, that
	// the transaction is still the one that claimed. Its failure with
	// KindLost proves that it is not.
	Guard(mark string) (protect, prove string, err error)

	// Survived tells, outside any transaction, whether a row of the keys that
	// k claimed is there, and where there is a mark, one that this very claim
	// wrote.
	Survived(ctx context.Context, q Querier, t store.Tables, sh Shape, k *Keys, mark string) (bool, error)

	// Kind says what an error of the driver means, by codes and types.
	Kind(err error) Kind

	// Texts returns pieces of SQL for t.
	Texts(t store.Tables) Texts
}

// DeskDialect is what Store.Admin needs besides.
type DeskDialect interface {
	// Desk returns pieces of SQL about processed_messages.
	Desk(sh Shape) DeskTexts
}

// DeskTexts are pieces of SQL about processed_messages.
type DeskTexts struct {
	// Micros is an expression for processed_at in microseconds since 1970 in
	// UTC.
	Micros string
	// Time is an expression for what processed_at keeps, of such a number, for
	// which its one ? stands.
	Time string
	// Exact follows a key column where it is compared, so that it is compared
	// byte for byte whatever its collation; empty where Check has seen to it.
	Exact string
}

// Shape is what Check learns that the statements depend on.
type Shape struct {
	// Fingerprint tells that there is a column fingerprint.
	Fingerprint bool
	// LocalTime tells that processed_at keeps a time without its zone.
	LocalTime bool
	// Returning tells that INSERT gives back what it wrote, where some
	// versions of a database cannot.
	Returning bool
	// Private tells that the database lives in one connection, so that
	// another connection may see another database, and that closing the
	// connection loses it: SQLite's :memory:.
	Private bool
}

// Kind is what an error of a driver means to this package.
type Kind uint8

// The kinds of errors.
const (
	// KindNone: not the server's word.
	KindNone Kind = iota
	// KindStatement: the server refused a statement for a reason that is none
	// of the others.
	KindStatement
	// KindDuplicate: a primary key or unique index has such a row.
	KindDuplicate
	// KindSchema: a table or column is missing.
	KindSchema
	// KindLost: the transaction or its savepoint is not there any more, or it
	// can only roll back. Where a code says no more than that something is
	// wrong (SQLite's 1), it is this.
	KindLost
	// KindConflict: transactions got in each other's way.
	KindConflict
	// KindUnavailable: the server is lost, full, read-only or shuts down.
	KindUnavailable
)

// Texts are pieces of SQL that differ between databases.
type Texts struct {
	// CreateTable makes processed_messages, in five lines.
	CreateTable string
	// AddFingerprint gives it the column fingerprint.
	AddFingerprint string
	// ProcessedMessages is the quoted name of the table processed_messages.
	ProcessedMessages string
	// DeadLetters is the quoted name of the table dead_letters.
	DeadLetters string
	// Placeholder returns the placeholder of the nth parameter, from 1.
	Placeholder func(n int) string
	// Now is an expression for the time in UTC by the database's clock, as the
	// columns first_at and last_at keep it.
	Now string
	// TimeText returns an expression for such a column as
	// "YYYY-MM-DD hh:mm:ss", with a fraction or without.
	TimeText func(column string) string
	// OnCopy returns what follows INSERT … VALUES to count, instead, a copy of
	// the letter that has the same open_identity, and to take these columns
	// from the new one; status stays what it is where a redrive was requested.
	OnCopy func(columns ...string) string
	// Millis is an expression for the time in milliseconds since 1970 by the
	// database's clock.
	Millis string
	// MillisOf returns an expression for such a time of a column that Now wrote.
	MillisOf func(column string) string
	// ExternalEffects is the quoted name of the table external_effects.
	ExternalEffects string
	// EntityVersions is the quoted name of the table entity_versions.
	EntityVersions string
	// OnVersion is what follows INSERT … VALUES to keep, instead, the newer of
	// the version that is there and the new one.
	OnVersion string
	// ForUpdate follows a SELECT that locks; empty where a write has locked.
	ForUpdate string
	// ConsumerStats is the quoted name of the table consumer_stats.
	ConsumerStats string
	// OnStats returns what follows INSERT … VALUES to add these columns,
	// instead, to those of the row of the same consumer and minute.
	OnStats func(columns ...string) string
	// AuditTrail is the quoted name of the table audit_trail.
	AuditTrail string
	// OutboxMessages, OutboxLanes and OutboxRelays are the quoted names of the
	// table outbox_messages and of those with which Relays share it.
	OutboxMessages, OutboxLanes, OutboxRelays string
	// OutboxLock is a statement that locks the ordering key that is its one
	// parameter until the transaction ends; empty where there is one writer at a
	// time.
	OutboxLock string
	// MessageStarts is the quoted name of the table message_starts.
	MessageStarts string
	// OnStart is what follows INSERT … VALUES to add, instead, to the start
	// that is recorded.
	OnStart string
	// Pruning is what the pruner and the marks that it leaves need.
	Pruning PruningTexts
}

// PruningTexts are pieces of SQL for pruning.
type PruningTexts struct {
	// Marks is the quoted name of the table pruning_marks.
	Marks string
	// HasMarks is a query whose one value is 1 if that table is there, else 0.
	HasMarks string
	// ReadMark is a query with one parameter, a consumer, whose one row is its
	// mark, or NULL, and 1 if a removal that its transaction has waited for may
	// not be seen by it.
	ReadMark string
	// PinMark, with one parameter, and then LockMark, a query with one, are for
	// that case: they see it, or fail with KindConflict.
	PinMark, LockMark string
	// OnMark is what follows INSERT … VALUES to keep, instead, the later mark.
	OnMark string
	// Indexed is a query for the number of indexes of processed_messages that
	// begin with processed_at.
	Indexed string
	// Ago returns an expression for the time that is so long ago, as Now.
	Ago func(age time.Duration) string
	// ProcessedAgo returns one to compare with processed_at.
	ProcessedAgo func(sh Shape, age time.Duration) string
	// Micros returns an expression for processed_at in microseconds since 1970.
	Micros func(sh Shape) string
	// Before and After are statements to run on a connection before and after
	// its transactions; Local is one to run in each. Empty: none.
	Before, After, Local string
}
