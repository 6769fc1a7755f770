package sekalitest

import (
	"context"
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
}

// each is breaks for what nothing is kept of.
func each(f func(cfg *shop, db *sql.DB)) func() func(*shop, *sql.DB) {
	return func() func(*shop, *sql.DB) { return f }
}

var brokens = []broken{
	{"the key is the time of publication", each(func(cfg *shop, _ *sql.DB) {
		cfg.Key = func(m *sekali.Message) (string, error) { return m.PublishedAt.String(), nil }
	}), []string{"twice in a row", "late"}},
	{"the key is the broker's position", each(func(cfg *shop, _ *sql.DB) {
		cfg.Key = sekali.MessageID()
	}), []string{"twice in a row", "late"}},
	{"processed keys are kept in memory", each(func(cfg *shop, _ *sql.DB) {
		cfg.Store = &remembering{Store: cfg.Store, keys: map[string]bool{}}
	}), []string{"at once, 2 consumers", "at once, 8 consumers", "crash after the commit", "crash before the ack", "restart", "late"}},
	{"only the last key is remembered", each(func(cfg *shop, db *sql.DB) {
		cfg.Store = forgetting{cfg.Store, db}
	}), []string{"once", "twice in a row"}},
	{"check, then insert", each(func(cfg *shop, _ *sql.DB) {
		cfg.Store = checking{cfg.Store}
	}), []string{"at once, 2 consumers", "at once, 8 consumers"}},
	{"the claim is committed before the handler", each(func(cfg *shop, _ *sql.DB) {
		cfg.Store = committing{Store: cfg.Store, undo: true}
	}), []string{"crash after the claim", "crash after the handler"}},
	{"acknowledged when it is received", each(func(cfg *shop, _ *sql.DB) {
		cfg.Source = hasty{cfg.Source}
	}), []string{"crash after the claim", "crash after the handler"}},
	{"the effect comes after the commit", each(func(cfg *shop, db *sql.DB) {
		cfg.Handle = func(context.Context, *sql.Tx, *sekali.Message) error { return nil }
		cfg.Observer = finisher(func(m *sekali.Message) {
			o, _ := orderOf(m)
			_ = moveStock(context.Background(), db, o)
		})
	}), []string{"crash after the commit", "cancelled at every statement"}},
	{"the effect comes with the ack", each(func(cfg *shop, db *sql.DB) {
		source := &settling{Source: cfg.Source, db: db, fresh: map[string]bool{}}
		cfg.Source = source
		cfg.Handle = func(_ context.Context, _ *sql.Tx, m *sekali.Message) error {
			source.fresh[m.ID] = true
			return nil
		}
	}), []string{"crash after the commit", "crash before the ack", "cancelled at every statement", "poison neighbour", "redrive"}},
	{"a second attempt does nothing", each(func(cfg *shop, _ *sql.DB) {
		handle, tried := cfg.Handle, map[string]bool{}
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			if tried[m.ID] {
				return nil
			}
			tried[m.ID] = true
			return handle(ctx, tx, m)
		}
	}), []string{"handler error then success", "panic", "cancelled at every statement", "poison neighbour", "redrive"}},
	{"errors of statements are swallowed", each(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			_ = handle(ctx, tx, m)
			return nil
		}
	}), []string{"cancelled at every statement"}},
	{"a redriven message is taken for done", each(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
			if m.Letter() != 0 {
				return nil
			}
			return handle(ctx, tx, m)
		}
	}), []string{"redrive"}},
	{"the consumer's name changes with each start", func() func(*shop, *sql.DB) {
		starts := 0
		return func(cfg *shop, _ *sql.DB) {
			starts++
			cfg.Name = fmt.Sprint("stock-", starts)
		}
	}, []string{"at once, 2 consumers"}},
	{"half of the work of a batch", each(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = nil
		cfg.HandleBatch = func(ctx context.Context, tx *sql.Tx, all []*sekali.Message) error {
			for i, m := range all {
				if err := handle(ctx, tx, m); err != nil {
					return &store.FailedAt{Index: i, Err: err}
				}
			}
			return nil
		}
		cfg.Key = func(m *sekali.Message) (string, error) { return "", errors.New("no key") }
	}), []string{"once"}},
}

func TestEachBrokenConsumerIsCaught(t *testing.T) {
	for _, b := range brokens {
		t.Run(b.name, func(t *testing.T) {
			caught := caughtBy(t, shopCase2(b.breaks))
			if !slices.Equal(caught, b.caught) {
				t.Errorf("caught by %q, want %q", caught, b.caught)
			}
		})
	}
}

func shopCase2(breaks func() func(cfg *shop, db *sql.DB)) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] { return shopCase(breaks())(t) }
}

// caughtBy returns the names of the deliveries that fail, without random ones.
func caughtBy[Tx any](t *testing.T, world func(testing.TB) Case[Tx]) (names []string) {
	s := newSuite(t, world)
	for _, d := range s.deliveries() {
		if strings.HasPrefix(d.name, "any history") {
			continue
		}
		if f := s.try(t, d.history); f != nil {
			names = append(names, d.name)
			t.Logf("%s: %s\n%s", d.name, strings.Join(f.wrong, "; "), strings.Join(f.trace, "\n"))
		}
		if s.hopeless {
			break
		}
	}
	return names
}

// remembering keeps claims in memory.
type remembering struct {
	store.Store[*sql.Tx]
	mu   sync.Mutex
	keys map[string]bool
}

func (r *remembering) Unwrap() any { return r.Store }

func (r *remembering) Begin(ctx context.Context, c store.Claim) (*sql.Tx, []store.State, error) {
	own := c
	own.Keys = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	states := make([]store.State, len(c.Keys))
	for i, k := range c.Keys {
		if r.keys[k.Raw] {
			states[i] = store.Duplicate
		}
		own.Keys = append(own.Keys, store.Key{Raw: fmt.Sprintf("%s %p %d", k.Raw, r, len(r.keys))})
	}
	tx, _, err := r.Store.Begin(ctx, own)
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

// committing commits the claim before the handler runs, and takes it back when
// that fails.
type committing struct {
	store.Store[*sql.Tx]
	undo bool
}

func (c committing) Unwrap() any { return c.Store }

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

// settling has the effect when a message is acknowledged.
type settling struct {
	broker.Source
	db    *sql.DB
	fresh map[string]bool
}

func (s *settling) Unwrap() any { return s.Source }

func (s *settling) Settle(ctx context.Context, batch []broker.Settlement) error {
	if err := s.Source.Settle(ctx, batch); err != nil {
		return err
	}
	for _, x := range batch {
		m := &sekali.Message{Message: x.Delivery.Message}
		if o, err := orderOf(m); err == nil && s.fresh[m.ID] {
			if err := moveStock(ctx, s.db, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// finisher calls itself when a message is processed.
type finisher func(m *sekali.Message)

func (f finisher) Observe(e sekali.Event) {
	if e.Kind == sekali.Finished && e.Outcome == sekali.Processed {
		f(e.Message)
	}
}
