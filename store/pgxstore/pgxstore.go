// Package pgxstore is the store for PostgreSQL 14 or newer through pgx: its
// transactions are pgx.Tx.
//
//	stock := sekali.NewInbox(pgxstore.New(pool), "stock-service")
//
// A message costs three round trips and one for each statement of the handler
// beyond the first: BEGIN and the claim travel together, and so do COMMIT and
// the proof that the transaction is still the one that holds the claim. It
// works with every query mode of pgx, so behind PgBouncer in transaction mode
// as well (QueryExecModeExec or QueryExecModeSimpleProtocol).
package pgxstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

var _ store.Store[pgx.Tx] = (*Store)(nil)

// Store keeps processed_messages in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool          *pgxpool.Pool
	tables        store.Tables
	invalid       error // of the options; told by the first call
	sql           pgsql.Statements
	commitTimeout time.Duration
	shape         atomic.Pointer[pgsql.Shape] // nil until a check succeeded
	marked        atomic.Bool                 // pruning_marks is there
}

// Option changes what New makes.
type Option func(*Store)

// WithTables names the tables. Defaults to store.Tables{}: the default names,
// found by the connection's search_path. Invalid names are an error of the
// first call.
func WithTables(t store.Tables) Option {
	return func(s *Store) { s.tables = t }
}

// WithCommitTimeout bounds a COMMIT, which does not end with the caller's
// context. Defaults to store.DefaultCommitTimeout; 0 or less means the default.
// A COMMIT that takes longer has an unknown outcome and is run again.
func WithCommitTimeout(d time.Duration) Option {
	return func(s *Store) { s.commitTimeout = d }
}

// New returns a store on pool, which the caller made and will close. It does
// no I/O: the first call checks the schema. The pool must lead to the primary.
func New(pool *pgxpool.Pool, opts ...Option) *Store {
	s := &Store{pool: pool}
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
	s.sql = pgsql.New(s.tables)
	return s
}

// querier is what both a connection and a transaction can do.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check implements store.Store.
func (s *Store) Check(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	conn, err := s.acquire(ctx, "check the schema")
	if err != nil {
		return err
	}
	defer conn.Release()
	s.shape.Store(nil)
	if _, err := s.checked(ctx, conn.Conn()); err != nil {
		return s.failed(ctx, "check the schema", conn.Conn(), err)
	}
	return nil
}

// checked returns the shape of the table, which it looks up through q the
// first time and again after a failure. In a user's transaction q is that
// transaction: with a pool of one, another connection would never come.
func (s *Store) checked(ctx context.Context, q querier) (pgsql.Shape, error) {
	if known := s.shape.Load(); known != nil {
		return *known, nil
	}
	shape, err := s.sql.Check(ctx, func(ctx context.Context, sql string, args ...any) pgsql.Row {
		return q.QueryRow(ctx, sql, args...)
	})
	if err != nil {
		return pgsql.Shape{}, err
	}
	s.shape.Store(&shape)
	return shape, nil
}

// shapeFor is checked for a claim that may have fingerprints. Where it misses
// their column it looks again: somebody may have migrated.
func (s *Store) shapeFor(ctx context.Context, q querier, plan *pgsql.Plan) (pgsql.Shape, error) {
	shape, err := s.checked(ctx, q)
	if err != nil || shape.Fingerprint || !plan.HasFingerprints() {
		return shape, err
	}
	s.shape.Store(nil)
	if shape, err = s.checked(ctx, q); err == nil && !shape.Fingerprint {
		err = s.sql.NoFingerprint()
	}
	return shape, err
}

// Seen implements store.Store. A server that turns out to be a replica is an
// error of ClassUnavailable: it may not know yet what the primary knows.
func (s *Store) Seen(ctx context.Context, c store.Claim) ([]store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	doing := fmt.Sprintf("look for keys of consumer %q", c.Consumer)
	conn, err := s.acquire(ctx, doing)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	states, err := s.seen(ctx, conn.Conn(), pgsql.NewPlan(c))
	if err != nil {
		return nil, s.failed(ctx, doing, conn.Conn(), err)
	}
	return states, nil
}

func (s *Store) seen(ctx context.Context, q querier, plan *pgsql.Plan) ([]store.State, error) {
	shape, err := s.shapeFor(ctx, q, plan)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, s.sql.Seen(shape), plan.Consumer, plan.All())
	if err != nil {
		return nil, err
	}
	var stored string
	var fingerprint *string
	var there, replica bool
	_, err = pgx.ForEachRow(rows, []any{&stored, &there, &fingerprint, &replica}, func() error {
		switch {
		case replica:
			return fmt.Errorf("%w: the server is a read replica; connect to the primary", store.ErrUnavailable)
		case there:
			return plan.Found(stored, fingerprint)
		}
		return plan.Fresh(stored)
	})
	return plan.States(), err
}

func (s *Store) validate(c store.Claim) error {
	if s.invalid != nil {
		return s.invalid
	}
	return c.Validate()
}

// Classify implements store.Store.
func (s *Store) Classify(err error) store.Class { return classify(err) }
