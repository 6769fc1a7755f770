// Package sqlstore is the store for database/sql: its transactions are
// *sql.Tx.
//
//	db, err := sql.Open("sqlite", "file:shop.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
//	stock := sekali.NewInbox(sqlstore.New(db, sqlite.Dialect), "stock-service")
//
// The driver is "sqlite" for modernc.org/sqlite, "mysql" for
// github.com/go-sql-driver/mysql, and "pgx" for github.com/jackc/pgx/v5/stdlib.
// New, its options and a dialect are all that users need; the other names here
// are for those who write a dialect.
//
// The dialects are in the packages postgres, mysql (MariaDB too) and sqlite
// below this one; each imports one driver, this package none.
//
// The store ends the transactions that it begins, after the handler has
// returned. A handler that commits, rolls back or runs DDL that commits is
// found out: see store.ErrTransactionLost and store.ErrKeySurvived.
package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

var _ store.Store[*sql.Tx] = (*Store)(nil)

// Store keeps processed_messages in a database behind database/sql. It is safe
// for concurrent use.
type Store struct {
	db            *sql.DB
	dialect       Dialect
	tables        store.Tables
	texts         Texts
	invalid       error // of the options; told by the first call
	commitTimeout time.Duration
	shape         atomic.Pointer[Shape] // nil until a check succeeded
	marked        atomic.Bool           // pruning_marks is there
	open          sync.Map              // *sql.Tx: *transaction, from Begin to the end
}

// Option changes what New makes.
type Option func(*Store)

// WithTables names the tables. Defaults to store.Tables{}: the default names,
// in the connection's own schema. Invalid names are an error of the first
// call.
func WithTables(t store.Tables) Option {
	return func(s *Store) { s.tables = t }
}

// WithCommitTimeout bounds a COMMIT, which does not end with the caller's
// context. Defaults to store.DefaultCommitTimeout; 0 or less means the default.
// A COMMIT that takes longer has an unknown outcome and is run again. With
// MySQL the connection stays occupied until the driver gives up waiting: set
// its readTimeout as well.
func WithCommitTimeout(d time.Duration) Option {
	return func(s *Store) { s.commitTimeout = d }
}

// New returns a store on db, which the caller made and will close. It does no
// I/O: the first call checks the schema. The pool must lead to the primary.
func New(db *sql.DB, d Dialect, opts ...Option) *Store {
	s := &Store{db: db, dialect: d}
	for _, o := range opts {
		o(s)
	}
	if s.commitTimeout <= 0 {
		s.commitTimeout = store.DefaultCommitTimeout
	}
	s.tables = s.tables.WithDefaults()
	if err := s.tables.Validate(); err != nil {
		s.invalid = fmt.Errorf("the tables of the store: %w", err)
	}
	s.texts = d.Texts(s.tables)
	return s
}

// DeadLetters returns the dead letters that are kept beside the claims.
func (s *Store) DeadLetters() deadletter.Queue { return letters{s} }

// Check implements store.Store.
func (s *Store) Check(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	const doing = "check the schema"
	return s.onConn(ctx, doing, func(conn *sql.Conn) error {
		s.shape.Store(nil)
		_, err := s.checked(ctx, conn)
		return err
	})
}

// Seen implements store.Store.
func (s *Store) Seen(ctx context.Context, c store.Claim) ([]store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	k := newKeys(c)
	doing := fmt.Sprintf("look for keys of consumer %q", c.Consumer)
	err := s.onConn(ctx, doing, func(conn *sql.Conn) error {
		shape, err := s.shapeFor(ctx, conn, k)
		if err != nil {
			return err
		}
		return s.dialect.Read(ctx, conn, s.tables, shape, k, false)
	})
	if err != nil {
		return nil, err
	}
	k.settleAll(store.Fresh, func(Key) bool { return true })
	return k.states, nil
}

// maxConns is how many connections that turn out to be dead are tried: a pool
// hands them out after a restart of the server. database/sql does so by
// itself for statements on the pool, but not on a connection.
const maxConns = 3

// onConn runs f on a connection of the pool. f must be harmless to repeat.
func (s *Store) onConn(ctx context.Context, doing string, f func(*sql.Conn) error) error {
	for try := 1; ; try++ {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return unreachable(ctx, doing, err)
		}
		if err = f(conn); err != nil {
			if try < maxConns && isStale(err) {
				_ = conn.Close() // broken, and closed already
				continue
			}
			err = s.failed(ctx, doing, conn, err)
		}
		_ = conn.Close() // what can fail here is only closing it twice
		return err
	}
}

func (s *Store) validate(c store.Claim) error {
	if s.invalid != nil {
		return s.invalid
	}
	return c.Validate()
}

// checked returns the shape of the table, which it looks up through q the
// first time and again after a failure. In a user's transaction q is that
// transaction: with a pool of one, another connection would never come.
func (s *Store) checked(ctx context.Context, q Querier) (Shape, error) {
	if known := s.shape.Load(); known != nil {
		return *known, nil
	}
	shape, err := s.dialect.Check(ctx, q, s.tables)
	if err != nil {
		return Shape{}, err
	}
	if shape.Private && s.db.Stats().MaxOpenConnections != 1 {
		if err := s.checkShared(ctx); err != nil {
			return Shape{}, err
		}
	}
	s.shape.Store(&shape)
	return shape, nil
}

// shapeFor is checked for a claim that may have fingerprints. What it misses
// it looks for again: somebody may have migrated.
func (s *Store) shapeFor(ctx context.Context, q Querier, k *Keys) (Shape, error) {
	shape, err := s.checked(ctx, q)
	if err != nil || shape.Fingerprint || !k.HasFingerprints() {
		return shape, err
	}
	s.shape.Store(nil)
	if shape, err = s.checked(ctx, q); err != nil || shape.Fingerprint {
		return shape, err
	}
	return Shape{}, &store.SchemaError{
		Table: s.tables.In(s.tables.ProcessedMessages), Cause: "it has no column fingerprint, which fingerprints need",
		Mend: "run `sekali migrate up`, or add it", SQL: s.texts.AddFingerprint,
	}
}

// probeTimeout bounds the wait for a second connection.
const probeTimeout = 2 * time.Second

// checkShared is called while a connection whose database is in memory is in
// use. It asks a second one whether it sees the same database.
func (s *Store) checkShared(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	second, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("open a second connection to a database in memory: %w", err)
	}
	defer second.Close()
	_, err = s.dialect.Check(ctx, second, s.tables)
	var schema *store.SchemaError
	if errors.As(err, &schema) {
		return &store.SchemaError{
			Table: schema.Table, Cause: "it is in a database in memory, and each connection of the pool has another one",
			Mend: "call db.SetMaxOpenConns(1), or use a file",
		}
	}
	return err
}
