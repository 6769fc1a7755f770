//go:build !fast

package amqpbroker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/internal/amqptest"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

func TestConsumersOnEveryDatabaseHaveExactEffects(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		db := dbtest.Postgres(t)
		whole(t, db, pgxstore.New(db.Pool(nil)), func(ctx context.Context, tx pgx.Tx, statement string) error {
			_, err := tx.Exec(ctx, statement)
			return err
		})
	})
	inSQL := func(ctx context.Context, tx *sql.Tx, statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		db := dbtest.MySQL(t)
		whole(t, db, sqlstore.New(db.SQL, mysql.Dialect), inSQL)
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		db := dbtest.SQLite(t)
		whole(t, db, sqlstore.New(db.SQL, sqlite.Dialect), inSQL)
	})
}

// whole: two Consumers share a queue while their connections are cut and
// handlers fail. Every fifth message is sent twice, and one is poison.
func whole[Tx any](t *testing.T, db *dbtest.DB, s store.Store[Tx], exec func(context.Context, Tx, string) error) {
	const n = 200
	if _, err := db.SQL.Exec(`CREATE TABLE sales (sale VARCHAR(60) NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	queue := amqptest.Queue(t)
	url, proxy := amqptest.Proxied(t)
	var tries atomic.Int32
	consume := func() (stop func()) {
		source, err := amqpbroker.NewSource(amqpbroker.SourceConfig{URL: url, Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		c, err := sekali.NewConsumer(sekali.Config[Tx]{
			Name: "shop", Source: source, Store: s, Key: sekali.MessageID(), Workers: 2, MaxAttempts: 50,
			Backoff: sekali.Backoff{Initial: time.Millisecond, Max: 5 * time.Millisecond},
			Handle: func(ctx context.Context, tx Tx, m *sekali.Message) error {
				if m.Key() == "poison" {
					return sekali.Permanent(errors.New("it can never be processed"))
				}
				if err := exec(ctx, tx, fmt.Sprintf(`INSERT INTO sales VALUES ('%s')`, m.Key())); err != nil {
					return err
				}
				if tries.Add(1)%20 == 0 {
					return errors.New("the weather is bad")
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run returned %v", err)
			}
		}
	}
	stops := []func(){consume(), consume()}
	p := newPublisher(t)
	send := func(id string) {
		if err := p.Publish(soon(t), broker.Message{Topic: queue, ID: id, Body: []byte("an order")}); err != nil {
			t.Fatal(err)
		}
	}
	send("poison")
	for i := range n {
		send(fmt.Sprint("order-", i))
		if i%5 == 0 {
			send(fmt.Sprint("order-", i))
		}
		if i%40 == 39 {
			proxy.Cut()
		}
	}
	count := func(query string) (n int) {
		if err := db.SQL.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const all = `SELECT (SELECT COUNT(DISTINCT sale) FROM sales) + (SELECT COUNT(*) FROM dead_letters)`
	for end := time.Now().Add(time.Minute); count(all) < n+1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d messages are done after a minute", count(all), n+1)
		}
	}
	for _, stop := range stops {
		stop()
	}
	if sales, letters := count(`SELECT COUNT(*) FROM sales`), count(`SELECT COUNT(*) FROM dead_letters`); sales != n || letters != 1 {
		t.Errorf("%d effects of %d messages and %d dead letters, want %d and 1", sales, n, letters, n)
	}
}
