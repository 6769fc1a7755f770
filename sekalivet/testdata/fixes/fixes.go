// Package fixes has what can be mended by itself, and what only looks so.
package fixes

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
)

type shop struct {
	db   *sql.DB
	pool *pgxpool.Pool
}

func (s *shop) sell(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	defer tx. // want `ends the message's transaction`
			Rollback()
	if _, err := s.db.ExecContext(ctx, `UPDATE stock SET quantity = 0`); err != nil { // want `is not part of the message's transaction`
		return err
	}
	tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`) // want `drops the error`
	save(ctx, tx)                                        // want `drops the error`
	if len(m.Body) == 0 {
		tx.Commit() // want `ends the message's transaction`
		return nil
	}
	return tx.Commit() // want `ends the message's transaction`
}

func save(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	return err
}

func (s *shop) pgx(ctx context.Context, t pgx.Tx, m *sekali.Message) error {
	_, err := s.pool.Exec(ctx, `UPDATE stock SET quantity = 0`) // want `is not part of the message's transaction`
	return err
}

// No fix: what is to happen instead, only the author knows.
func (s *shop) unsure(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if len(m.Body) == 0 {
		_ = tx.Rollback() // want `ends the message's transaction`
		return nil
	}
	own, err := s.db.BeginTx(ctx, nil) // want `is not part of the message's transaction`
	if err != nil {
		return err
	}
	{
		tx := own
		if _, err := s.db.Exec(`UPDATE stock SET quantity = 0`); err != nil { // want `is not part of the message's transaction`
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	count := func() (int, error) {
		tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`) // want `drops the error`
		return 1, nil
	}
	_, err = count()
	return err
}
