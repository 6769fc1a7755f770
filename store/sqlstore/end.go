package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// lookElsewhere bounds the look through another connection after the
// transaction's own was lost. It is short: the database may be down, and the
// look finds something only if the handler committed by itself.
const lookElsewhere = 2 * time.Second

// Commit implements store.Store.
//
// Through database/sql PostgreSQL's warning that a commit is durable on the
// primary alone cannot be seen: who has synchronous standbys uses pgxstore.
func (s *Store) Commit(ctx context.Context, tx *sql.Tx) error {
	t, ok := s.take(tx)
	if !ok {
		return fmt.Errorf("commit: the transaction is not one from Begin, or is over: %w", sql.ErrTxDone)
	}
	defer t.close()
	doing := fmt.Sprintf("commit the claim of consumer %q", t.keys.Consumer)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.commitTimeout)
	defer cancel()
	if err := s.proveOurs(ctx, t); err != nil {
		undone := s.undo(ctx, t, err)
		switch {
		case errors.Is(undone, store.ErrKeySurvived):
			return fmt.Errorf("%s: %w: %w", doing, err, undone)
		case undone != nil && errors.Is(err, errUnread):
			// The rows are closed by now, so it is the connection that was.
			return fmt.Errorf("%s: %w", doing, undone)
		case undone == nil && errors.Is(err, driver.ErrBadConn):
			// The connection lives; what kept it from taking a statement was
			// closed before ROLLBACK.
			return fmt.Errorf("%s: %w", doing, errUnread)
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := s.sendCommit(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	for _, f := range t.after {
		f()
	}
	return nil
}

// Rollback implements store.Store.
func (s *Store) Rollback(ctx context.Context, tx *sql.Tx) error {
	t, ok := s.take(tx)
	if !ok {
		return nil
	}
	defer t.close()
	proving, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
	defer cancel()
	err := s.proveOurs(proving, t)
	if err = s.undo(ctx, t, err); err != nil {
		return fmt.Errorf("roll back the claim of consumer %q: %w", t.keys.Consumer, err)
	}
	return nil
}

// take returns what is known of a transaction from Begin, once.
func (s *Store) take(tx *sql.Tx) (*transaction, bool) {
	found, ok := s.open.LoadAndDelete(tx)
	if !ok {
		return nil, false
	}
	return found.(*transaction), true
}

// close gives the connection back, unless it was discarded. It must not touch
// one that was left to a driver that does not return: it would wait for it.
func (t *transaction) close() {
	if t.cancel != nil {
		t.cancel()
	}
	if !t.left {
		_ = t.conn.Close() // what can fail here is only closing it twice
	}
}

// proveOurs returns nil if the transaction is still the one that claimed the
// keys, and an error that wraps store.ErrTransactionLost if it is not.
//
// It goes through tx, never through conn: database/sql waits for ever if a
// connection breaks under conn while a transaction is open on it.
func (s *Store) proveOurs(ctx context.Context, t *transaction) error {
	if t.prove == "" {
		return nil // nothing was claimed that could be lost
	}
	if s.hasUnread(t) {
		return errUnread
	}
	_, err := t.tx.ExecContext(ctx, t.prove)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: the handler ended it by itself", store.ErrTransactionLost)
	case s.dialect.Kind(err) == KindLost:
		return fmt.Errorf("%w: the handler ended it, or ignored an error after which the server did: %w",
			store.ErrTransactionLost, err)
	case s.dialect.Kind(err) != KindNone:
		return err
	case ctx.Err() != nil, isTransport(err):
		return fmt.Errorf("%w: the connection was lost before COMMIT, so that nothing is committed: %w",
			store.ErrUnavailable, err)
	}
	return err
}

// hasUnread asks the dialect, if it can tell, for results that were not read
// to their end.
func (s *Store) hasUnread(t *transaction) bool {
	d, ok := s.dialect.(interface{ Unread(driverConn any) bool })
	unread := false
	if ok {
		_ = t.conn.Raw(func(c any) error { // its errors are met again soon
			unread = d.Unread(c)
			return nil
		})
	}
	return unread
}

// sendCommit sends COMMIT. tx.Commit knows no context: if the deadline passes
// first, its goroutine lives on until the driver gives up, and then discards
// the connection.
func (s *Store) sendCommit(ctx context.Context, t *transaction) error {
	err := t.end(ctx, t.tx.Commit)
	if err == nil {
		return nil
	}
	s.clean(ctx, t)
	if t.left {
		return fmt.Errorf("%w: no answer in time: %w", store.ErrCommitUnknown, err)
	}
	switch s.dialect.Kind(err) {
	case KindNone, KindUnavailable:
		return fmt.Errorf("%w: %w", store.ErrCommitUnknown, err)
	}
	return err // the server says that nothing is committed
}

// end runs tx.Commit or tx.Rollback and waits until ctx ends. Then the
// connection is taken out of use as soon as the driver lets go of it.
func (t *transaction) end(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	t.left = true
	t.cancel() // some drivers listen
	go func() {
		<-done
		t.discard()
	}()
	return ctx.Err()
}

// clean makes sure that no transaction is left open on a connection whose end
// failed: SQLite's COMMIT may fail and leave it open. If in doubt, the
// connection is closed, unless the database would go with it.
func (s *Store) clean(ctx context.Context, t *transaction) {
	if t.left {
		return
	}
	_, err := t.conn.ExecContext(ctx, "ROLLBACK")
	if err == nil || s.dialect.Kind(err) == KindLost || t.shape.Private {
		return // there is none, or no longer
	}
	t.discard()
}

func (t *transaction) discard() {
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
}

// undo rolls back. doubt is what proveOurs said: nil if the transaction is
// certainly ours, so that ROLLBACK undoes the claim. Otherwise it looks whether
// the claim is there all the same.
func (s *Store) undo(ctx context.Context, t *transaction, doubt error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
	defer cancel()
	err := t.end(ctx, t.tx.Rollback)
	if errors.Is(err, sql.ErrTxDone) || s.dialect.Kind(err) == KindLost {
		err = nil // it was over before
	}
	if err != nil && !t.left && !t.shape.Private {
		t.discard()
	}
	// Where the mark does not tell our row from a rival's, only a transaction
	// that could be asked may be blamed.
	if err != nil || t.mark == "" && errors.Is(doubt, store.ErrUnavailable) {
		return s.lookAfterLoss(ctx, t, doubt)
	}
	if doubt == nil {
		return nil
	}
	survived, err := s.survived(ctx, t, t.conn)
	if err != nil {
		return s.failed(ctx, "look whether the claim outlived it", t.conn, err)
	}
	if survived {
		return errSurvived
	}
	return nil
}

var errSurvived = fmt.Errorf("%w: the handler committed by itself", store.ErrKeySurvived)

// lookAfterLoss is for a connection that was lost: the server rolls back, at a
// time of its own. Only where the mark tells our row from a rival's is it of
// use to look, for by now a rival may have claimed the key.
func (s *Store) lookAfterLoss(ctx context.Context, t *transaction, doubt error) error {
	lost := fmt.Errorf("%w: the connection was lost, so that the server rolls back", store.ErrUnavailable)
	if doubt == nil || t.mark == "" || len(t.keys.Claimed()) == 0 {
		return lost
	}
	t.close() // a pool of one has no other
	ctx, cancel := context.WithTimeout(ctx, lookElsewhere)
	defer cancel()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return lost
	}
	defer conn.Close()
	if survived, err := s.survived(ctx, t, conn); err == nil && survived {
		return errSurvived
	}
	return lost
}

func (s *Store) survived(ctx context.Context, t *transaction, q Querier) (bool, error) {
	if len(t.keys.Claimed()) == 0 {
		return false, nil
	}
	return s.dialect.Survived(ctx, q, s.tables, t.shape, t.keys, t.mark)
}
