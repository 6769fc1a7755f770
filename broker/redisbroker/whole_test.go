//go:build !fast

package redisbroker_test

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
	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/redistest"
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
	whole(t, db, pgxstore.New(db.Pool(nil)), execPgx)
}

func TestConsumersOnPostgreSQLWithDatabaseSQLHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.Postgres(t)
	whole(t, db, sqlstore.New(db.SQL, postgres.Dialect), execSQL)
}

func TestConsumersOnMariaDBHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.MySQL(t)
	whole(t, db, sqlstore.New(db.SQL, mysql.Dialect), execSQL)
}

func TestConsumersOnSQLiteHaveExactEffects(t *testing.T) {
	t.Parallel()
	db := dbtest.SQLite(t)
	whole(t, db, sqlstore.New(db.SQL, sqlite.Dialect), execSQL)
}

// errWeather is why an attempt fails now and then.
var errWeather = errors.New("the weather is bad")

// progress counts events and wakes up who waits for them.
type progress struct {
	mu     sync.Mutex
	done   map[string]bool
	letter int
	more   chan struct{}
}

func (p *progress) Observe(e sekali.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case sekali.Finished:
		p.done[e.Message.Key()] = true
	case sekali.DeadLettered:
		p.letter++
	default:
		return
	}
	close(p.more)
	p.more = make(chan struct{})
}

// await waits until so many keys have finished.
func (p *progress) await(t *testing.T, n int) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		p.mu.Lock()
		more, done := p.more, len(p.done)
		p.mu.Unlock()
		if done >= n {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("%d of %d messages have finished after a minute", done, n)
		}
	}
}

// whole: three consumers share a group while connections are cut, handlers
// fail, one process dies and one message is poison. Every fifth message is sent
// twice.
func whole[Tx any](t *testing.T, db *dbtest.DB, s store.Store[Tx], exec func(context.Context, Tx, string) error) {
	const messages = 300
	if _, err := db.SQL.Exec(`CREATE TABLE sales (sale VARCHAR(60) NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, stream: redistest.Key(t)}
	b.Client = redistest.Client(t)
	p := &progress{done: map[string]bool{}, more: make(chan struct{})}
	var mu sync.Mutex
	tries := 0
	consume := func() (*redistest.Wires, func() error) {
		w := &redistest.Wires{}
		source := newSource(t, wired(t, w, 3), redisbroker.SourceConfig{Stream: b.stream, Group: group, AckWait: 2 * time.Second})
		c, err := sekali.NewConsumer(sekali.Config[Tx]{
			Name: "shop", Source: source, Store: s, Key: sekali.Header("key"), Observer: p, Workers: 2,
			Backoff: sekali.Backoff{Initial: time.Millisecond, Max: 5 * time.Millisecond}, MaxAttempts: 50,
			Handle: func(ctx context.Context, tx Tx, m *sekali.Message) error {
				if string(m.Body) == "poison" {
					return sekali.Permanent(errors.New("it can never be processed"))
				}
				if err := exec(ctx, tx, fmt.Sprintf(`INSERT INTO sales VALUES ('%s')`, m.Key())); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				if tries++; tries%20 == 0 {
					return errWeather
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
		stop := sync.OnceValue(func() error {
			cancel()
			return <-ended
		})
		t.Cleanup(func() { _ = stop() })
		return w, stop
	}
	first, stopFirst := consume()
	second, stopSecond := consume()
	dead, stopDead := consume()

	publisher, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{})
	b.ok(err)
	send := func(from, to int) {
		var all []broker.Message
		for i := from; i < to; i++ {
			m := broker.Message{Topic: b.stream, Body: []byte("{}"), Headers: broker.Headers{{Name: "key", Value: fmt.Append(nil, "sale-", i)}}}
			if all = append(all, m); i%5 == 0 {
				all = append(all, m)
			}
		}
		b.ok(publisher.Publish(t.Context(), all...))
	}
	poison := broker.Message{Topic: b.stream, Body: []byte("poison"), Headers: broker.Headers{{Name: "key", Value: []byte("poison")}}}
	b.ok(publisher.Publish(t.Context(), poison))
	const rounds = 10
	for i := range rounds {
		send(i*messages/rounds, (i+1)*messages/rounds)
		p.await(t, i*messages/rounds)
		switch {
		case i == rounds/2:
			dead.Kill()
		case i%2 == 0:
			first.Cut()
		default:
			second.Cut()
		}
	}
	p.await(t, messages)
	b.ok(stopFirst())
	b.ok(stopSecond())
	_ = stopDead() // it cannot say good-bye
	_, stopLast := consume()
	b.settled()
	b.ok(stopLast())

	var rows, sales, letters int
	b.ok(db.SQL.QueryRow(`SELECT COUNT(*), COUNT(DISTINCT sale) FROM sales`).Scan(&rows, &sales))
	b.ok(db.SQL.QueryRow(`SELECT COUNT(*) FROM dead_letters`).Scan(&letters))
	if rows != messages || sales != messages || letters != 1 {
		t.Errorf("%d messages had %d effects on %d sales; %d dead letters, want 1", messages, rows, sales, letters)
	}
}

// settled waits until all entries are acknowledged, also those that the dead
// one had in hand. Redis tells nobody when.
func (b *bench) settled() {
	b.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for {
		select {
		case <-tick.C:
		case <-limit:
			b.Fatal("entries are still pending after 30 s")
		}
		stream, err := b.XInfoStream(b.Context(), b.stream).Result()
		b.ok(err)
		groups, err := b.XInfoGroups(b.Context(), b.stream).Result()
		b.ok(err)
		if groups[0].Pending == 0 && groups[0].LastDeliveredID == stream.LastGeneratedID {
			return
		}
	}
}
