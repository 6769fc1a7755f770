// Command sqlc keeps what was paid for an order. Queries by sqlc, on PostgreSQL
// through pgx: what sqlc generates takes the transaction as it is.
//
//	DATABASE_URL=postgres://… NATS_URL=nats://… go run ./sqlc
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/examples/services/internal/service"
	"github.com/sekali/sekali/examples/services/sqlc/db"
	"github.com/sekali/sekali/store/pgxstore"
)

//go:embed db/schema.sql
var schema string

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
		return service.Consume(ctx, "PAYMENTS", newConsumer(pool))
	})
}

func newConsumer(pool *pgxpool.Pool) sekali.Config[pgx.Tx] {
	return sekali.Config[pgx.Tx]{
		Name:  "payment-service",
		Store: pgxstore.New(pool),
		Key:   sekali.JSON("/payment"),
		Handle: func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
			return addPayment(ctx, db.New(tx), m)
		},
	}
}

func addPayment(ctx context.Context, queries *db.Queries, m *sekali.Message) error {
	var p struct {
		Payment string `json:"payment"`
		Order   string `json:"order"`
		Cents   int64  `json:"cents"`
	}
	if err := json.Unmarshal(m.Body, &p); err != nil {
		return sekali.Permanent(fmt.Errorf("read the payment: %w", err))
	}
	if err := queries.AddPayment(ctx, db.AddPaymentParams{Payment: p.Payment, OrderID: p.Order, Cents: p.Cents}); err != nil {
		return fmt.Errorf("save payment %s: %w", p.Payment, err)
	}
	paid, err := queries.AddToOrder(ctx, db.AddToOrderParams{OrderID: p.Order, Paid: p.Cents})
	if err != nil {
		return fmt.Errorf("add payment %s to order %s: %w", p.Payment, p.Order, err)
	}
	if paid < 0 {
		return sekali.Permanent(fmt.Errorf("order %s: more is paid back than was paid", p.Order))
	}
	return nil
}
