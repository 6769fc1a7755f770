package sekalivet

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/migrate"
	_ "github.com/sekali/sekali/store/sqlstore/sqlite"
	mutant "github.com/sekali/sekali/testdata/mutants/00-correct"
)

// labels is a courier's server: one label for each idempotency key.
type labels struct {
	mu   sync.Mutex
	made map[string]string
}

func (l *labels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if l.made[key] == "" {
		l.made[key] = fmt.Sprintf("label %d", len(l.made)+1)
	}
	fmt.Fprint(w, l.made[key])
}

// What all mutants are compared with must itself be right: else the table says
// nothing.
func TestTheCorrectConsumerShipsEachOrderOnce(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := migrate.Up(t.Context(), db, migrate.SQLite); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), mutant.Schema); err != nil {
		t.Fatal(err)
	}
	courier := &labels{made: map[string]string{}}
	server := httptest.NewServer(courier)
	defer server.Close()
	orders := membroker.New(membroker.Options{AckWait: 30 * time.Second})
	cfg := mutant.New(db, orders.NewSource("shipping"), server.URL)
	cfg.Observer = sekali.LogTo(slog.New(slog.DiscardHandler))
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	for id, number := range []int{1, 2, 1, 2, 2} {
		body := fmt.Sprintf(`{"order":"%d","event":"paid","sku":"KOPI-250","quantity":%d}`, number, number)
		if err := orders.Publish(ctx, broker.Message{ID: fmt.Sprint(id), Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	err = orders.WaitEmpty(ctx, "shipping")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the consumer ended with %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var stock, shipments, different int
	err = db.QueryRowContext(t.Context(), `SELECT quantity, (SELECT count(*) FROM shipments), (SELECT count(DISTINCT order_id || label) FROM shipments) FROM stock`).
		Scan(&stock, &shipments, &different)
	if err != nil {
		t.Fatal(err)
	}
	if stock != 97 || shipments != 2 || different != 2 || len(courier.made) != 2 {
		t.Errorf("in stock %d, %d shipments (%d different), %d labels, instead of 97, 2 (2) and 2", stock, shipments, different, len(courier.made))
	}
}
