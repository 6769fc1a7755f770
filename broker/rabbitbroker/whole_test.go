//go:build !fast

package rabbitbroker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/rabbittest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

func execPgx(ctx context.Context, tx pgx.Tx, statement string) error {
	_, err := tx.Exec(ctx, statement)
	return err
}

func execSQL(ctx context.Context, tx *sql.Tx, statement string) error {
	_, err := tx.ExecContext(ctx, statement)
	return err
}

func TestConsumersOnPostgreSQLHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.Postgres(t)
	newWhole(t, db, pgxstore.New(db.Pool(nil)), execPgx).run()
}

func TestConsumersOnPostgreSQLWithDatabaseSQLHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.Postgres(t)
	newWhole(t, db, sqlstore.New(db.SQL, postgres.Dialect), execSQL).run()
}

func TestConsumersOnMariaDBHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.MySQL(t)
	newWhole(t, db, sqlstore.New(db.SQL, mysql.Dialect), execSQL).run()
}

func TestConsumersOnSQLiteHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.SQLite(t)
	newWhole(t, db, sqlstore.New(db.SQL, sqlite.Dialect), execSQL).run()
}

// errWeather is why an attempt fails now and then.
var errWeather = errors.New("the weather is bad")

// whole is Consumers on a database and a queue.
type whole[Tx any] struct {
	*bench
	db    *dbtest.DB
	store store.Store[Tx]
	exec  func(context.Context, Tx, string) error

	mu    sync.Mutex
	tries int
	done  map[string]bool
	dead  int
	more  chan struct{} // closed, and replaced, when done or dead grow
}

func newWhole[Tx any](t *testing.T, db *dbtest.DB, s store.Store[Tx], exec func(context.Context, Tx, string) error) *whole[Tx] {
	t.Helper()
	if _, err := db.SQL.Exec(`CREATE TABLE sales (sale VARCHAR(60) NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return &whole[Tx]{
		bench: newBench(t, rabbitbroker.Quorum, nil), db: db, store: s, exec: exec,
		done: map[string]bool{}, more: make(chan struct{}),
	}
}

// Observe makes it the Consumers' observer.
func (w *whole[Tx]) Observe(e sekali.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case sekali.Finished:
		w.done[e.Message.Key()] = true
	case sekali.DeadLettered:
		w.dead++
	default:
		return
	}
	close(w.more)
	w.more = make(chan struct{})
}

// await waits until so many keys have finished.
func (w *whole[Tx]) await(n int) {
	w.Helper()
	limit := time.After(time.Minute)
	for {
		w.mu.Lock()
		more, done := w.more, len(w.done)
		w.mu.Unlock()
		if done >= n {
			return
		}
		select {
		case <-more:
		case <-limit:
			w.Fatalf("%d of %d messages have finished after a minute", done, n)
		}
	}
}

func (w *whole[Tx]) sell(ctx context.Context, tx Tx, m *sekali.Message) error {
	if string(m.Body) == "poison" {
		return sekali.Permanent(errors.New("it can never be processed"))
	}
	if err := w.exec(ctx, tx, fmt.Sprintf(`INSERT INTO sales VALUES ('%s')`, m.Key())); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tries++; w.tries%20 == 0 {
		return errWeather
	}
	return nil
}

// consume runs a Consumer until stop is called.
func (w *whole[Tx]) consume(wires *rabbittest.Wires) (stop func()) {
	w.Helper()
	c, err := sekali.NewConsumer(sekali.Config[Tx]{
		Name: "shop", Source: w.source(wires), Store: w.store, Key: sekali.Header("key"), Observer: w, Workers: 2,
		Backoff: sekali.Backoff{Initial: time.Millisecond, Max: 5 * time.Millisecond}, MaxAttempts: 50, Handle: w.sell,
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Run returned %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

func (w *whole[Tx]) send(key, body string) {
	w.Helper()
	m := broker.Message{Topic: w.queue, Body: []byte(body), Headers: broker.Headers{{Name: "key", Value: []byte(key)}}}
	if err := w.publisher.Publish(w.ctx, m); err != nil {
		w.Fatal(err)
	}
}

// run: three consumers share a queue while connections are cut, handlers fail,
// one process is never heard of again, and one message is poison. Every fifth
// message is sent twice.
func (w *whole[Tx]) run() {
	const messages = 300
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(w.T.Context(), 2*time.Minute)
	defer cancel()
	wires := []*rabbittest.Wires{{}, {}, {}}
	var stops []func()
	for _, one := range wires {
		stops = append(stops, w.consume(one))
	}
	w.send("poison", "poison")
	for i := range messages {
		w.send(fmt.Sprint("order-", i), "an order")
		if i%5 == 0 {
			w.send(fmt.Sprint("order-", i), "an order")
		}
		if i%30 == 29 {
			w.await(i / 2)
			wires[i/30%2].Cut()
		}
		if i == messages/2 {
			wires[2].Kill()
		}
	}
	w.await(messages)
	for _, stop := range stops {
		stop()
	}
	rest := w.consume(nil) // what was in doubt comes again
	w.send("last", "an order")
	w.await(messages + 1)
	rest()
	w.exact(messages + 1)
}

func (w *whole[Tx]) exact(want int) {
	w.Helper()
	var rows, sales, letters int
	for query, into := range map[string]*int{
		`SELECT COUNT(*) FROM sales`: &rows, `SELECT COUNT(DISTINCT sale) FROM sales`: &sales, `SELECT COUNT(*) FROM dead_letters`: &letters,
	} {
		if err := w.db.SQL.QueryRow(query).Scan(into); err != nil {
			w.Fatal(err)
		}
	}
	if rows != want || sales != want || letters != 1 {
		w.Errorf("there are %d effects of %d messages, want %d; and %d dead letters, want 1", rows, sales, want, letters)
	}
	// What is left are duplicates that came too late for the last consumer.
	s := w.source(nil)
	for {
		ctx, cancel := context.WithTimeout(w.ctx, 300*time.Millisecond)
		d, err := s.Receive(ctx, 100)
		cancel()
		if err != nil {
			break
		}
		for _, x := range d {
			if key, _ := x.Message.Headers.Get("key"); !w.done[string(key)] {
				w.Errorf("%s is left and had no effect", key)
			}
		}
	}
	w.close(s)
}
