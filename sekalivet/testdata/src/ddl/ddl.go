// Package ddl is about changes of the schema in the message's transaction.
package ddl

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/store/pgxstore"
)

const table = `
	-- one table a month
	CREATE TABLE IF NOT EXISTS shipments_%s (id TEXT)`

func handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(table, m.Topic)); err != nil { // want `CREATE TABLE in the message's transaction`
		return err
	}
	query := "truncate " + m.Topic
	_, err := tx.ExecContext(ctx, query) // want `TRUNCATE in the message's transaction`
	return err
}

var pipelined = pgxstore.Pipelined(func(b *pgx.Batch, m *sekali.Message) error {
	b.Queue(`DROP INDEX by_sku`) // want `DROP INDEX in the message's transaction`
	b.Queue(`UPDATE stock SET quantity = 0`)
	return nil
})

// Right: a temporary table is no DDL that commits, and data may say CREATE.
func right(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if _, err := tx.ExecContext(ctx, `CREATE TEMPORARY TABLE batch (id TEXT)`); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO log (what) VALUES ('CREATE TABLE')`)
	return err
}

func migrate(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE shipments (id TEXT)`)
	return err
}
