package main

import (
	"database/sql"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/sekalitest"
)

func TestPointsAreAddedOnce(t *testing.T) {
	sekalitest.Run(t, func(t testing.TB) sekalitest.Case[*sql.Tx] {
		db := sekalitest.SQLite(t, schema)
		return sekalitest.Case[*sql.Tx]{
			Consumer: func(broker.Source) sekali.Config[*sql.Tx] { return newConsumer(db) },
			Messages: []broker.Message{
				{Body: []byte(`{"event_id":"a","customer":"ani","cents":1250}`)},
				{Body: []byte(`{"event_id":"b","customer":"budi","cents":300}`)},
				{Body: []byte(`{"customer":"ani","cents":800}`), Headers: broker.Headers{{Name: "idempotency-key", Value: []byte("c")}}},
			},
			Refused:  []broker.Message{{Body: []byte(`{"event_id":"d","customer":7}`)}, {Body: []byte(`no key`)}},
			Snapshot: sekalitest.Rows(db, `SELECT customer, points FROM points ORDER BY customer`),
			Want:     "ani | 20\nbudi | 3\n",
		}
	})
}

func TestKeysStayAsTheyAre(t *testing.T) {
	sekalitest.GoldenKeys(t, newConsumer(nil).Key, "testdata/keys")
}
