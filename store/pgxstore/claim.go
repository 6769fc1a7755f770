package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// maxRounds is how often a claim is sent for keys that vanish between the
// claim and the look at their fingerprints.
const maxRounds = 3

// Begin implements store.Store. The transaction has the isolation level that
// is the session's default; above READ COMMITTED a claim that waited for a
// rival may fail with an error of ClassConflict instead of a Duplicate, and
// the next Begin finds it.
//
// The handler may use the transaction for everything but its end: see
// ErrStoreEnds.
func (s *Store) Begin(ctx context.Context, c store.Claim) (pgx.Tx, []store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, nil, err
	}
	doing := fmt.Sprintf("claim keys for consumer %q", c.Consumer)
	conn, err := s.acquire(ctx, doing)
	if err != nil {
		return nil, nil, err
	}
	t, states, err := s.begin(ctx, conn, pgsql.NewPlan(c), c.Force)
	if err != nil {
		err = s.failed(ctx, doing, conn.Conn(), err)
		abandon(ctx, conn)
		return nil, nil, err
	}
	return t, states, nil
}

func (s *Store) begin(
	ctx context.Context, conn *pgxpool.Conn, plan *pgsql.Plan, force bool,
) (*transaction, []store.State, error) {
	shape, err := s.shapeFor(ctx, conn.Conn(), plan)
	if err != nil {
		return nil, nil, err
	}
	var inner pgx.Tx
	xid, err := s.settle(ctx, shape, plan, conn, func(sql string, args []any) (xid string, err error) {
		var before []any
		if force {
			before = []any{s.unclaimSQL(), plan.Consumer, plan.All()}
		}
		inner, xid, err = beginWith(ctx, conn.Conn(), plan, before, sql, args)
		return xid, err
	})
	if err != nil {
		return nil, nil, err
	}
	if force && !plan.AllFresh() {
		return nil, nil, errVanishing // a rival was faster; it is removed the next time
	}
	return newTransaction(conn, inner, plan, xid), plan.States(), nil
}

// beginWith sends BEGIN and the claim in one round trip, and between them, if
// there is one, a statement with its arguments.
func beginWith(
	ctx context.Context, conn *pgx.Conn, plan *pgsql.Plan, before []any, sql string, args []any,
) (pgx.Tx, string, error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	if len(before) > 0 {
		batch.Queue(before[0].(string), before[1:]...)
	}
	batch.Queue(sql, args...)
	results := conn.SendBatch(ctx, &batch)
	_, err := results.Exec()
	if err == nil && len(before) > 0 {
		_, err = results.Exec()
	}
	xid := ""
	if err == nil {
		rows, queryErr := results.Query()
		if err = queryErr; err == nil {
			xid, err = readClaim(rows, plan)
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return results.Tx(), xid, err
}

// Claim implements store.Store. The claim stands and falls with the caller's
// transaction; what the guard of Commit finds out is here the caller's
// business.
func (s *Store) Claim(ctx context.Context, tx pgx.Tx, c store.Claim) ([]store.State, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	plan := pgsql.NewPlan(c)
	if err := s.claim(ctx, tx, plan); err != nil {
		return nil, s.failed(ctx, fmt.Sprintf("claim keys for consumer %q", c.Consumer), tx.Conn(), err)
	}
	return plan.States(), nil
}

func (s *Store) claim(ctx context.Context, tx pgx.Tx, plan *pgsql.Plan) error {
	shape, err := s.shapeFor(ctx, tx, plan)
	if err != nil {
		return err
	}
	_, err = s.settle(ctx, shape, plan, tx, func(sql string, args []any) (string, error) {
		return claimWith(ctx, tx, plan, sql, args)
	})
	return err
}

func claimWith(ctx context.Context, q querier, plan *pgsql.Plan, sql string, args []any) (string, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return "", err
	}
	return readClaim(rows, plan)
}

func readClaim(rows pgx.Rows, plan *pgsql.Plan) (string, error) {
	var stored, xid string
	_, err := pgx.ForEachRow(rows, []any{&stored, &xid}, func() error { return plan.Fresh(stored) })
	return xid, err
}

// settle finds the state of every key of plan. It sends the first claim by
// way of first, and everything else through q, which must by then be inside
// the transaction. It returns the transaction's id, empty if no key was fresh.
func (s *Store) settle(
	ctx context.Context, shape pgsql.Shape, plan *pgsql.Plan, q querier,
	first func(sql string, args []any) (string, error),
) (string, error) {
	send, xid := first, ""
	for range maxRounds {
		id, err := send(s.claimSQL(shape, plan))
		if err != nil {
			return "", err
		}
		if id != "" {
			xid = id
		}
		more, err := s.compare(ctx, plan, q)
		if err != nil || !more {
			return xid, err
		}
		send = func(sql string, args []any) (string, error) { return claimWith(ctx, q, plan, sql, args) }
	}
	return "", errVanishing
}

// claimSQL returns the statement that claims what is pending.
func (s *Store) claimSQL(shape pgsql.Shape, plan *pgsql.Plan) (sql string, args []any) {
	fingerprints := plan.HasFingerprints()
	if key, print, one := plan.One(); one {
		args = []any{plan.Consumer, key}
		if fingerprints {
			args = append(args, print)
		}
		return s.sql.ClaimOne(shape, fingerprints), args
	}
	keys, prints, _ := plan.Pending()
	args = []any{plan.Consumer, keys}
	if fingerprints {
		args = append(args, prints)
	}
	return s.sql.Claim(shape, fingerprints), args
}

// compare settles the keys that were there. Their fingerprints are read with a
// lock and after the claim: what the claim waited for is committed only now.
// more tells that rows have vanished since and their keys are to be claimed
// again.
func (s *Store) compare(ctx context.Context, plan *pgsql.Plan, q querier) (more bool, err error) {
	plan.Duplicates()
	keys, _, more := plan.Pending()
	if !more {
		return false, nil
	}
	rows, err := q.Query(ctx, s.sql.Fingerprints(), plan.Consumer, keys)
	if err != nil {
		return false, err
	}
	var stored string
	var fingerprint *string
	_, err = pgx.ForEachRow(rows, []any{&stored, &fingerprint}, func() error {
		return plan.Found(stored, fingerprint)
	})
	_, _, more = plan.Pending()
	return more, err
}

// abandon gives a connection back after a Begin that failed. The pool closes
// it if the transaction cannot be ended in time.
func abandon(ctx context.Context, conn *pgxpool.Conn) {
	defer conn.Release()
	c := conn.Conn()
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
	defer cancel()
	if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
		_ = c.Close(ctx) // there is an error to return already
	}
}
