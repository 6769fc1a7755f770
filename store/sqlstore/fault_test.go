package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"
	"time"

	driversqlite "modernc.org/sqlite"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// faults is a driver for an SQLite file that fails on command. The functions
// are called before the real thing, if they are not nil; an error of theirs is
// the answer.
type faults struct {
	driver.Connector
	begin, commit, rollback func() error
	committed               func()        // called after a COMMIT, before its answer
	opened, closed          chan struct{} // one for each connection
}

// sqliteConn is what the driver's connections can do.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type faultyConn struct {
	sqliteConn
	f *faults
}

type faultyTx struct {
	driver.Tx
	f *faults
}

func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

func (f *faults) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	f.opened <- struct{}{}
	return &faultyConn{c.(sqliteConn), f}, nil
}

func (c *faultyConn) Close() error {
	c.f.closed <- struct{}{}
	return c.sqliteConn.Close()
}

func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := call(c.f.begin); err != nil {
		return nil, err
	}
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	return &faultyTx{tx, c.f}, err
}

func (t *faultyTx) Commit() error {
	if err := call(t.f.commit); err != nil {
		return err
	}
	err := t.Tx.Commit()
	if t.f.committed != nil {
		t.f.committed()
	}
	return err
}

func (t *faultyTx) Rollback() error {
	if err := call(t.f.rollback); err != nil {
		return err
	}
	return t.Tx.Rollback()
}

// withFaults returns a store on a new file, through a driver that fails on
// command.
func withFaults(t *testing.T, opts ...sqlstore.Option) (*faults, *sql.DB, *sqlstore.Store) {
	t.Helper()
	file := dbtest.SQLite(t)
	connector, err := driversqlite.NewConnector("file:" + file.URL[len("sqlite:"):] + "?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{Connector: connector, opened: make(chan struct{}, 100), closed: make(chan struct{}, 100)}
	db := sql.OpenDB(f)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, db, sqlstore.New(db, sqlite.Dialect, opts...)
}

func claimOf(keys ...string) store.Claim {
	c := store.Claim{Consumer: "stock-service"}
	for _, k := range keys {
		c.Keys = append(c.Keys, store.Key{Raw: k})
	}
	return c
}

// begin begins with a claim of one key, which must be fresh.
func begin(t *testing.T, s *sqlstore.Store, key string) *sql.Tx {
	t.Helper()
	tx, states, err := s.Begin(t.Context(), claimOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if states[0] != store.Fresh {
		t.Fatalf("key %q is %v, want fresh", key, states[0])
	}
	return tx
}

func wantState(t *testing.T, s *sqlstore.Store, key string, want store.State) {
	t.Helper()
	states, err := s.Seen(t.Context(), claimOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if states[0] != want {
		t.Errorf("key %q is %v, want %v", key, states[0], want)
	}
}

func wantError(t *testing.T, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Errorf("the error is %v, want %v", err, want)
		}
	}
}

func wantIdle(t *testing.T, db *sql.DB) {
	t.Helper()
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use", n)
	}
}

func TestCommitWithoutAnAnswerInTimeIsUnknownAndItsConnectionIsNeverUsedAgain(t *testing.T) {
	f, db, s := withFaults(t, sqlstore.WithCommitTimeout(50*time.Millisecond))
	answer := make(chan struct{})
	tx := begin(t, s, "order-42")
	f.committed = func() { <-answer }
	err := s.Commit(t.Context(), tx)
	wantError(t, err, store.ErrCommitUnknown)
	if n := db.Stats().InUse; n != 1 {
		t.Errorf("%d connections are in use, want the one that waits for its COMMIT", n)
	}
	close(answer)
	<-f.closed                                   // the COMMIT has returned, and its connection is closed
	wantState(t, s, "order-42", store.Duplicate) // the commit had happened
	wantIdle(t, db)
}

func TestCommitThatBreaksOffIsUnknown(t *testing.T) {
	for _, broken := range []error{driver.ErrBadConn, io.ErrUnexpectedEOF, errors.New("something that the driver does not explain")} {
		f, db, s := withFaults(t)
		tx := begin(t, s, "order-42")
		f.commit = func() error { return broken }
		err := s.Commit(t.Context(), tx)
		wantError(t, err, store.ErrCommitUnknown, broken)
		f.commit = nil
		wantState(t, s, "order-42", store.Fresh)
		wantIdle(t, db)
	}
}

func TestConnectionsThatDiedInThePoolAreReplaced(t *testing.T) {
	f, db, s := withFaults(t)
	for n := range 3 {
		left := n
		f.begin = func() error {
			if left--; left >= 0 {
				return driver.ErrBadConn
			}
			return nil
		}
		if err := s.Rollback(t.Context(), begin(t, s, "order-42")); err != nil {
			t.Error(err)
		}
	}
	f.begin = func() error { return driver.ErrBadConn }
	_, _, err := s.Begin(t.Context(), claimOf("order-42"))
	wantError(t, err, store.ErrUnavailable)
	if c := s.Classify(err); c != store.ClassUnavailable {
		t.Errorf("the class of %v is %v", err, c)
	}
	wantIdle(t, db)
}

func TestConnectionWhoseRollbackFailsIsClosed(t *testing.T) {
	f, db, s := withFaults(t)
	tx := begin(t, s, "order-42")
	f.rollback = func() error { return errors.New("no") }
	before := len(f.closed)
	err := s.Rollback(t.Context(), tx)
	wantError(t, err, store.ErrUnavailable)
	if len(f.closed) != before+1 {
		t.Error("the connection is still in the pool, in a transaction")
	}
	f.rollback = nil
	wantState(t, s, "order-42", store.Fresh)
	wantIdle(t, db)
}

func TestCancellationReachesABeginThatWaits(t *testing.T) {
	f, db, s := withFaults(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.begin = func() error { cancel(); return nil }
	_, _, err := s.Begin(ctx, claimOf("order-42"))
	wantError(t, err, context.Canceled)
	if c := s.Classify(err); c != store.ClassFailed {
		t.Errorf("the class of %v is %v", err, c)
	}
	f.begin = nil
	wantIdle(t, db)
	if err := s.Rollback(t.Context(), begin(t, s, "order-42")); err != nil {
		t.Error(err)
	}
}
