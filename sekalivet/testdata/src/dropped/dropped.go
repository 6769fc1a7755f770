// Package dropped is about errors that do not reach Sekali.
package dropped

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
)

type shop struct{ log *slog.Logger }

func (s *shop) handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)        // want `tx\.ExecContext drops the error of a statement`
	_, _ = tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`) // want `tx\.ExecContext drops`
	var n int
	tx.QueryRowContext(ctx, `SELECT quantity FROM stock`).Scan(&n) // want `…\.Scan drops`
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`); err != nil { // want `tx\.ExecContext drops`
		s.log.Error("no stock", "err", err)
	}
	if err := save(ctx, tx); err != nil { // want `save drops`
		log.Println(err)
		return nil
	}
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`) // want `tx\.ExecContext drops`
	_, err = tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	if err != nil {
		return err
	}
	helper(ctx, tx)
	return nil
}

func helper(ctx context.Context, tx *sql.Tx) {
	save(ctx, tx) // want `save, called through helper, drops`
}

func save(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	return err
}

func (s *shop) rows(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	rows, err := tx.Query(ctx, `SELECT sku FROM stock`) // want `rows\.Next without rows\.Err drops`
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var sku string
		if err := rows.Scan(&sku); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `UPDATE stock SET quantity = 0`) // want `tx\.Exec drops`
	return nil
}

// Right: every error is returned, or is one that the handler expects.
func (s *shop) right(ctx context.Context, tx *sql.Tx, m *sekali.Message) (err error) {
	var n int
	err = tx.QueryRowContext(ctx, `SELECT quantity FROM stock`).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		s.log.Error("no stock", "err", err)
		return err
	}
	result, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	if err != nil {
		return err
	}
	changed, _ := result.RowsAffected()
	s.log.Info("done", "changed", changed)
	rows, err := tx.QueryContext(ctx, `SELECT sku FROM stock`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&n); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var errs []error
	for range 3 {
		if err := save(ctx, tx); err != nil {
			errs = append(errs, err)
		}
	}
	if err := save(ctx, tx); err != nil {
		if n > 0 {
			return nil // somebody thought of it
		}
		return err
	}
	o, err := load(ctx, tx)
	if err != nil {
		return err
	}
	o.check()
	return errors.Join(errs...)
}

type order struct{ sku string }

func (o *order) check() error { return nil }

func load(ctx context.Context, tx *sql.Tx) (*order, error) {
	var o order
	err := tx.QueryRowContext(ctx, `SELECT sku FROM orders`).Scan(&o.sku)
	return &o, err
}

func (s *shop) collected(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	rows, err := tx.Query(ctx, `SELECT sku FROM stock`)
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// A savepoint catches an error.
func (s *shop) savepoint(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, `UPDATE stock SET quantity = 0`); err != nil {
		s.log.Warn("not this time", "err", err)
		return inner.Rollback(ctx)
	}
	return inner.Commit(ctx)
}

func (s *shop) recovered(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	defer func() {
		if p := recover(); p != nil { // want `recover in the message's transaction makes a panic a success`
			s.log.Error("panic", "p", p)
		}
	}()
	return save(ctx, tx)
}

// Right: it is a failure all the same.
func (s *shop) told(ctx context.Context, tx *sql.Tx, m *sekali.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("panic")
		}
	}()
	return save(ctx, tx)
}

func (s *shop) goesOn(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic", "p", p)
			panic(p)
		}
	}()
	return save(ctx, tx)
}

// Right: what became of it is told later, or it is tried in another way.
func (s *shop) later(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	if err != nil {
		s.log.Error("no stock", "err", err)
	}
	return err
}

func (s *shop) again(ctx context.Context, tx *sql.Tx, m *sekali.Message) (err error) {
	if first := save(ctx, tx); first != nil {
		err = save(ctx, tx)
	}
	return err
}

func (s *shop) without(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, `UPDATE stock SET quantity = 0`); err != nil {
		s.log.Warn("not this time", "err", err)
		return nil
	}
	return inner.Commit(ctx)
}
