//go:build !fast

package runtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/kafkatest"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/internal/rabbittest"
)

const folder = "../../../examples/run"

// newExample returns a database with the tables of the examples.
func newExample(t *testing.T, db *dbtest.DB) *shop {
	t.Helper()
	s := &shop{t, db}
	text, err := os.ReadFile(filepath.Join(folder, "tables.sql"))
	if err != nil {
		t.Fatal(err)
	}
	for q := range strings.SplitSeq(string(text), ";\n") {
		if strings.TrimSpace(q) != "" {
			s.exec(q)
		}
	}
	return s
}

// runs runs an example.
func runs(t *testing.T, s *shop, file string, env ...string) *process {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sekali.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, append(env, "DATABASE_URL="+s.db.URL), dir)
}

// texts returns the rows of one column, in order.
func (s *shop) texts(query string) (all []string) {
	s.t.Helper()
	rows, err := s.db.SQL.Query(query)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}

func (s *shop) says(query string, want ...string) {
	s.t.Helper()
	if got := s.texts(query); !slices.Equal(got, want) {
		s.t.Errorf("%s: %q, want %q", query, got, want)
	}
}

func order(id string, body map[string]any) message { return message{id, body} }

func TestTheExampleOfStockOnSQLite(t *testing.T) {
	t.Parallel()
	s, listen := newExample(t, dbtest.SQLite(t)), freeAddress(t)
	p := runs(t, s, "embedded-sqlite.yaml", "BROKER_LISTEN="+listen)
	paid := order("1", map[string]any{"type": "paid", "sku": "KOPI-250", "quantity": 5})
	produce(t, "nats://"+listen, "orders.new", []message{
		paid, paid, order("2", map[string]any{"type": "paid", "sku": "KOPI-250"}), order("3", map[string]any{"type": "sent"}),
	})()
	s.await(`SELECT COUNT(*) FROM processed_messages`, 3)
	p.term()
	s.says(`SELECT quantity FROM stock`, "994")
}

func TestTheExampleOfPaymentsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	url := kafkatest.URL(t)
	payments, booked := kafkatest.TopicAt(t, url, 2, nil), kafkatest.TopicAt(t, url, 1, nil)
	s := newExample(t, dbtest.Postgres(t))
	p := runs(t, s, "kafka-postgres.yaml", "BROKER_URL="+url, "PAYMENTS_TOPIC="+payments, "BOOKED_TOPIC="+booked, "GROUP="+payments)
	payment := func(id, amount string) message {
		return message{id, map[string]any{"sku": "acc-1", "payment": map[string]any{
			"id": id, "account": "acc-1", "amount": number(amount), "at": "2026-01-02T03:04:05Z",
		}}}
	}
	produce(t, url, payments, []message{
		payment("a", "12345678901234567890.12"), payment("a", "12345678901234567890.12"), payment("b", "0.10"), payment("a", "7"),
	})()
	s.await(`SELECT COUNT(*) FROM dead_letters WHERE reason = 'conflict'`, 1)
	s.await(`SELECT COUNT(*) FROM outbox_messages WHERE status = 'published'`, 2)
	p.term()
	s.says(`SELECT amount::text FROM ledger ORDER BY amount`, "0.10", "12345678901234567890.12")
	s.says(`SELECT to_char(booked_at, 'YYYY-MM-DD HH24:MI:SS') FROM ledger LIMIT 1`, "2026-01-02 03:04:05")
	s.says(`SELECT convert_from(body, 'UTF8') FROM outbox_messages ORDER BY message_id`,
		`{"amount":12345678901234567890.12,"payment":"a"}`, `{"amount":0.1,"payment":"b"}`)
}

// number is one of JSON as it is written.
type number string

func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

func TestTheExampleOfLabelsOnMariaDB(t *testing.T) {
	t.Parallel()
	url, queue := rabbittest.URL(t), rabbittest.Name()
	rabbittest.Remove(t, rabbittest.Connect(t), queue)
	var mu sync.Mutex
	sold := map[string]string{}
	courier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key") + r.Header.Get("Authorization") + r.URL.Path + string(body)
		if sold[key] == "" {
			sold[key] = fmt.Sprintf("PX-%d", len(sold)+1)
		}
		fmt.Fprintf(w, `{"no":%q}`, sold[key])
	}))
	t.Cleanup(courier.Close)
	s := newExample(t, dbtest.MySQL(t))
	p := runs(t, s, "rabbitmq-mariadb.yaml", "BROKER_URL="+url, "ORDERS_QUEUE="+queue, "COURIER_URL="+courier.URL, "COURIER_TOKEN=secret-token")
	paid := order("1", map[string]any{"type": "paid", "order": "o/1", "sku": "KOPI-250"})
	produce(t, url, queue, []message{paid, paid, order("2", map[string]any{"type": "sent", "order": "o2"}), order("3", map[string]any{"type": "paid"})})()
	s.await(`SELECT COUNT(*) FROM processed_messages`, 2)
	s.await(`SELECT COUNT(*) FROM dead_letters`, 1)
	p.term()
	s.says(`SELECT CONCAT(order_id, ' ', label) FROM shipments`, "o/1 PX-1")
	if len(sold) != 1 {
		t.Errorf("sold: %v", sold)
	}
	if strings.Contains(p.said(), "secret-token") {
		t.Errorf("the log shows the token: %s", p.said())
	}
}

func TestTheExampleOfPricesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	url := natstest.RealURL(t)
	stream := "TEST_" + strings.ToUpper(strings.ReplaceAll(rabbittest.Name(), "-", "_"))
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := js.DeleteStream(ctx, stream); err != nil {
			t.Error(err)
		}
	})
	s := newExample(t, dbtest.Postgres(t))
	p := runs(t, s, "nats-postgres.yaml", "BROKER_URL="+url, "PRICES_STREAM="+stream)
	price := func(version int, price string) message {
		return message{fmt.Sprint(version), map[string]any{"sku": "KOPI-250", "version": version, "price": number(price)}}
	}
	produce(t, url, stream+".new", []message{price(1, "10.5"), price(3, "12.25"), price(2, "11")})()
	s.await(`SELECT COUNT(*) FROM processed_messages`, 3)
	p.term()
	s.says(`SELECT price::text || ' ' || version FROM prices`, "12.2500 3")
}
