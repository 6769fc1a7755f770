package sekalitest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store"
)

// broken is a way to break the shop, and the deliveries that catch it. breaks
// is called once a world, and what it returns for each process.
type broken struct {
	name   string
	breaks func() func(cfg *shop, db *sql.DB)
	caught []string // in the order in which they are played
	luck   []string // those that catch it if processes share the work
}

// each is breaks for what nothing is kept of.
func each(f func(cfg *shop, db *sql.DB)) func() func(*shop, *sql.DB) {
	return func() func(*shop, *sql.DB) { return f }
}

var brokens = []broken{
	{"the key is the time of publication", each(func(cfg *shop, _ *sql.DB) {
		cfg.Key = func(m *sekali.Message) (string, error) { return m.PublishedAt.String(), nil }
	}), []string{"twice in a row", "late"}, nil},
	{"the key is the broker's position", each(func(cfg *shop, _ *sql.DB) {
		cfg.Key = sekali.MessageID()
	}), []string{"twice in a row", "late"}, nil},
	{"processed keys are kept in memory", each(func(cfg *shop, _ *sql.DB) {
		cfg.Store = &remembering{Store: cfg.Store, keys: map[string]bool{}}
	}), []string{"at once, 2 consumers", "at once, 8 consumers", "crash after the commit", "crash before the ack", "restart", "late"}, nil},
	{"only the last key is remembered", each(func(cfg *shop, db *sql.DB) {
		cfg.Store = forgetting{cfg.Store, db}
	}), []string{"twice in a row", "crash before the ack", "restart", "late"}, []string{"at once, 2 consumers", "at once, 8 consumers", "crash after the commit"}},
	{"check, then insert", each(func(cfg *shop, _ *sql.DB) {
		cfg.Store = checking{cfg.Store}
	}), []string{"at once, 2 consumers"}, []string{"at once, 8 consumers"}},
	{"the claim is committed before the handler", each(func(cfg *shop, db *sql.DB) {
		cfg.Store = committing{cfg.Store, db, new(sync.Mutex), map[*sql.Tx]store.Claim{}}
	}), []string{"crash after the claim", "crash after the handler"}, nil},
	{"acknowledged when it is received", each(func(cfg *shop, _ *sql.DB) {
		cfg.Source = hasty{cfg.Source}
	}), []string{"crash after the claim", "crash after the handler", "stop"}, nil},
	{"the effect comes after the commit", each(func(cfg *shop, db *sql.DB) {
		cfg.Handle = func(context.Context, *sql.Tx, *sekali.Message) error { return nil }
		cfg.Observer = finisher(func(m *sekali.Message) {
			o, _ := orderOf(m)
			_ = moveStock(context.Background(), db, o)
		})
	}), []string{"crash after the commit", "cancelled at every statement", "error at every statement", "panic at every statement"}, nil},
	{"a second attempt does nothing", each(func(cfg *shop, _ *sql.DB) {
		handle, tried := cfg.Handle, map[string]bool{}
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			if tried[m.ID] {
				return nil
			}
			tried[m.ID] = true
			return handle(ctx, tx, m)
		}
	}), []string{"handler error then success", "panic", "cancelled at every statement", "error at every statement", "panic at every statement", "poison neighbour", "redrive"}, nil},
	{"errors of statements are swallowed", each(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			_ = handle(ctx, tx, m)
			return nil
		}
	}), []string{"cancelled at every statement", "error at every statement"}, nil},
	{"a redriven message is taken for done", each(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			if m.Letter() != 0 {
				return nil
			}
			return handle(ctx, tx, m)
		}
	}), []string{"redrive"}, nil},
	{"the consumer's name changes with each start", func() func(*shop, *sql.DB) {
		starts := 0
		return func(cfg *shop, _ *sql.DB) {
			starts++
			cfg.Name = fmt.Sprint("stock-", starts)
		}
	}, []string{"at once, 2 consumers", "at once, 8 consumers", "crash after the commit", "crash before the ack", "stop", "redrive", "restart", "late"}, nil},
	{"no key is taken", each(func(cfg *shop, _ *sql.DB) {
		cfg.Key = sekali.Header("event-id")
	}), []string{"once"}, nil},
	{"nothing is done", each(func(cfg *shop, _ *sql.DB) {
		cfg.Handle = func(context.Context, *sql.Tx, *sekali.Message) error { return nil }
	}), []string{"once"}, nil},
	{"a lost ack forgets the key", each(func(cfg *shop, db *sql.DB) {
		cfg.Source = offended{cfg.Source, db}
	}), []string{"crash after the commit", "crash before the ack"}, nil},
	{"the stock is cached", func() func(*shop, *sql.DB) {
		return func(cfg *shop, _ *sql.DB) {
			cached := map[string]int{}
			cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
				o, _ := orderOf(m)
				if _, known := cached[o.SKU]; !known {
					var n int
					if err := tx.QueryRowContext(ctx, "SELECT quantity FROM stock WHERE sku = ?", o.SKU).Scan(&n); err != nil {
						return err
					}
					cached[o.SKU] = n
				}
				cached[o.SKU] -= o.Quantity
				if _, err := tx.ExecContext(ctx, "UPDATE stock SET quantity = ? WHERE sku = ?", cached[o.SKU], o.SKU); err != nil {
					return err
				}
				return moveStock(ctx, tx, order{Order: o.Order, SKU: "none", Quantity: o.Quantity})
			}
		}
	}, []string{"handler error then success", "panic", "cancelled at every statement", "error at every statement", "panic at every statement", "poison neighbour", "redrive"}, []string{"at once, 2 consumers", "at once, 8 consumers"}},
	{"written through the pool", each(func(cfg *shop, db *sql.DB) {
		cfg.Handle = func(ctx context.Context, _ *sql.Tx, m *sekali.Message) error {
			o, _ := orderOf(m)
			return moveStock(ctx, db, o)
		}
	}), []string{"once"}, nil},
}

// offended forgets the keys of what it could not acknowledge.
type offended struct {
	broker.Source
	db *sql.DB
}

func (o offended) Unwrap() any { return o.Source }

func (o offended) Settle(ctx context.Context, batch []broker.Settlement) error {
	err := o.Source.Settle(ctx, batch)
	if err != nil {
		_, e := o.db.ExecContext(ctx, "DELETE FROM processed_messages")
		err = errors.Join(err, e)
	}
	return err
}

func TestEachBrokenConsumerIsCaught(t *testing.T) {
	for _, b := range brokens {
		t.Run(b.name, func(t *testing.T) {
			caught := caughtBy(t, brokenCase(b.breaks))
			caught = slices.DeleteFunc(caught, func(name string) bool { return slices.Contains(b.luck, name) })
			if !slices.Equal(caught, b.caught) {
				t.Errorf("caught by %q, want %q", caught, b.caught)
			}
		})
	}
}

func brokenCase(breaks func() func(cfg *shop, db *sql.DB)) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] { return shopCase(breaks())(t) }
}

// caughtBy returns the names of the deliveries that fail, without random ones.
func caughtBy[Tx any](t *testing.T, world func(testing.TB) Case[Tx]) (names []string) {
	t.Helper()
	return caughtUntil(t, world, false)
}

// caughtUntil is caughtBy, up to the first if one is enough.
func caughtUntil[Tx any](t *testing.T, world func(testing.TB) Case[Tx], one bool) (names []string) {
	t.Helper()
	s := newSuite(t, world)
	for _, d := range s.deliveries() {
		if strings.HasPrefix(d.name, "any history") {
			continue
		}
		if f := s.play(t, d.history); f != nil {
			names = append(names, d.name)
			t.Logf("%s: %s\n%s", d.name, strings.Join(f.wrong, "; "), strings.Join(f.trace, "\n"))
		}
		if s.hopeless || one && len(names) > 0 {
			break
		}
	}
	return names
}

// remembering keeps claims in memory: what it does not remember is fresh.
type remembering struct {
	store.Store[*sql.Tx]
	mu   sync.Mutex
	keys map[string]bool
}

func (r *remembering) Unwrap() any { return r.Store }

func (r *remembering) Begin(ctx context.Context, c store.Claim) (*sql.Tx, []store.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make([]bool, len(c.Keys))
	for i, k := range c.Keys {
		known[i] = r.keys[k.Raw]
	}
	c.Force = !slices.Contains(known, true)
	tx, states, err := r.Store.Begin(ctx, c)
	if err == nil {
		for _, k := range c.Keys {
			r.keys[k.Raw] = true
		}
	}
	return tx, states, err
}

// forgetting remembers the key that it claimed last alone.
type forgetting struct {
	store.Store[*sql.Tx]
	db *sql.DB
}

func (f forgetting) Unwrap() any { return f.Store }

func (f forgetting) Commit(ctx context.Context, tx *sql.Tx) error {
	if err := f.Store.Commit(ctx, tx); err != nil {
		return err
	}
	_, err := f.db.ExecContext(ctx, "DELETE FROM processed_messages WHERE message_key < (SELECT max(message_key) FROM processed_messages)")
	return err
}

// checking looks whether a key is there, and claims it under another name if
// it is not.
type checking struct{ store.Store[*sql.Tx] }

func (k checking) Unwrap() any { return k.Store }

func (k checking) Begin(ctx context.Context, c store.Claim) (*sql.Tx, []store.State, error) {
	states, err := k.Seen(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	tx, _, err := k.Store.Begin(ctx, elsewhere(c))
	if err != nil {
		return nil, nil, err
	}
	for i, key := range c.Keys {
		if states[i] == store.Fresh {
			_, e := tx.ExecContext(ctx, "INSERT OR IGNORE INTO processed_messages (consumer_name, message_key) VALUES (?, ?)", c.Consumer, key.Raw)
			err = errors.Join(err, e)
		}
	}
	return tx, states, err
}

// elsewhere is a claim of keys that nobody has.
func elsewhere(c store.Claim) store.Claim {
	keys := make([]store.Key, len(c.Keys))
	for i, k := range c.Keys {
		keys[i].Raw = k.Raw + rand.Text()
	}
	c.Keys = keys
	return c
}

// committing commits the claim before the handler runs, and takes it back when
// that fails.
type committing struct {
	store.Store[*sql.Tx]
	db    *sql.DB
	mu    *sync.Mutex
	taken map[*sql.Tx]store.Claim
}

func (c committing) Unwrap() any { return c.Store }

func (c committing) Begin(ctx context.Context, claim store.Claim) (*sql.Tx, []store.State, error) {
	tx, states, err := c.Store.Begin(ctx, claim)
	if err == nil {
		err = c.Commit(ctx, tx)
	}
	if err != nil {
		return nil, nil, err
	}
	tx, _, err = c.Store.Begin(ctx, elsewhere(claim))
	c.mu.Lock()
	defer c.mu.Unlock()
	if states[0] == store.Fresh {
		c.taken[tx] = claim
	}
	return tx, states, err
}

func (c committing) Rollback(ctx context.Context, tx *sql.Tx) error {
	if err := c.Store.Rollback(ctx, tx); err != nil {
		return err
	}
	c.mu.Lock()
	claim := c.taken[tx]
	c.mu.Unlock()
	for _, k := range claim.Keys {
		if _, err := c.db.ExecContext(ctx, "DELETE FROM processed_messages WHERE message_key = ?", k.Raw); err != nil {
			return err
		}
	}
	return nil
}

// hasty acknowledges what it receives.
type hasty struct{ broker.Source }

func (h hasty) Unwrap() any { return h.Source }

func (h hasty) Receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	got, err := h.Source.Receive(ctx, most)
	var acks []broker.Settlement
	for _, d := range got {
		acks = append(acks, broker.Settlement{Delivery: d})
	}
	if len(acks) > 0 {
		err = errors.Join(err, h.Source.Settle(ctx, acks))
	}
	return got, err
}

func (h hasty) Settle(context.Context, []broker.Settlement) error { return nil }

// finisher calls itself when a message is processed.
type finisher func(m *sekali.Message)

func (f finisher) Observe(e sekali.Event) {
	if e.Kind == sekali.Finished && e.Outcome == sekali.Processed {
		f(e.Message)
	}
}
