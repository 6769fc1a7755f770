// Command databasesql keeps the points of a shop's customers. SQLite through
// database/sql; another database needs another driver, another dialect and its
// own placeholders.
//
//	DATABASE_URL=points.db NATS_URL=nats://… go run ./databasesql
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	_ "modernc.org/sqlite"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/examples/services/internal/service"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

const schema = `CREATE TABLE IF NOT EXISTS points (customer TEXT PRIMARY KEY, points INTEGER NOT NULL)`

func main() {
	service.Main(func(ctx context.Context, file string) error {
		db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)")
		if err != nil {
			return err
		}
		defer db.Close()
		if _, err := migrate.Up(ctx, db, migrate.SQLite); err != nil {
			return err
		}
		if _, err := db.ExecContext(ctx, schema); err != nil {
			return err
		}
		return service.Consume(ctx, "PURCHASES", newConsumer(db))
	})
}

func newConsumer(db *sql.DB) sekali.Config[*sql.Tx] {
	return sekali.Config[*sql.Tx]{
		Name:   "points-service",
		Store:  sqlstore.New(db, sqlite.Dialect),
		Key:    sekali.FirstOf(sekali.Header("idempotency-key"), sekali.JSON("/event_id")),
		Handle: addPoints,
	}
}

func addPoints(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	var purchase struct {
		Customer string `json:"customer"`
		Cents    int    `json:"cents"`
	}
	if err := json.Unmarshal(m.Body, &purchase); err != nil {
		return sekali.Permanent(fmt.Errorf("read the purchase: %w", err))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO points (customer, points) VALUES (?, ?)
		ON CONFLICT (customer) DO UPDATE SET points = points + excluded.points`, purchase.Customer, purchase.Cents/100)
	return err
}
