package sekalitest

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// priced is a consumer of messages that carry the whole state of an entity.
func priced(breaks func(*shop)) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] {
		db := SQLite(t, "CREATE TABLE prices (sku TEXT PRIMARY KEY, price INTEGER NOT NULL)")
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) shop {
				cfg := newShop(db, source)
				cfg.Version = func(m *sekali.Message) (string, int64, bool) {
					o, _ := orderOf(m)
					var version int64
					_, err := fmt.Sscan(o.Order, &version)
					return o.SKU, version, err == nil
				}
				cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
					o, _ := orderOf(m)
					_, err := tx.ExecContext(ctx, "INSERT INTO prices VALUES (?, ?) ON CONFLICT DO UPDATE SET price = excluded.price", o.SKU, o.Quantity)
					return err
				}
				if breaks != nil {
					breaks(&cfg)
				}
				return cfg
			},
			Messages: shopMessages, // their orders are versions, their quantities prices
			Snapshot: Rows(db, "SELECT sku, price FROM prices ORDER BY sku"),
			AnyOrder: true,
		}
	}
}

// courier is a consumer with an effect outside the database.
func courier(breaks func(cfg *shop, url string)) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] { return courierWith(t, effect.Repeat(time.Hour), breaks) }
}

func courierWith(t testing.TB, recovery effect.Option, breaks func(cfg *shop, url string)) Case[*sql.Tx] {
	db, provider := SQLite(t, "CREATE TABLE labels (order_id TEXT, label TEXT)"), NewProvider(t)
	keys := sqlstore.New(db, sqlite.Dialect)
	ledger := effect.New(keys.Effects(), "courier", effect.Config{})
	client := httpeffect.Client(httpeffect.Config{MaxAttempts: 1})
	return Case[*sql.Tx]{
		Consumer: func(broker.Source) shop {
			cfg := shop{Name: "courier", Store: keys, Key: sekali.JSON("/order")}
			cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*sql.Tx], error) {
				o, _ := orderOf(m)
				label, err := effect.Do(ctx, ledger, m.Key(), "label", func(ctx context.Context, _ effect.Call) (string, error) {
					return labelFrom(ctx, client, provider.URL, o)
				}, recovery)
				return saveLabel(o, label), err
			}
			if breaks != nil {
				breaks(&cfg, provider.URL)
			}
			return cfg
		},
		Messages: shopMessages,
		Snapshot: Rows(db, "SELECT order_id, label FROM labels ORDER BY order_id"),
		Provider: provider,
	}
}

func labelFrom(ctx context.Context, client *http.Client, url string, o order) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(o.Order))
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the courier answered %s", resp.Status)
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

func saveLabel(o order, label string) sekali.Commit[*sql.Tx] {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO labels VALUES (?, ?)", o.Order, label)
		return err
	}
}

// direct calls the courier without a ledger. once: it makes no second call of
// a message in one process.
func direct(once bool) func(cfg *shop, url string) {
	return func(cfg *shop, url string) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		labels := map[string]string{}
		cfg.MaxPrepares = 1
		cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*sql.Tx], error) {
			o, _ := orderOf(m)
			label, known := labels[o.Order]
			if !known || !once {
				var err error
				if label, err = labelFrom(context.WithoutCancel(ctx), client, url, o); err != nil {
					return nil, err
				}
				labels[o.Order] = label
			}
			return saveLabel(o, label), nil
		}
	}
}

// unheard takes a courier's refusal for an answer.
func unheard(cfg *shop, _ string) {
	prepare := cfg.Prepare
	cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*sql.Tx], error) {
		commit, err := prepare(ctx, m)
		if ctx.Err() == nil && err != nil && strings.Contains(err.Error(), "503") {
			return nil, nil
		}
		return commit, err
	}
}

func TestCorrectConsumersOfVersionsAndEffectsPassEveryDelivery(t *testing.T) {
	t.Run("versions", func(t *testing.T) { Run(t, priced(nil)) })
	t.Run("effects", func(t *testing.T) { Run(t, courier(nil)) })
	t.Run("effects that are parked", func(t *testing.T) {
		Run(t, func(t testing.TB) Case[*sql.Tx] {
			return courierWith(t, effect.Park(), nil)
		})
	})
}

func TestBrokenConsumersOfVersionsAndEffectsAreCaught(t *testing.T) {
	mute := "provider acts without an answer"
	for name, c := range map[string]struct {
		world      func(testing.TB) Case[*sql.Tx]
		want, luck []string // luck: where it matters what is prepared, or in the same transaction, when it happens
	}{
		"the version is not looked at": {priced(func(cfg *shop) { cfg.Version = nil }), []string{"reversed"}, []string{"cancelled at every statement"}},
		"the courier is called without a ledger": {
			courier(direct(false)),
			[]string{"at once, 2 consumers", "at once, 8 consumers", "handler error then success", "panic", "redrive", "crash after Prepare", "provider slow", mute},
			[]string{"crash after the claim", "crash after the handler", "crash after the commit", "crash before the ack", "stop"},
		},
		"the courier is called once a process": {
			courier(direct(true)),
			[]string{"at once, 2 consumers", "at once, 8 consumers", "redrive", "crash after Prepare", "provider slow", mute},
			[]string{"crash after the claim", "crash after the handler", "crash after the commit", "crash before the ack", "stop"},
		},
		"a refusal is taken for done": {courier(unheard), []string{"provider refuses"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			caught := slices.DeleteFunc(caughtBy(t, c.world), func(name string) bool { return slices.Contains(c.luck, name) })
			if !slices.Equal(caught, c.want) {
				t.Errorf("caught by %q, want %q", caught, c.want)
			}
		})
	}
}
