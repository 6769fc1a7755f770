package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// lookElsewhere bounds the look through another connection after the
// transaction's own was lost. It is short: the database may be down, and the
// look finds something only if the handler committed by itself.
const lookElsewhere = 2 * time.Second

// Commit implements store.Store: one round trip.
//
// "Committed here, but the wait for the standby was cancelled" is
// ErrCommitUnknown: who asked for two copies has one. Running the whole again
// finds the key, so the answer is then Duplicate.
func (s *Store) Commit(ctx context.Context, tx pgx.Tx) error {
	t, err := own(tx)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if !t.over.CompareAndSwap(false, true) {
		return fmt.Errorf("commit: %w", pgx.ErrTxClosed)
	}
	doing := fmt.Sprintf("commit the claim of consumer %q", t.plan.Consumer)
	err = s.commit(ctx, t)
	if err == nil {
		t.giveBack()
		for _, f := range t.after {
			f()
		}
		return nil
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if errors.Is(err, store.ErrCommitUnknown) {
		t.giveBack()
		return err
	}
	// Only a transaction that is not the one that we began can have left the
	// claim behind: COMMIT was never sent, or the server said that it failed.
	doubt := errors.Is(err, store.ErrTransactionLost) || t.raw.IsClosed()
	if undone := s.undo(ctx, t, doubt); errors.Is(undone, store.ErrKeySurvived) {
		return fmt.Errorf("%w: %w", err, undone)
	}
	return err
}

// commit sends guard and COMMIT if the transaction looks as it should from
// here.
func (s *Store) commit(ctx context.Context, t *transaction) error {
	conn := t.raw.PgConn()
	switch {
	case conn.IsClosed():
		return fmt.Errorf("%w: the connection was lost before COMMIT, so that nothing is committed", store.ErrUnavailable)
	case conn.IsBusy():
		return errUnread
	case conn.TxStatus() == 'I':
		return fmt.Errorf("%w: the handler ended it by itself", store.ErrTransactionLost)
	case conn.TxStatus() == 'E':
		return fmt.Errorf("%w: the handler ignored the error of a statement, after which the server can only roll back",
			store.ErrTransactionLost)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.commitTimeout)
	defer cancel()
	question, err := commitOf(ctx, t)
	if err != nil {
		return err
	}
	return sendCommit(ctx, t.raw, question)
}

// errUnread is the error of a handler that returned before it had read a
// result to its end.
var errUnread = errors.New("the handler left a result unread, so that nothing is committed: close the rows or the batch before it returns")

// Rollback implements store.Store. After a handler that failed it costs two
// round trips, the second for the look whether the claim outlived it.
func (s *Store) Rollback(ctx context.Context, tx pgx.Tx) error {
	t, err := own(tx)
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	if !t.over.CompareAndSwap(false, true) {
		return nil
	}
	return s.undo(ctx, t, true)
}

// undo rolls back, gives the connection back and, if there is doubt, looks
// whether the claim is there all the same.
func (s *Store) undo(ctx context.Context, t *transaction, doubt bool) error {
	doing := fmt.Sprintf("roll back the claim of consumer %q", t.plan.Consumer)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
	defer cancel()
	lost := t.raw.IsClosed()
	if t.raw.PgConn().IsBusy() {
		_ = t.raw.Close(ctx) // a result was left unread; the server rolls back
	}
	if !t.raw.IsClosed() && t.raw.PgConn().TxStatus() != 'I' {
		if _, err := t.raw.Exec(ctx, "ROLLBACK"); err != nil {
			lost = true
			_ = t.raw.Close(ctx)
		}
	}
	if lost {
		t.giveBack()
		return s.lookElsewhere(ctx, t, doing, doubt)
	}
	defer t.giveBack()
	if t.raw.IsClosed() || !doubt {
		return nil
	}
	if err := s.look(ctx, t, t.raw); err != nil {
		return s.failed(ctx, doing, t.raw, err)
	}
	return nil
}

// lookElsewhere looks through the pool, as far as it goes: the connection is
// lost, which is what the caller must know in any case.
func (s *Store) lookElsewhere(ctx context.Context, t *transaction, doing string, doubt bool) error {
	lost := fmt.Errorf("%s: %w: the connection was lost, so that the server rolls back", doing, store.ErrUnavailable)
	if !doubt || t.xid == "" {
		return lost
	}
	ctx, cancel := context.WithTimeout(ctx, lookElsewhere)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return lost
	}
	defer conn.Release()
	if err := s.look(ctx, t, conn.Conn()); errors.Is(err, store.ErrKeySurvived) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return lost
}

// look returns an error that wraps store.ErrKeySurvived if a row of the claim
// that this very transaction wrote is there.
func (s *Store) look(ctx context.Context, t *transaction, q querier) error {
	if t.xid == "" {
		return nil
	}
	xmin, err := pgsql.Xmin(t.xid)
	if err != nil {
		return err
	}
	var survived bool
	if err := q.QueryRow(ctx, s.sql.Survived(), t.plan.Consumer, t.plan.All(), xmin).Scan(&survived); err != nil {
		return fmt.Errorf("look whether the claim outlived it: %w", err)
	}
	if survived {
		return fmt.Errorf("%w: the handler committed by itself", store.ErrKeySurvived)
	}
	return nil
}

// own returns the transaction if it is one from Begin.
func own(tx pgx.Tx) (*transaction, error) {
	if t, ok := tx.(*transaction); ok {
		return t, nil
	}
	return nil, fmt.Errorf("a %T is not a transaction from Begin: who began it ends it", tx)
}
