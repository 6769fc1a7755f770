package sekali_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// shopDB opens an SQLite file with Sekali's tables and a shop's.
func shopDB(ctx context.Context) (db *sql.DB, closeDB func()) {
	folder, err := os.MkdirTemp("", "sekali-example-")
	check(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(folder, "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	check(err)
	_, err = migrate.Up(ctx, db, migrate.SQLite)
	check(err)
	_, err = db.ExecContext(ctx, `CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
		INSERT INTO stock VALUES ('KOPI-250', 10)`)
	check(err)
	return db, func() {
		_ = db.Close()
		_ = os.RemoveAll(folder)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func inStock(ctx context.Context, db *sql.DB) (n int) {
	check(db.QueryRowContext(ctx, `SELECT quantity FROM stock`).Scan(&n))
	return n
}

// An Inbox guards a call: the second one with the same key does nothing.
func ExampleInbox_Process() {
	ctx := context.Background()
	db, closeDB := shopDB(ctx)
	defer closeDB()

	stock := sekali.NewInbox(sqlstore.New(db, sqlite.Dialect), "stock-service")
	for range 2 {
		outcome, err := stock.Process(ctx, "order-42:paid", func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI-250'`)
			return err
		})
		check(err)
		fmt.Println(outcome, "- in stock:", inStock(ctx, db))
	}
	// Output:
	// processed - in stock: 9
	// duplicate - in stock: 9
}

// Claim works in a transaction of your own.
func ExampleInbox_Claim() {
	ctx := context.Background()
	db, closeDB := shopDB(ctx)
	defer closeDB()

	stock := sekali.NewInbox(sqlstore.New(db, sqlite.Dialect), "stock-service")
	for range 2 {
		tx, err := db.BeginTx(ctx, nil)
		check(err)
		fresh, err := stock.Claim(ctx, tx, "order-42:paid")
		check(err)
		fmt.Println("fresh:", fresh)
		if !fresh {
			check(tx.Rollback())
			continue
		}
		_, err = tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI-250'`)
		check(err)
		check(tx.Commit())
	}
	fmt.Println("in stock:", inStock(ctx, db))
	// Output:
	// fresh: true
	// fresh: false
	// in stock: 9
}

// A Consumer does the whole, here with a broker in memory. The producer sends
// one order twice; it has its effect once.
func ExampleConsumer_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	db, closeDB := shopDB(ctx)
	defer closeDB()
	orders := membroker.New(membroker.Options{AckWait: 30 * time.Second})

	consumer, err := sekali.NewConsumer(sekali.Config[*sql.Tx]{
		Name:   "stock-service",
		Source: orders.NewSource("stock-service"),
		Store:  sqlstore.New(db, sqlite.Dialect),
		Key:    sekali.FirstOf(sekali.Header("idempotency-key"), sekali.JSON("/event_id")),
		Handle: func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - 1 WHERE sku = ?`, string(m.Body))
			return err
		},
	})
	check(err)
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()

	for _, key := range []string{"order-1:paid", "order-2:paid", "order-1:paid"} {
		check(orders.Publish(ctx, broker.Message{
			Body: []byte("KOPI-250"), Headers: broker.Headers{{Name: "idempotency-key", Value: []byte(key)}},
		}))
	}
	check(orders.WaitEmpty(ctx, "stock-service"))
	stop()
	check(<-ended)
	fmt.Println("in stock:", inStock(context.Background(), db))
	// Output:
	// in stock: 8
}
