package demo

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
)

// takeOrders takes the orders as a shop does: each with its event, in one
// transaction. Here a few hundred come at once.
func (s *shop) takeOrders(ctx context.Context, p plan, topic string) error {
	box := outbox.New(s.store())
	for orders := range slices.Chunk(p.orders, 500) {
		err := s.inTx(ctx, func(tx *sql.Tx) error { return s.takeSome(ctx, tx, box, orders, topic) })
		if err != nil {
			return fmt.Errorf("take orders: %w", err)
		}
	}
	return nil
}

func (s *shop) takeSome(ctx context.Context, tx *sql.Tx, box *outbox.Box[*sql.Tx], orders []order, topic string) error {
	rows, args, events := make([]string, len(orders)), []any{}, make([]outbox.Message, len(orders))
	for i, o := range orders {
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		rows[i], args = "(?, ?, ?)", append(args, o.ID, o.SKU, o.Quantity)
		events[i] = outbox.Message{ID: o.key(), Topic: topic, OrderingKey: []byte(o.SKU), Body: body}
	}
	insert := s.db.Kind.Placeholders("INSERT INTO orders (order_id, sku, quantity) VALUES " + strings.Join(rows, ", "))
	if _, err := tx.ExecContext(ctx, insert, args...); err != nil {
		return err
	}
	_, err := box.AddAll(ctx, tx, events)
	return err
}

func (s *shop) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := s.db.SQL.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (s *shop) store() *sqlstore.Store { return sqlstore.New(s.db.SQL, s.db.Dialect()) }

// relay publishes the orders' events.
type relay struct {
	rows   outbox.Rows
	orders feed

	mu  sync.Mutex
	err error // of the latest trouble, if nothing has gone well since
}

func (s *shop) relay(orders feed, p plan) *relay {
	return &relay{rows: &forgetful{Rows: s.store().Outbox(), again: maps.Clone(p.again)}, orders: orders}
}

// run publishes until ctx ends.
func (r *relay) run(ctx context.Context) (err error) {
	publisher, err := r.orders.publisher()
	if err != nil {
		return fmt.Errorf("publish orders: %w", err)
	}
	defer func() {
		closing, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer done()
		if e := publisher.Close(closing); err == nil {
			err = e
		}
	}()
	of, err := outbox.NewRelay(r.rows, outbox.RelayConfig{Publisher: anonymous{publisher}, PollEvery: 20 * time.Millisecond, Observer: r.observe})
	if err != nil {
		return err
	}
	return of.Run(ctx)
}

func (r *relay) observe(e outbox.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = e.Err
}

// trouble is what keeps it from publishing.
func (r *relay) trouble() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return ""
	}
	return "the relay: " + r.err.Error()
}

// forgetful are the rows of a relay that dies, now and then, after the broker
// has confirmed an event and before that is recorded: it goes out again.
type forgetful struct {
	outbox.Rows
	again map[string]bool // message ids of the events that it forgets once

	forget map[int64]bool // their numbers, as they are seen
}

func (f *forgetful) Pending(ctx context.Context, w outbox.Want) ([]outbox.Row, error) {
	rows, err := f.Rows.Pending(ctx, w)
	f.forget = map[int64]bool{}
	for _, r := range rows {
		if f.again[r.MessageID] {
			f.forget[r.ID] = true
			delete(f.again, r.MessageID)
		}
	}
	return rows, err
}

func (f *forgetful) Done(ctx context.Context, relay string, published []int64, failed []outbox.Failure) error {
	return f.Rows.Done(ctx, relay, slices.DeleteFunc(slices.Clone(published), func(id int64) bool { return f.forget[id] }), failed)
}

// anonymous publishes without the broker's own ids: with them JetStream would
// drop second copies by itself within its duplicate window, and the demo is
// about those that it does not see.
type anonymous struct{ broker.Publisher }

func (a anonymous) Publish(ctx context.Context, messages ...broker.Message) error {
	for i := range messages {
		messages[i].ID = ""
	}
	return a.Publisher.Publish(ctx, messages...)
}
