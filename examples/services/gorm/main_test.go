package main

import (
	"database/sql"
	"os"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/sekalitest"
)

func TestInvoicesAreBookedOnce(t *testing.T) {
	sekalitest.Run(t, func(t testing.TB) sekalitest.Case[*sql.Tx] {
		db := sekalitest.PostgresDB(t, os.Getenv("SEKALI_TEST_POSTGRES_URL"), schema)
		return sekalitest.Case[*sql.Tx]{
			Consumer: func(broker.Source) sekali.Config[*sql.Tx] {
				cfg, err := newConsumer(db)
				if err != nil {
					t.Fatal(err)
				}
				return cfg
			},
			Messages: []broker.Message{
				{Body: []byte(`{"invoice":"R1","customer":"ani","lines":[{"text":"coffee","cents":900},{"text":"tea","cents":400}]}`)},
				{Body: []byte(`{"invoice":"R2","customer":"ani","lines":[{"text":"tea","cents":400}]}`)},
			},
			Refused: []broker.Message{{Body: []byte(`{"invoice":"R3","customer":"budi","lines":7}`)}},
			Snapshot: sekalitest.Rows(db, `SELECT customer, cents FROM accounts ORDER BY customer`,
				`SELECT invoice_id, text, cents FROM lines ORDER BY invoice_id, text`),
			Want: "ani | 1700\n\nR1 | coffee | 900\nR1 | tea | 400\nR2 | tea | 400\n",
		}
	})
}
