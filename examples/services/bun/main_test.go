package main

import (
	"database/sql"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/sekalitest"
)

func TestEachMoveOfAShipmentCountsOnce(t *testing.T) {
	sekalitest.Run(t, func(t testing.TB) sekalitest.Case[*sql.Tx] {
		db := sekalitest.SQLite(t, schema)
		return sekalitest.Case[*sql.Tx]{
			Consumer: func(broker.Source) sekali.Config[*sql.Tx] { return newConsumer(db) },
			Messages: []broker.Message{
				{Body: []byte(`{"order":"41","state":"packed"}`)},
				{Body: []byte(`{"order":"42","state":"packed"}`)},
				{Body: []byte(`{"order":"41","state":"sent"}`)},
			},
			Refused:  []broker.Message{{Body: []byte(`{"order":"43","state":null}`)}},
			Snapshot: sekalitest.Rows(db, `SELECT order_id, state, moves FROM shipments ORDER BY order_id`),
			Want:     "41 | sent | 2\n42 | packed | 1\n",
		}
	})
}
