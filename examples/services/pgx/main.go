// Command pgx keeps the stock of a shop: an order that is paid takes its goods
// out of it. PostgreSQL through pgx.
//
//	DATABASE_URL=postgres://… NATS_URL=nats://… go run ./pgx
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/examples/services/internal/service"
	"github.com/sekali/sekali/store/pgxstore"
)

// schema is the business's; Sekali's tables come from sekali migrate up.
const schema = `CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL CHECK (quantity >= 0))`

func main() {
	service.Main(func(ctx context.Context, database string) error {
		pool, err := pgxpool.New(ctx, database)
		if err != nil {
			return err
		}
		defer pool.Close()
		if _, err := pool.Exec(ctx, schema); err != nil {
			return err
		}
		return service.Consume(ctx, "ORDERS", newConsumer(pool))
	})
}

func newConsumer(pool *pgxpool.Pool) sekali.Config[pgx.Tx] {
	return sekali.Config[pgx.Tx]{
		Name:   "stock-service",
		Store:  pgxstore.New(pool),
		Key:    sekali.Business(sekali.JSON("/order"), sekali.Literal("paid")),
		Handle: takeOutOfStock,
	}
}

type paidOrder struct {
	Order string `json:"order"`
	Lines []struct {
		SKU      string `json:"sku"`
		Quantity int    `json:"quantity"`
	} `json:"lines"`
}

var errSoldOut = errors.New("not enough in stock")

func takeOutOfStock(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	var o paidOrder
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return sekali.Permanent(fmt.Errorf("read the order: %w", err))
	}
	for _, line := range o.Lines {
		tag, err := tx.Exec(ctx, `UPDATE stock SET quantity = quantity - $1 WHERE sku = $2 AND quantity >= $1`, line.Quantity, line.SKU)
		if err != nil {
			return fmt.Errorf("take %s out of the stock: %w", line.SKU, err)
		}
		if tag.RowsAffected() == 0 {
			return sekali.Permanent(fmt.Errorf("take %s out of the stock: %w", line.SKU, errSoldOut))
		}
	}
	return nil
}
