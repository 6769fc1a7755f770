package sekalitest

import (
	"context"
	"database/sql"
	"encoding/json"
	"testing"

	"go.uber.org/goleak"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const shopSchema = `
	CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
	INSERT INTO stock VALUES ('KOPI-250', 100), ('TEH-100', 100);
	CREATE TABLE moves (order_id TEXT NOT NULL, quantity INTEGER NOT NULL);`

type order struct {
	Order    string `json:"order"`
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

func orderOf(m *sekali.Message) (o order, err error) {
	err = json.Unmarshal(m.Body, &o)
	return o, err
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func moveStock(ctx context.Context, tx execer, o order) error {
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - ? WHERE sku = ?`, o.Quantity, o.SKU); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO moves VALUES (?, ?)`, o.Order, o.Quantity)
	return err
}

// shop is a correct consumer, which tests break.
type shop = sekali.Config[*sql.Tx]

func newShop(db *sql.DB, source broker.Source) shop {
	return shop{
		Name: "stock", Source: source, Store: sqlstore.New(db, sqlite.Dialect),
		Key: sekali.JSON("/order"),
		Handle: func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			o, err := orderOf(m)
			if err != nil {
				return sekali.Permanent(err)
			}
			return moveStock(ctx, tx, o)
		},
	}
}

var shopMessages = []broker.Message{
	{Body: []byte(`{"order":"1","sku":"KOPI-250","quantity":2}`)},
	{Body: []byte(`{"order":"2","sku":"TEH-100","quantity":3}`)},
	{Body: []byte(`{"order":"3","sku":"KOPI-250","quantity":4}`)},
}

var shopQueries = []string{"SELECT sku, quantity FROM stock ORDER BY sku", "SELECT order_id, quantity FROM moves ORDER BY order_id"}

// shopCase is a Case of a shop, changed by breaks if it is not nil.
func shopCase(breaks func(cfg *shop, db *sql.DB)) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] {
		db := SQLite(t, shopSchema)
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) shop {
				cfg := newShop(db, source)
				if breaks != nil {
					breaks(&cfg, db)
				}
				return cfg
			},
			Messages: shopMessages,
			Snapshot: Rows(db, shopQueries...),
			Want:     "KOPI-250 | 94\nTEH-100 | 97\n\n1 | 2\n2 | 3\n3 | 4\n",
		}
	}
}

func TestACorrectConsumerPassesEveryDelivery(t *testing.T) {
	Run(t, shopCase(nil))
}
