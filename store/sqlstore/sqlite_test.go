package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// open opens an SQLite database with processed_messages made by hand.
func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	run(t, db, "CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200),"+
		" processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key))")
	return db
}

func run(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func wantSchemaError(t *testing.T, err error, texts ...string) {
	t.Helper()
	var schema *store.SchemaError
	if !errors.As(err, &schema) {
		t.Fatalf("the error is %v, want a SchemaError", err)
	}
	for _, text := range texts {
		if !strings.Contains(schema.Error(), text) {
			t.Errorf("%q does not say %q", schema, text)
		}
	}
}

func TestMemoryDatabaseWithAPoolIsRefused(t *testing.T) {
	db := open(t, ":memory:")
	s := sqlstore.New(db, sqlite.Dialect)
	wantSchemaError(t, s.Check(t.Context()), "memory", "db.SetMaxOpenConns(1)")
	_, _, err := s.Begin(t.Context(), claimOf("order-42"))
	wantSchemaError(t, err, "memory")
}

func TestMemoryDatabaseThatAllConnectionsShareIsFine(t *testing.T) {
	db := open(t, "file:shared?mode=memory&cache=shared")
	s := sqlstore.New(db, sqlite.Dialect)
	if err := s.Commit(t.Context(), begin(t, s, "order-42")); err != nil {
		t.Error(err)
	}
	wantState(t, s, "order-42", store.Duplicate)
}

// With one connection, whatever asks the pool for a second waits for ever.
func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	for name, dsn := range map[string]string{"memory": ":memory:", "file": "file:" + filepath.Join(t.TempDir(), "one.db")} {
		t.Run(name, func(t *testing.T) {
			db := open(t, dsn)
			db.SetMaxOpenConns(1)
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			s := sqlstore.New(db, sqlite.Dialect)
			if states, err := s.Claim(t.Context(), tx, claimOf("order-41")); err != nil || states[0] != store.Fresh {
				t.Fatal(states, err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			for end, want := range map[string][]error{"COMMIT": {store.ErrTransactionLost, store.ErrKeySurvived}, "ROLLBACK": {store.ErrTransactionLost}} {
				tx := begin(t, s, end)
				if _, err := tx.ExecContext(t.Context(), end); err != nil {
					t.Fatal(err)
				}
				wantError(t, s.Commit(t.Context(), tx), want...)
			}
			if err := s.Rollback(t.Context(), begin(t, s, "order-42")); err != nil {
				t.Error(err)
			}
			wantState(t, s, "order-41", store.Duplicate)
			wantState(t, s, "order-42", store.Fresh)
			wantIdle(t, db)
		})
	}
}

func TestMemoryDatabaseOutlivesAFailureOfItsConnection(t *testing.T) {
	db := open(t, ":memory:")
	db.SetMaxOpenConns(1)
	s := sqlstore.New(db, sqlite.Dialect)
	ctx, cancel := context.WithCancel(t.Context())
	tx := begin(t, s, "order-42")
	cancel()
	if _, err := tx.ExecContext(ctx, "DELETE FROM processed_messages"); !errors.Is(err, context.Canceled) {
		t.Errorf("a statement under an ended context: %v", err)
	}
	if err := s.Rollback(ctx, tx); err != nil {
		t.Error(err)
	}
	wantState(t, s, "order-42", store.Fresh) // and the table is there
}

func TestDatabaseThatCannotRollBackIsRefused(t *testing.T) {
	db := open(t, "file:"+filepath.Join(t.TempDir(), "off.db")+"?_pragma=journal_mode(off)")
	wantSchemaError(t, sqlstore.New(db, sqlite.Dialect).Check(t.Context()), "journal_mode")
}

func TestHandlerThatEndsItsTransactionThroughDatabaseSQLIsFoundOut(t *testing.T) {
	db := dbtest.SQLite(t).SQL
	s := sqlstore.New(db, sqlite.Dialect)
	committed := begin(t, s, "order-41")
	if err := committed.Commit(); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Commit(t.Context(), committed), store.ErrTransactionLost, store.ErrKeySurvived)
	rolledBack := begin(t, s, "order-42")
	if err := rolledBack.Rollback(); err != nil {
		t.Fatal(err)
	}
	err := s.Commit(t.Context(), rolledBack)
	wantError(t, err, store.ErrTransactionLost)
	if errors.Is(err, store.ErrKeySurvived) {
		t.Errorf("no key survived: %v", err)
	}
	wantIdle(t, db)
}

func TestATransactionEndsOnce(t *testing.T) {
	db := dbtest.SQLite(t).SQL
	s := sqlstore.New(db, sqlite.Dialect)
	tx := begin(t, s, "order-42")
	if err := s.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Commit(t.Context(), tx), sql.ErrTxDone)
	if err := s.Rollback(t.Context(), tx); err != nil {
		t.Error(err)
	}
	own, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Commit(t.Context(), own), sql.ErrTxDone)
	if err := own.Rollback(); err != nil {
		t.Errorf("the store ended a transaction that is not its own: %v", err)
	}
}

// Without WAL a reader keeps the writer from committing. SQLite leaves such a
// transaction open.
func TestCommitThatIsBusyCommitsNothingAndPoisonsNothing(t *testing.T) {
	db := open(t, "file:"+filepath.Join(t.TempDir(), "busy.db")+"?_pragma=busy_timeout(20)")
	s := sqlstore.New(db, sqlite.Dialect)
	if err := s.Commit(t.Context(), begin(t, s, "order-41")); err != nil {
		t.Fatal(err)
	}
	reader, err := db.QueryContext(t.Context(), "SELECT message_key FROM processed_messages")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if !reader.Next() {
		t.Fatal(reader.Err())
	}
	for i := range 3 {
		err := s.Commit(t.Context(), begin(t, s, "order-42"))
		if err == nil || s.Classify(err) != store.ClassConflict || errors.Is(err, store.ErrCommitUnknown) {
			t.Errorf("commit %d: %v, of class %v", i, err, s.Classify(err))
		}
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), begin(t, s, "order-42")); err != nil {
		t.Error(err)
	}
	wantIdle(t, db)
}

// manyKeys is more than go into one statement.
const manyKeys = 12_000

// claimMany claims every second key and then all of them.
func claimMany(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	all, even := store.Claim{Consumer: "stock-service"}, store.Claim{Consumer: "stock-service"}
	for i := range manyKeys {
		key := store.Key{Raw: fmt.Sprintf("order-%d", i), Fingerprint: []byte(strings.Repeat("f", 32))}
		all.Keys = append(all.Keys, key)
		if i%2 == 0 {
			even.Keys = append(even.Keys, key)
		}
	}
	tx, _, err := s.Begin(t.Context(), even)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	all.Keys[2].Fingerprint = []byte(strings.Repeat("g", 32))
	check := func(states []store.State, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range states {
			want := store.State((i + 1) % 2) // fresh where i is odd
			if i == 2 {
				want = store.Conflict
			}
			if got != want {
				t.Fatalf("key %d is %v, want %v", i, got, want)
			}
		}
	}
	check(s.Seen(t.Context(), all))
	tx, states, err := s.Begin(t.Context(), all)
	check(states, err)
	if _, err := tx.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	wantError(t, s.Rollback(t.Context(), tx), store.ErrKeySurvived)
}

func TestMoreKeysThanOneStatementTakesOnSQLite(t *testing.T) {
	claimMany(t, sqlstore.New(dbtest.SQLite(t).SQL, sqlite.Dialect))
}

func TestTablesCanHaveOtherNamesOnSQLite(t *testing.T) {
	tables := store.Tables{ProcessedMessages: "order", DeadLetters: "group"}
	otherNames(t, dbtest.SQLite(t, dbtest.Tables(tables)).SQL, sqlite.Dialect, tables)
	tables.Schema = "main"
	db := dbtest.SQLite(t, dbtest.Empty())
	if _, err := migrate.Up(t.Context(), db.SQL, migrate.SQLite, migrate.WithTables(store.Tables{ProcessedMessages: "order", DeadLetters: "group"})); err != nil {
		t.Fatal(err)
	}
	otherNames(t, db.SQL, sqlite.Dialect, tables)
}

// otherNames uses tables, whose names are key words.
func otherNames(t *testing.T, db *sql.DB, d sqlstore.Dialect, tables store.Tables) {
	t.Helper()
	s := sqlstore.New(db, d, sqlstore.WithTables(tables))
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), begin(t, s, "order-42")); err != nil {
		t.Error(err)
	}
	wantState(t, s, "order-42", store.Duplicate)
	for range 2 {
		if err := s.DeadLetters().Put(t.Context(), letter()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.DeadLetters().Get(t.Context(), 1); err != nil || got.Copies != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestNamesThatAreNoNamesAreRefused(t *testing.T) {
	s := sqlstore.New(dbtest.SQLite(t).SQL, sqlite.Dialect, sqlstore.WithTables(store.Tables{ProcessedMessages: `a" b`}))
	_, _, err := s.Begin(t.Context(), claimOf("order-42"))
	_, claimErr := s.ClaimWith(t.Context(), nil, claimOf("order-42"))
	_, seenErr := s.Seen(t.Context(), claimOf("order-42"))
	for _, err := range []error{err, claimErr, seenErr, s.Check(t.Context()), s.DeadLetters().Put(t.Context(), letter())} {
		if err == nil || !strings.Contains(err.Error(), "lower-case letters") {
			t.Errorf("the error is %v", err)
		}
	}
}

func TestAnyQuerierCanClaim(t *testing.T) {
	db := dbtest.SQLite(t).SQL
	s := sqlstore.New(db, sqlite.Dialect)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i, end := range []string{"ROLLBACK", "COMMIT", "COMMIT"} {
		if _, err := conn.ExecContext(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		states, err := s.ClaimWith(t.Context(), conn, claimOf("order-42"))
		if want := []store.State{store.Fresh, store.Fresh, store.Duplicate}[i]; err != nil || states[0] != want {
			t.Errorf("%v, %v, want %v", states, err, want)
		}
		if _, err := conn.ExecContext(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBareNetworkErrorsAreNobodysFaultThatWeKnow(t *testing.T) {
	s := sqlstore.New(dbtest.SQLite(t).SQL, sqlite.Dialect)
	for _, err := range []error{nil, &net.OpError{Op: "dial", Err: errors.New("refused")}, context.DeadlineExceeded, context.Canceled} {
		if c := s.Classify(err); c != store.ClassFailed {
			t.Errorf("%v is of class %v", err, c)
		}
	}
	for _, err := range []error{sql.ErrConnDone, fmt.Errorf("put: %w", store.ErrUnavailable)} {
		if c := s.Classify(err); c != store.ClassUnavailable {
			t.Errorf("%v is of class %v", err, c)
		}
	}
}
