// Command chain is three services that hand an order on: each consumes, changes
// its own database and publishes, in one transaction, through its outbox.
//
//	shop            takes an order                    → orders.placed
//	payment-service orders.placed: takes the money    → orders.paid
//	courier-service orders.paid: makes a shipment
//
// It needs nothing installed: the broker is an embedded NATS server, and each
// service has an SQLite file. Every order is placed twice at the broker, as a
// producer does that got no answer.
//
//	go run ./examples/chain
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	_ "modernc.org/sqlite"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// order is what the services tell each other.
type order struct {
	ID     string `json:"order_id"`
	Amount int64  `json:"amount"` // rupiah
}

func main() {
	folder, err := os.MkdirTemp("", "chain-")
	if err == nil {
		defer os.RemoveAll(folder)
		var c counts
		if c, err = run(context.Background(), folder, 200); err == nil {
			fmt.Printf("%d orders, %d messages about them, %d payments, %d shipments\n", c.orders, c.messages, c.payments, c.shipments)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chain:", err)
		os.Exit(1)
	}
}

// counts is what the databases and the broker say at the end.
type counts struct{ orders, messages, payments, shipments int }

// service has a database of its own, with an outbox.
type service struct {
	db    *sql.DB
	store *sqlstore.Store
	box   *outbox.Box[*sql.Tx]
}

func newService(ctx context.Context, folder, name, table string) (*service, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, name+".db")+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	if _, err := migrate.Up(ctx, db, migrate.SQLite); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, table); err != nil {
		return nil, err
	}
	s := sqlstore.New(db, sqlite.Dialect)
	return &service{db, s, outbox.New(s)}, nil
}

// run plays n orders.
func run(ctx context.Context, folder string, n int) (c counts, err error) {
	js, stop, err := startBroker(ctx, folder)
	if err != nil {
		return c, err
	}
	defer stop()
	// A table without a unique key: a second effect would be seen, not refused.
	shop, err1 := newService(ctx, folder, "shop", `CREATE TABLE orders (id TEXT, amount INTEGER)`)
	payment, err2 := newService(ctx, folder, "payment", `CREATE TABLE payments (order_id TEXT, amount INTEGER)`)
	courier, err3 := newService(ctx, folder, "courier", `CREATE TABLE shipments (order_id TEXT)`)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return c, err
		}
	}
	pay, err := payment.consume(js, "payment-service", "orders.placed", payment.takeMoney)
	if err != nil {
		return c, err
	}
	send, err := courier.consume(js, "courier-service", "orders.paid", courier.makeShipment)
	if err != nil {
		return c, err
	}
	var running []func(context.Context) error
	running = append(running, pay.Run, send.Run)
	for _, s := range []*service{shop, payment} {
		relay, err := s.box.NewRelay(outbox.RelayConfig{Publisher: twice{natsbroker.NewPublisher(js)}})
		if err != nil {
			return c, err
		}
		running = append(running, relay.Run)
	}
	err = beside(ctx, running, func(ctx context.Context) error {
		for i := range n {
			if err := shop.place(ctx, order{fmt.Sprintf("order-%d", i), 25_000}); err != nil {
				return err
			}
		}
		return wait(ctx, func() bool { return courier.count("shipments") >= n && drained(ctx, js) })
	})
	stream, e := js.Stream(ctx, "ORDERS")
	if err != nil || e != nil {
		return c, fmt.Errorf("%w %w", err, e)
	}
	return counts{shop.count("orders"), int(stream.CachedInfo().State.Msgs), payment.count("payments"), courier.count("shipments")}, nil
}

// place takes an order: the order and its event are one transaction.
func (s *service) place(ctx context.Context, o order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, o.ID, o.Amount); err != nil {
		return err
	}
	if err := s.publish(ctx, tx, "orders.placed", o); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.box.Wake() // the relay need not wait until it looks again
	return nil
}

// publish adds an event to a transaction.
func (s *service) publish(ctx context.Context, tx *sql.Tx, topic string, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = s.box.Add(ctx, tx, outbox.Message{Topic: topic, OrderingKey: []byte(o.ID), Body: body})
	return err
}

// takeMoney consumes, changes and publishes in the transaction that it is
// handed, in which its message's key is recorded too.
func (s *service) takeMoney(ctx context.Context, tx *sql.Tx, o order) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES (?, ?)`, o.ID, o.Amount); err != nil {
		return err
	}
	return s.publish(ctx, tx, "orders.paid", o)
}

func (s *service) makeShipment(ctx context.Context, tx *sql.Tx, o order) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO shipments VALUES (?)`, o.ID)
	return err
}

// consume makes the service's Consumer.
func (s *service) consume(js jetstream.JetStream, name, subject string, handle func(context.Context, *sql.Tx, order) error) (*sekali.Consumer[*sql.Tx], error) {
	source, err := natsbroker.NewSource(js, natsbroker.SourceConfig{
		Stream: "ORDERS", Consumer: name, FilterSubjects: []string{subject}, OrderingKeyHeader: outbox.OrderingKeyHeader,
	})
	if err != nil {
		return nil, err
	}
	return sekali.NewConsumer(sekali.Config[*sql.Tx]{
		Name: name, Source: source, Store: s.store,
		Key: sekali.Header(outbox.IDHeader), // the event's id, born with its data
		Handle: func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			var o order
			if err := json.Unmarshal(m.Body, &o); err != nil {
				return sekali.Permanent(err)
			}
			return handle(ctx, tx, o)
		},
	})
}

func (s *service) count(table string) (n int) {
	_ = s.db.QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n)
	return n
}

// twice publishes everything twice, without the id by which JetStream would
// know the second copy.
type twice struct{ broker.Publisher }

func (p twice) Publish(ctx context.Context, messages ...broker.Message) error {
	for i := range messages {
		messages[i].ID = ""
	}
	if err := p.Publisher.Publish(ctx, messages...); err != nil {
		return err
	}
	return p.Publisher.Publish(ctx, messages...)
}

// startBroker starts the broker, with one stream.
func startBroker(ctx context.Context, folder string) (js jetstream.JetStream, stop func(), err error) {
	embedded, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: filepath.Join(folder, "nats"),
	})
	if err != nil {
		return nil, nil, err
	}
	go embedded.Start()
	end := func() { embedded.Shutdown(); embedded.WaitForShutdown() }
	if !embedded.ReadyForConnections(10 * time.Second) {
		end()
		return nil, nil, fmt.Errorf("the embedded NATS server is not ready")
	}
	conn, err := nats.Connect(embedded.ClientURL())
	if err == nil {
		js, err = jetstream.New(conn)
	}
	if err == nil {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.*"}})
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return js, func() { conn.Close(); end() }, nil
}

// drained tells whether no consumer has anything left to do.
func drained(ctx context.Context, js jetstream.JetStream) bool {
	for _, name := range []string{"payment-service", "courier-service"} {
		c, err := js.Consumer(ctx, "ORDERS", name)
		if err != nil || c.CachedInfo().NumPending+uint64(c.CachedInfo().NumAckPending) > 0 {
			return false
		}
	}
	return true
}

// beside runs services beside what main does, until that is done.
func beside(ctx context.Context, services []func(context.Context) error, main func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	for _, run := range services {
		running.Go(func() {
			if err := run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err := main(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	running.Wait()
	return err
}

// wait waits until something is so, for a minute at most.
func wait(ctx context.Context, is func() bool) error {
	end, look := time.After(time.Minute), time.NewTicker(20*time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return fmt.Errorf("the services are not done after a minute")
		case <-look.C:
		}
	}
	return nil
}
