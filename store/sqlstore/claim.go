package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/sekali/sekali/store"
)

// maxRounds is how often a claim is sent for keys that vanish between the
// claim and the look at their fingerprints.
const maxRounds = 3

// transaction is what the store remembers of a *sql.Tx from Begin.
type transaction struct {
	conn   *sql.Conn
	tx     *sql.Tx
	cancel context.CancelFunc // ends what BEGIN was given as context
	keys   *Keys
	shape  Shape
	mark   string
	prove  string   // the statement; empty if nothing was fresh
	left   bool     // to a COMMIT or ROLLBACK that does not return
	after  []func() // its commit
}

// Begin implements store.Store. The transaction has the isolation level that
// is the session's default.
//
// The context of BEGIN is not the caller's, for database/sql rolls a
// transaction back when that ends; but while BEGIN itself waits, the caller's
// cancellation reaches it.
func (s *Store) Begin(ctx context.Context, c store.Claim) (*sql.Tx, []store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, nil, err
	}
	doing := fmt.Sprintf("claim keys for consumer %q", c.Consumer)
	for try := 1; ; try++ {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return nil, nil, unreachable(ctx, doing, err)
		}
		t := &transaction{conn: conn, keys: newKeys(c)}
		if err = s.begin(ctx, t, c.Force); err == nil {
			s.open.Store(t.tx, t)
			return t.tx, t.keys.states, nil
		}
		// Nothing was claimed on a connection on which not even BEGIN worked.
		if t.tx == nil && try < maxConns && isStale(err) {
			_ = conn.Close() // broken, and closed already
			continue
		}
		s.abandon(ctx, t)
		err = s.failed(ctx, doing, conn, err)
		t.close()
		return nil, nil, err
	}
}

// isStale tells that a connection was dead before anything was sent.
func isStale(err error) bool { return errors.Is(err, driver.ErrBadConn) }

func (s *Store) begin(ctx context.Context, t *transaction, force bool) (err error) {
	// Before BEGIN: on SQLite a read first would make the claim an upgrade.
	if t.shape, err = s.shapeFor(ctx, t.conn, t.keys); err != nil {
		return err
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	if force {
		if err := s.remove(ctx, t.tx, t.keys.Consumer, t.keys.stored()); err != nil {
			return err
		}
	}
	if t.mark, err = s.settle(ctx, t.tx, t.shape, t.keys); err != nil {
		return err
	}
	if force && len(t.keys.Claimed()) < len(t.keys.keys) {
		return ErrUnsettled // a rival was faster; it is removed the next time
	}
	if len(t.keys.Claimed()) == 0 {
		return nil
	}
	protect, prove, err := s.dialect.Guard(t.mark)
	if err != nil {
		return err
	}
	t.prove = prove
	if protect != "" {
		_, err = t.tx.ExecContext(ctx, protect)
	}
	return err
}

// begin runs BEGIN.
func (t *transaction) begin(ctx context.Context) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := t.conn.BeginTx(own, nil)
	if !stop() && err == nil {
		// The cancellation came in between, so database/sql rolls back.
		_ = tx.Rollback()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return err
	}
	t.tx, t.cancel = tx, cancel
	return nil
}

// abandon ends a transaction whose claim failed.
func (s *Store) abandon(ctx context.Context, t *transaction) {
	if t.tx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
	defer cancel()
	if err := t.end(ctx, t.tx.Rollback); err != nil && !errors.Is(err, sql.ErrTxDone) {
		s.clean(ctx, t) // there is an error to return already
	}
}

// Claim implements store.Store. The claim stands and falls with the caller's
// transaction; whether the caller commits what it claimed in, nobody checks.
func (s *Store) Claim(ctx context.Context, tx *sql.Tx, c store.Claim) ([]store.State, error) {
	return s.ClaimWith(ctx, tx, c)
}

// ClaimWith is Claim for whatever carries the caller's transaction: *sql.Conn,
// the ConnPool of a GORM transaction, and so on.
func (s *Store) ClaimWith(ctx context.Context, q Querier, c store.Claim) ([]store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	k := newKeys(c)
	shape, err := s.shapeFor(ctx, q, k)
	if err == nil {
		_, err = s.settle(ctx, q, shape, k)
	}
	if err != nil {
		return nil, s.failed(ctx, fmt.Sprintf("claim keys for consumer %q", c.Consumer), q, err)
	}
	return k.states, nil
}

// settle finds the state of every key. Fingerprints of keys that were there
// are read with a lock and after the claim: what the claim waited for is
// committed only now. A row that is gone by then is claimed again.
func (s *Store) settle(ctx context.Context, q Querier, shape Shape, k *Keys) (mark string, err error) {
	for range maxRounds {
		m, err := s.dialect.Claim(ctx, q, s.tables, shape, k)
		if err != nil {
			return "", err
		}
		if m != "" {
			mark = m
		}
		k.settleAll(store.Duplicate, func(key Key) bool { return key.Fingerprint == nil })
		if !k.more() {
			return mark, nil
		}
		if err := s.dialect.Read(ctx, q, s.tables, shape, k, true); err != nil {
			return "", err
		}
		if !k.more() {
			return mark, nil
		}
	}
	return "", ErrUnsettled
}
