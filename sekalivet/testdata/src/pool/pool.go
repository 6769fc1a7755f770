// Package pool is about statements beside the message's transaction.
package pool

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
)

var db *sql.DB

type shop struct {
	pool  *pgxpool.Pool
	db    *sql.DB
	stock *queries
	taken *sql.Stmt
}

func (s *shop) handle(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	if _, err := s.pool.Exec(ctx, `UPDATE stock SET quantity = 0`); err != nil { // want `s\.pool\.Exec is not part of the message's transaction`
		return err
	}
	own, err := s.pool.Begin(ctx) // want `s\.pool\.Begin is not part`
	if err != nil {
		return err
	}
	_, err = own.Exec(ctx, `UPDATE stock SET quantity = 0`)
	return err
}

func (s *shop) sqlHandle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if err := note(ctx, s.db); err != nil { // want `s\.db given to note is not part`
		return err
	}
	if _, err := db.ExecContext(ctx, `INSERT INTO seen VALUES (1)`); err != nil { // want `db\.ExecContext is not part`
		return err
	}
	if _, err := s.taken.ExecContext(ctx); err != nil { // want `s\.taken\.ExecContext is not part`
		return err
	}
	if err := s.stock.take(ctx); err != nil { // want `s\.stock\.take is not part`
		return err
	}
	return s.helper(ctx)
}

func (s *shop) helper(ctx context.Context) error {
	return s.db.QueryRowContext(ctx, `SELECT 1`).Err() // want `s\.db\.QueryRowContext, called through shop\.helper, is not part`
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func note(ctx context.Context, to execer) error {
	_, err := to.ExecContext(ctx, `INSERT INTO seen VALUES (1)`)
	return err
}

// queries is what sqlc makes.
type queries struct{ on execer }

func (q *queries) WithTx(tx *sql.Tx) *queries { return &queries{tx} }

func (q *queries) take(ctx context.Context) error { return note(ctx, q.on) }

// Right: all of it goes through the transaction.
func (s *shop) right(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if err := note(ctx, tx); err != nil {
		return err
	}
	q := s.stock.WithTx(tx)
	if err := q.take(ctx); err != nil {
		return err
	}
	if err := s.stock.WithTx(tx).take(ctx); err != nil {
		return err
	}
	_, err := tx.StmtContext(ctx, s.taken).ExecContext(ctx)
	return err
}

func (s *shop) rightPgx(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	var exec func(context.Context, string, ...any) (pgconn.CommandTag, error) = tx.Exec
	if _, err := exec(ctx, `UPDATE stock SET quantity = 0`); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
		_, err := tx.Exec(ctx, `UPDATE stock SET quantity = 0`)
		return err
	})
}

// The pool is for what is no handler.
func (s *shop) report(ctx context.Context) error { return note(ctx, s.db) }
