package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// ErrStoreEnds is the error of Commit and Rollback on a transaction from
// Begin: the store ends it, after the handler has returned. The transaction
// goes on as if the call had not been made. To undo a part of the work, use
// tx.Begin, which makes a savepoint; to undo all of it, return an error. A
// handler that returns it fails for good: its message becomes a dead letter at
// once, for further attempts would do the same.
var ErrStoreEnds error = storeEnds{}

type storeEnds struct{}

func (storeEnds) Error() string {
	return "this transaction is not the handler's to end: Sekali commits it when the handler returns nil, and rolls it back when it returns an error"
}

func (storeEnds) Permanent() bool { return true }

// errVanishing is of ClassConflict.
var errVanishing = errors.New("keys of the claim kept vanishing while their fingerprints were read")

// classify adds to pgsql.Classify what only pgx knows. A bare network error is
// ClassFailed, for it could come from a handler's own call to somebody else;
// if it was this store's connection that broke, Rollback says so.
func classify(err error) store.Class {
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, errVanishing):
		return store.ClassConflict
	case errors.As(err, &connect):
		return store.ClassUnavailable
	}
	return pgsql.Classify(err)
}

// acquire gets a connection from the pool.
func (s *Store) acquire(ctx context.Context, doing string) (*pgxpool.Conn, error) {
	conn, err := s.pool.Acquire(ctx)
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, ended(ctx, doing, err)
	}
	return nil, fmt.Errorf("%s: get a connection: %w: %w", doing, store.ErrUnavailable, err)
}

// failed wraps the error of a statement of the store's own on conn, and says
// by type whose fault it is.
func (s *Store) failed(ctx context.Context, doing string, conn *pgx.Conn, err error) error {
	var schema *store.SchemaError
	switch {
	case errors.As(err, &schema):
		s.shape.Store(nil) // look again next time: somebody may mend it
		return fmt.Errorf("%s: %w", doing, err)
	case pgsql.IsSchema(err):
		s.shape.Store(nil)
		return fmt.Errorf("%s: %w", doing, s.sql.Unfit(err))
	case pgsql.State(err) != "" || errors.Is(err, store.ErrUnavailable):
		return fmt.Errorf("%s: %w", doing, err)
	case ctx.Err() != nil:
		return ended(ctx, doing, err)
	case conn.IsClosed():
		return fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// ended wraps an error that came because ctx ended, so that the reason can be
// seen by errors.Is.
func ended(ctx context.Context, doing string, err error) error {
	if errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, ctx.Err(), err)
}
