package main

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/sekalitest"
)

func TestGoodsLeaveTheStockOnce(t *testing.T) {
	sekalitest.Run(t, func(t testing.TB) sekalitest.Case[pgx.Tx] {
		pool := sekalitest.Postgres(t, os.Getenv("SEKALI_TEST_POSTGRES_URL"), schema, `INSERT INTO stock VALUES ('KOPI-250', 10), ('TEH-100', 10)`)
		return sekalitest.Case[pgx.Tx]{
			Consumer: func(broker.Source) sekali.Config[pgx.Tx] { return newConsumer(pool) },
			Messages: []broker.Message{
				{Body: []byte(`{"order":"41","lines":[{"sku":"KOPI-250","quantity":1},{"sku":"TEH-100","quantity":2}]}`)},
				{Body: []byte(`{"order":"42","lines":[{"sku":"KOPI-250","quantity":3}]}`)},
			},
			Refused: []broker.Message{
				{Body: []byte(`{"order":"43","lines":[{"sku":"TEH-100","quantity":1},{"sku":"KOPI-250","quantity":99}]}`)},
			},
			Snapshot: sekalitest.Rows(pool, `SELECT sku, quantity FROM stock ORDER BY sku`),
			Want:     "KOPI-250 | 6\nTEH-100 | 8\n",
		}
	})
}
