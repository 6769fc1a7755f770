// Package storetest is the suite that every store passes. A store joins by a
// Harness that opens databases and says how SQL runs in its transactions.
//
// The suite waits for events, with a deadline. Where a database cannot tell
// that somebody waits (SQLite), it waits for a short time instead.
package storetest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/sekali/sekali/store"
)

// Database says which SQL a database speaks and what it does.
type Database string

// The databases.
const (
	Postgres Database = "postgres"
	MySQL    Database = "mysql" // MariaDB too
	SQLite   Database = "sqlite"
)

// Harness is how the suite gets at a store. All functions may be called at
// once from many goroutines.
type Harness[Tx any] struct {
	Database Database
	// Open makes a database, or a schema in one, that no other test uses, with
	// the tables of sekali migrate, or none if empty. What it opens it closes
	// with t.Cleanup. It should lie in what folds letter case if that is the
	// database's usual default.
	Open func(t *testing.T, empty bool) Env[Tx]
	// Exec runs one statement without parameters in a transaction, as a
	// handler does, and returns how many rows it affected.
	Exec func(ctx context.Context, tx Tx, statement string) (int64, error)
	// QueryInt runs a query whose result is one number.
	QueryInt func(ctx context.Context, tx Tx, query string) (int, error)
}

// Env is a database of one test.
type Env[Tx any] struct {
	// DB looks at the database from outside. Its sessions are in UTC, and
	// several of them can be open at once.
	DB *sql.DB
	// Client opens a further pool, and a store on it. Settings are those of its
	// sessions: run-time parameters (PostgreSQL), system variables whose values
	// are SQL expressions (MySQL), pragmas (SQLite). The pool has at least 8
	// connections, and ends with the test.
	Client func(t *testing.T, settings map[string]string) Client[Tx]
}

// Client is a pool with a store.
type Client[Tx any] struct {
	Store store.Store[Tx]
	// Begin, Commit and Rollback are those of the client library, for
	// transactions of the user's own.
	Begin    func(ctx context.Context) (Tx, error)
	Commit   func(ctx context.Context, tx Tx) error
	Rollback func(ctx context.Context, tx Tx) error
	// InUse is how many connections of the pool are in use.
	InUse func() int
}

// Patience is how long the suite waits for what must happen.
const Patience = 30 * time.Second

// Run runs the suite. Each test is a subtest with a database of its own; they
// run in parallel.
func Run[Tx any](t *testing.T, h Harness[Tx]) {
	for _, group := range []struct {
		name  string
		tests []test[Tx]
	}{
		{"keys", keyTests[Tx]()},
		{"claims", claimTests[Tx]()},
		{"rivals", rivalTests[Tx]()},
		{"lost transactions", lostTests[Tx]()},
		{"conflicts", conflictTests[Tx]()},
		{"cancellation", cancelTests[Tx]()},
		{"fingerprints", fingerprintTests[Tx]()},
		{"isolation", isolationTests[Tx]()},
		{"time", timeTests[Tx]()},
		{"ages", ageTests[Tx]()},
		{"schema", schemaTests[Tx]()},
		{"dead letters", letterTests[Tx]()},
		{"held messages", holdTests[Tx]()},
		{"redrives", redriveTests[Tx]()},
		{"effects", effectTests[Tx]()},
		{"versions", versionTests[Tx]()},
		{"statistics", statTests[Tx]()},
		{"starts", startTests[Tx]()},
		{"claims taken back", unclaimTests[Tx]()},
		{"outbox", outboxTests[Tx]()},
		{"people", adminTests[Tx]()},
		{"pruning", pruneTests[Tx]()},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, test := range group.tests {
				if !test.on.has(h.Database) {
					continue
				}
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					test.f(open(t, h, test.empty))
				})
			}
		})
	}
}

// test is one test of the suite.
type test[Tx any] struct {
	name  string // a sentence about behaviour
	f     func(*bench[Tx])
	on    databases // none: all
	empty bool      // it makes its tables itself
}

// databases are those on which a test makes sense.
type databases []Database

func (d databases) has(one Database) bool {
	for _, each := range d {
		if each == one {
			return true
		}
	}
	return len(d) == 0
}
