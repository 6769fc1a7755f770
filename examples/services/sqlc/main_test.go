package main

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/sekalitest"
)

func TestPaymentsAreAddedOnce(t *testing.T) {
	sekalitest.Run(t, func(t testing.TB) sekalitest.Case[pgx.Tx] {
		pool := sekalitest.Postgres(t, os.Getenv("SEKALI_TEST_POSTGRES_URL"), schema)
		return sekalitest.Case[pgx.Tx]{
			Consumer: func(broker.Source) sekali.Config[pgx.Tx] { return newConsumer(pool) },
			Messages: []broker.Message{
				{Body: []byte(`{"payment":"P1","order":"41","cents":900}`)},
				{Body: []byte(`{"payment":"P2","order":"42","cents":400}`)},
				{Body: []byte(`{"payment":"P3","order":"41","cents":100}`)},
			},
			Refused:  []broker.Message{{Body: []byte(`{"payment":"P4","order":"43","cents":-1}`)}},
			Snapshot: sekalitest.Rows(pool, `SELECT * FROM orders ORDER BY order_id`, `SELECT * FROM payments ORDER BY payment`),
			Want:     "41 | 1000\n42 | 400\n\nP1 | 41 | 900\nP2 | 42 | 400\nP3 | 41 | 100\n",
		}
	})
}
