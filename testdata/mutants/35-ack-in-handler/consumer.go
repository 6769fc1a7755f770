// The handler acknowledges the message in its transaction.

// Package mutant is a variant of the consumer in ../00-correct.
package mutant

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// Schema makes the tables of the business, with 100 bags in stock.
const Schema = `
	CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
	INSERT INTO stock VALUES ('KOPI-250', 100);
	CREATE TABLE shipments (order_id TEXT NOT NULL, label TEXT NOT NULL);`

// New returns the consumer.
func New(db *sql.DB, source broker.Source, courier string) sekali.Config[*sql.Tx] {
	keys := sqlstore.New(db, sqlite.Dialect)
	s := &shipping{
		ledger:  effect.New(keys.Effects(), "shipping", effect.Config{}),
		client:  httpeffect.Client(httpeffect.Config{}),
		courier: courier,
		hand:    &hand{Source: source},
	}
	return sekali.Config[*sql.Tx]{
		Name:    "shipping",
		Source:  s.hand,
		Store:   keys,
		Key:     sekali.Business(sekali.JSON("/order"), sekali.JSON("/event")),
		Prepare: s.prepare,
	}
}

type shipping struct {
	ledger  *effect.Ledger
	client  *http.Client
	courier string
	hand    *hand
}

type order struct {
	Order    string `json:"order"`
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

func (s *shipping) prepare(ctx context.Context, m *sekali.Message) (sekali.Commit[*sql.Tx], error) {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return nil, sekali.Permanent(err)
	}
	label, err := effect.Do(ctx, s.ledger, m.Key(), "label", func(ctx context.Context, _ effect.Call) (string, error) {
		return s.label(ctx, o)
	}, effect.Repeat(24*time.Hour))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx *sql.Tx) error {
		if err := ship(ctx, tx, o, label); err != nil {
			return err
		}
		return s.hand.acknowledge(ctx, m.ID)
	}, nil
}

// label has the courier make a label; the client sends the effect's key with it.
func (s *shipping) label(ctx context.Context, o order) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.courier+"/labels", strings.NewReader(o.Order))
	if err != nil {
		return "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := httpeffect.Check(resp); err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

var errSoldOut = errors.New("not enough in stock")

// ship changes the business's data.
func ship(ctx context.Context, tx *sql.Tx, o order, label string) error {
	result, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - ? WHERE sku = ? AND quantity >= ?`, o.Quantity, o.SKU, o.Quantity)
	if err != nil {
		return fmt.Errorf("take order %s out of the stock: %w", o.Order, err)
	}
	if n, err := result.RowsAffected(); err != nil {
		return fmt.Errorf("take order %s out of the stock: %w", o.Order, err)
	} else if n == 0 {
		return sekali.Permanent(errSoldOut)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO shipments (order_id, label) VALUES (?, ?)`, o.Order, label); err != nil {
		return fmt.Errorf("note the shipment of order %s: %w", o.Order, err)
	}
	return nil
}

// hand is a source that remembers what it has handed over.
type hand struct {
	broker.Source
	deliveries sync.Map // by the message's id
}

func (h *hand) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	deliveries, err := h.Source.Receive(ctx, max)
	for _, d := range deliveries {
		h.deliveries.Store(d.Message.ID, d)
	}
	return deliveries, err
}

func (h *hand) acknowledge(ctx context.Context, id string) error {
	d, there := h.deliveries.LoadAndDelete(id)
	if !there {
		return nil
	}
	return h.Source.Settle(ctx, []broker.Settlement{{Delivery: d.(*broker.Delivery), Action: broker.Ack}})
}
