// Command bun keeps shipments and what happened to them. Bun on SQLite. The
// transaction is Sekali's; Bun works in it.
//
//	DATABASE_URL=shipments.db NATS_URL=nats://… go run ./bun
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/examples/services/internal/service"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// Shipment is where an order is.
type Shipment struct {
	bun.BaseModel `bun:"table:shipments"`

	Order string `bun:"order_id,pk"`
	State string
	Moves int
}

const schema = `CREATE TABLE IF NOT EXISTS shipments (order_id TEXT PRIMARY KEY, state TEXT NOT NULL, moves INTEGER NOT NULL)`

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
		return service.Consume(ctx, "SHIPMENTS", newConsumer(db))
	})
}

func newConsumer(db *sql.DB) sekali.Config[*sql.Tx] {
	orm := bun.NewDB(db, sqlitedialect.New())
	return sekali.Config[*sql.Tx]{
		Name:  "shipment-service",
		Store: sqlstore.New(db, sqlite.Dialect),
		Key:   sekali.Business(sekali.JSON("/order"), sekali.JSON("/state")),
		Handle: func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			return move(ctx, orm, tx, m)
		},
	}
}

// move builds its queries with orm, and each of them goes through tx: that is
// what Conn says. A query without it would go through the pool.
func move(ctx context.Context, orm *bun.DB, tx *sql.Tx, m *sekali.Message) error {
	var moved struct {
		Order string `json:"order"`
		State string `json:"state"`
	}
	if err := json.Unmarshal(m.Body, &moved); err != nil {
		return sekali.Permanent(fmt.Errorf("read the move: %w", err))
	}
	shipment := Shipment{Order: moved.Order, State: moved.State, Moves: 1}
	_, err := orm.NewInsert().Conn(tx).Model(&shipment).
		On("CONFLICT (order_id) DO UPDATE").Set("state = excluded.state").Set("moves = shipment.moves + 1").Exec(ctx)
	if err != nil {
		return fmt.Errorf("move order %s: %w", moved.Order, err)
	}
	return nil
}
