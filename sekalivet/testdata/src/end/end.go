// Package end is about ending the message's transaction.
package end

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
)

func handle(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	defer tx.Rollback(ctx) // want `tx\.Rollback ends the message's transaction`
	if len(m.Body) == 0 {
		_ = tx.Rollback(ctx) // want `tx\.Rollback ends`
		return nil
	}
	if len(m.Body) == 1 {
		return finish(ctx, tx)
	}
	return tx.Commit(ctx) // want `tx\.Commit ends`
}

func finish(ctx context.Context, t pgx.Tx) error {
	return t.Commit(ctx) // want `t\.Commit, called through finish, ends`
}

func bySQL(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if _, err := tx.ExecContext(ctx, `COMMIT`); err != nil { // want `COMMIT ends`
		return err
	}
	if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT before`); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "start transaction") // want `START TRANSACTION ends`
	return err
}

// Right: a savepoint is the handler's own.
func savepoint(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := inner.Exec(ctx, `UPDATE stock SET quantity = 0`); err != nil {
		return inner.Rollback(ctx)
	}
	return inner.Commit(ctx)
}

// It is no handler, and may end its own.
func own(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	return finish(ctx, tx)
}
