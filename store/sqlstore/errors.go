package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/sekali/sekali/store"
)

// ErrUnsettled is of ClassConflict: rows came and went so quickly that a claim
// could not find out which keys are there.
var ErrUnsettled = errors.New("keys of the claim kept changing while they were claimed")

// errUnread is the handler's fault, and so of ClassFailed.
var errUnread = errors.New("the handler left a result unread, so that nothing is committed: close the rows before it returns")

// Classify implements store.Store. A bare network error is ClassFailed, for it
// could come from a handler's own call to somebody else; the store's own
// operations wrap theirs with store.ErrUnavailable.
func (s *Store) Classify(err error) store.Class {
	var schema *store.SchemaError
	switch {
	case err == nil:
		return store.ClassFailed
	case errors.As(err, &schema):
		return store.ClassMisconfigured
	case errors.Is(err, ErrUnsettled):
		return store.ClassConflict
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return store.ClassUnavailable
	}
	switch s.dialect.Kind(err) {
	case KindConflict:
		return store.ClassConflict
	case KindUnavailable:
		return store.ClassUnavailable
	}
	return store.ClassFailed
}

// failed wraps the error of a statement of the store's own, and says by type
// whose fault it is. again is where the catalogue can be read once more.
func (s *Store) failed(ctx context.Context, doing string, again Querier, err error) error {
	var schema *store.SchemaError
	if errors.As(err, &schema) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	switch s.dialect.Kind(err) {
	case KindConflict, KindUnavailable:
		return fmt.Errorf("%s: %w", doing, err)
	case KindSchema:
		return fmt.Errorf("%s: %w", doing, s.unfit(ctx, again, err, true))
	case KindLost:
		return fmt.Errorf("%s: %w", doing, s.unfit(ctx, again, err, false))
	}
	switch {
	case ctx.Err() != nil:
		return ended(ctx, doing, err)
	case isTransport(err) && !errors.Is(err, store.ErrUnavailable):
		return fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// unfit looks at the table again after a statement failed as it would without
// it. If the catalogue cannot tell (the transaction is aborted), the code
// must do, where it is certain.
func (s *Store) unfit(ctx context.Context, again Querier, said error, certain bool) error {
	s.shape.Store(nil)
	var schema *store.SchemaError
	if _, err := s.dialect.Check(ctx, again, s.tables); errors.As(err, &schema) {
		schema.Err = said
		return schema
	}
	if !certain {
		return said
	}
	return &store.SchemaError{
		Table: s.tables.In(s.tables.ProcessedMessages), Cause: "it is missing or lacks a column", Err: said,
		Mend: "run `sekali migrate up`, or create it", SQL: s.texts.CreateTable,
	}
}

// unreachable wraps the error of a connection that the pool could not give.
func unreachable(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, doing, err)
	}
	return fmt.Errorf("%s: get a connection: %w: %w", doing, store.ErrUnavailable, err)
}

// ended wraps an error that came because ctx ended, so that the reason can be
// seen by errors.Is.
func ended(ctx context.Context, doing string, err error) error {
	if errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, ctx.Err(), err)
}

// isTransport tells whether the connection, and not the server, failed. Only
// errors of the store's own statements may be asked about.
func isTransport(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false // the latter is a net.Error as well
	}
	for _, lost := range []error{driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, lost) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network)
}
