package run_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is a database with stock, and a broker in memory.
type shop struct {
	t      *testing.T
	db     *dbtest.DB
	broker *membroker.Broker
}

func newShop(t *testing.T, db *dbtest.DB) *shop {
	t.Helper()
	s := &shop{t, db, membroker.New(membroker.Options{Lanes: 2})}
	for _, q := range []string{
		`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity DECIMAL(40, 10) NOT NULL)`,
		`CREATE TABLE done (id VARCHAR(40) NOT NULL, note VARCHAR(200))`,
		`INSERT INTO stock VALUES ('KOPI', 1000), ('TEH', 1000)`,
	} {
		s.exec(q)
	}
	return s
}

func (s *shop) exec(q string) {
	s.t.Helper()
	if _, err := s.db.SQL.Exec(q); err != nil {
		s.t.Fatal(err)
	}
}

// texts returns the rows of one column, sorted.
func (s *shop) texts(query string) []string {
	s.t.Helper()
	rows, err := s.db.SQL.Query(query)
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func (s *shop) publish(key, body string) {
	s.t.Helper()
	m := broker.Message{Topic: "orders", Body: []byte(body), Headers: broker.Headers{{Name: "key", Value: []byte(key)}}}
	if err := s.broker.Publish(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

const head = `
consumer: stock-service
source: {url: "kafka://127.0.0.1:1", topics: orders}
database: ${DATABASE}
key: {header: key}
workers: 2
retries: {attempts: 3, initial: 1ms, max: 5ms}
`

func (s *shop) load(text string) *run.Plan {
	s.t.Helper()
	plan, err := run.Load(head+text, func(name string) (string, bool) {
		return map[string]string{"DATABASE": s.db.URL}[name], name == "DATABASE"
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return plan
}

// run runs a file until all that was published is acknowledged, and then until
// done says so.
func (s *shop) run(text string, done func() bool) []string {
	s.t.Helper()
	plan := s.load(text)
	ctx, stop := context.WithTimeout(s.t.Context(), time.Minute)
	defer stop()
	seen := &watcher{changed: make(chan struct{}, 1)}
	result := make(chan error, 1)
	go func() {
		result <- run.Run(ctx, plan, run.Options{
			Source: s.broker.NewSource("stock-service"), Observer: seen, Log: slog.New(slog.DiscardHandler),
		})
	}()
	empty := make(chan error, 1)
	go func() { empty <- s.broker.WaitEmpty(ctx, "stock-service") }()
	select {
	case err := <-result:
		s.t.Fatalf("it ended: %v", err)
	case err := <-empty:
		if err != nil {
			s.t.Fatalf("%v: %v", err, seen.list())
		}
	}
	for done != nil && !done() {
		select {
		case <-seen.changed:
		case <-time.After(50 * time.Millisecond): // what the relay does is not told
		case <-ctx.Done():
			s.t.Fatalf("it is not done: %v", seen.list())
		}
	}
	stop()
	if err := <-result; err != nil {
		s.t.Fatalf("it failed: %v", err)
	}
	return seen.list()
}

// watcher remembers what became of messages.
type watcher struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{}
}

func (w *watcher) Observe(e sekali.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case sekali.Finished:
		w.lines = append(w.lines, e.Outcome.String()+" "+e.Message.Key())
	case sekali.DeadLettered:
		w.lines = append(w.lines, fmt.Sprintf("dead %s: %s: %v", e.Message.Key(), e.Reason, e.Err))
	case sekali.Interrupted:
		w.lines = append(w.lines, fmt.Sprintf("interrupted: %v", e.Err))
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sorted := slices.Clone(w.lines)
	slices.Sort(sorted)
	return sorted
}

// everywhere runs a test on each database.
func everywhere(t *testing.T, test func(t *testing.T, s *shop)) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) { test(t, newShop(t, open(t))) })
	}
}

func equal(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

const stock = `
when: body.type == "paid"
handle:
  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
    rows: 1
  - sql: INSERT INTO done (id, note) VALUES (:id, ':id') -- it's :id
    when: body.n > 1
    params: {id: key}
`

func TestStatementsHaveTheirEffectOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		for range 2 {
			s.publish("1", `{"type":"paid","n":1,"sku":"KOPI"}`)
			s.publish("2", `{"type":"paid","n":2,"sku":"KOPI"}`)
			s.publish("3", `{"type":"sent"}`)
		}
		s.publish("4", `{"type":"paid","n":2,"sku":"NOTHING"}`)
		s.publish("5", `{"type":"paid","sku":"KOPI"}`)
		s.publish("6", `no JSON`)
		seen := s.run(stock, nil)
		equal(t, s.texts(`SELECT id FROM done WHERE note = ':id'`), []string{"2"})
		equal(t, s.texts(`SELECT CAST(CAST(quantity AS DECIMAL(10)) AS CHAR(10)) FROM stock WHERE sku = 'KOPI'`), []string{pad(s, "997")})
		text := strings.Join(seen, "\n")
		for _, want := range []string{
			"processed 1", "duplicate 1", "processed 2", "duplicate 2", "processed 3", "duplicate 3",
			"dead 4: permanent: ", "changed 0 rows, and rows: wants 1", "dead 5: permanent: ", `no field "n"`, "handle[0].params.n (line 12 of the file)",
			"dead 6: permanent: ", "not JSON",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("nothing says %q:\n%s", want, text)
			}
		}
		equal(t, s.texts(`SELECT message_key FROM dead_letters`), []string{"4", "5", "6"})
	})
}

// pad is how a database writes a CHAR(10).
func pad(s *shop, text string) string {
	if s.db.Schema != "" && strings.HasPrefix(s.db.URL, "postgres") {
		return fmt.Sprintf("%-10s", text)
	}
	return text
}

func TestNoDigitOfMoneyIsLost(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		s.publish("1", `{"n": 12345678901234567.89}`)
		s.publish("2", `{"n": -98765432109876543210}`)
		s.publish("3", `{"n": 0.1}`)
		s.publish("4", `{"n": 9007199254740993}`)
		const add = "handle:\n  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = 'KOPI'\n    params: {n: body.n}\n"
		if strings.HasPrefix(s.db.URL, "sqlite") { // which has no such numbers: they are refused, not rounded
			seen := s.run(add, nil)
			if len(seen) != 4 || !strings.HasPrefix(seen[0], "dead 1: permanent") || !strings.HasPrefix(seen[1], "dead 2: permanent") {
				t.Errorf("%q", seen)
			}
			return
		}
		equal(t, s.run(add, nil), []string{"processed 1", "processed 2", "processed 3", "processed 4"})
		// 1000 - 12345678901234567.89 + 98765432109876543210 - 0.1 - 9007199254740993
		equal(t, s.texts(`SELECT CAST(quantity AS CHAR(60)) FROM stock WHERE sku = 'KOPI'`), []string{padTo(s, "98744079231720568649.0100000000", 60)})
	})
}

func padTo(s *shop, text string, n int) string {
	if strings.HasPrefix(s.db.URL, "postgres") {
		return fmt.Sprintf("%-*s", n, text)
	}
	return text
}

// courier sells labels; each key once.
func courier(t *testing.T) (*httptest.Server, func() map[string]int) {
	var mu sync.Mutex
	sold, calls := map[string]string{}, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		name := r.URL.EscapedPath() + "?" + r.URL.RawQuery + " " + string(body) + " " + r.Header.Get("Authorization")
		calls[name]++
		key := r.Header.Get("Idempotency-Key")
		if strings.Contains(r.URL.Path, "refused") {
			http.Error(w, "no such street", http.StatusBadRequest)
			return
		}
		if _, known := sold[key]; !known {
			sold[key] = fmt.Sprintf("PX-%d", len(sold)+1)
			panic(http.ErrAbortHandler) // it is sold, and nobody hears of it
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"no": sold[key], "price": json.Number("12345678901234567890.5")})
	}))
	server.Config.ErrorLog = nil
	t.Cleanup(server.Close)
	return server, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
}

func TestEffectsGoThroughTheLedgerAndTheirResultsIntoTheSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		server, calls := courier(t)
		for range 2 {
			s.publish("1", `{"order":"a/b?c","to":"Jl. 1"}`)
			s.publish("2", `{"order":"refused","to":"x"}`)
			s.publish("3", `{"order":"..","to":"x"}`)
			s.publish("4", `{"order":"d","to":"none"}`)
		}
		seen := s.run(`
effects:
  - name: label
    when: body.to != "none"
    url: `+server.URL+`/orders/{order}/label?to={to}
    params: {order: body.order, to: body.to}
    headers: {Authorization: Bearer abc}
    json: {order: body.order, big: "[1, body.order]"}
    repeat_for: 24h
handle:
  - sql: INSERT INTO done (id, note) VALUES (:id, :note)
    params:
      id: key
      note: 'has(effects.label) ? string(effects.label.status) + effects.label.body.no + string(effects.label.body.price) : "none"'
`, nil)
		equal(t, s.texts(`SELECT note FROM done`), []string{"200PX-112345678901234567890.5", "none"})
		for call, n := range map[string]int{
			`/orders/a%2Fb%3Fc/label?to=Jl.+1 {"big":[1,"a/b?c"],"order":"a/b?c"} Bearer abc`: 2,
			`/orders/refused/label?to=x {"big":[1,"refused"],"order":"refused"} Bearer abc`:   2, // once for each copy
		} {
			if got := calls()[call]; got != n {
				t.Errorf("%d calls of %s, want %d: %v", got, call, n, calls())
			}
		}
		if text := strings.Join(seen, "\n"); !strings.Contains(text, "dead 2: permanent") || !strings.Contains(text, "no such street") || !strings.Contains(text, "dead 3: permanent") {
			t.Error(text)
		}
		equal(t, s.texts(`SELECT state FROM external_effects`), []string{"failed", "failed", "succeeded"})
	})
}

func TestEventsAreInTheTransactionAndAreRelayed(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		for range 2 {
			s.publish("1", `{"n":1,"sku":"KOPI"}`)
			s.publish("2", `{"n":1,"sku":"NOTHING"}`)
			s.publish("3", `{"n":3,"sku":"TEH"}`)
		}
		s.run(`
handle:
  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
    rows: 1
publish:
  - topic: stock.taken
    key: body.sku
    id: '"taken-" + key'
    headers: {type: '"taken"'}
    json: {sku: body.sku, left: [body.n, "null"]}
  - topic: stock.many
    when: body.n > 2
    body: key
outbox: {relay: false}
`, nil)
		concat := `topic || ' ' || COALESCE(%s, '') || ' ' || %s`
		switch {
		case strings.HasPrefix(s.db.URL, "postgres"):
			concat = fmt.Sprintf(concat, "convert_from(ordering_key, 'UTF8')", "convert_from(body, 'UTF8')")
		case strings.HasPrefix(s.db.URL, "sqlite"):
			concat = fmt.Sprintf(concat, "CAST(ordering_key AS TEXT)", "CAST(body AS TEXT)")
		default:
			concat = "CONCAT(topic, ' ', COALESCE(ordering_key, ''), ' ', body)"
		}
		equal(t, s.texts(`SELECT `+concat+` FROM outbox_messages`), []string{
			"stock.many  3", `stock.taken KOPI {"left":[1,null],"sku":"KOPI"}`, `stock.taken TEH {"left":[3,null],"sku":"TEH"}`,
		})
		equal(t, s.texts(`SELECT message_id FROM outbox_messages WHERE topic = 'stock.taken'`), []string{"taken-1", "taken-3"})
	})
}

func TestOrderAndVersionComeFromExpressions(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		for i := range 20 {
			s.publish(fmt.Sprintf("%02d", i), fmt.Sprintf(`{"sku":"KOPI","v":%d}`, 100+(i*7)%20))
		}
		s.publish("x", `{"sku":"KOPI"}`)
		s.publish("y", `{"v":1}`)
		seen := s.run(`
order: body.sku
version: {entity: body.sku, version: body.v}
handle:
  - sql: INSERT INTO done (id, note) VALUES (:v, :id)
    params: {id: key, v: string(body.v)}
`, nil)
		highest, want := -1, []string{}
		for i := range 20 {
			if v := 100 + (i*7)%20; v > highest {
				highest = v
				want = append(want, fmt.Sprint(v))
			}
		}
		equal(t, s.texts(`SELECT id FROM done`), want)
		text := strings.Join(seen, "\n")
		if strings.Count(text, "stale") != 20-len(want) || !strings.Contains(text, "dead x: permanent") || !strings.Contains(text, "dead y: permanent") {
			t.Error(text)
		}
	})
}

func TestEveryStatementIsPreparedByTheDatabaseAtItsPlace(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		plan := s.load(`
handle:
  - sql: |
      UPDATE stock
      SET quantity = quantity - :n, nothing = :n
      WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
  - sql: SELEC 1
`)
		err := run.Check(t.Context(), plan)
		if err == nil {
			t.Fatal("nothing is wrong")
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "handle[0].sql") || !strings.Contains(lines[1], "handle[1].sql") {
			t.Errorf("%s", err)
		}
		if strings.HasPrefix(s.db.URL, "postgres") && (!strings.HasPrefix(lines[0], "line 12, column 37: ") || !strings.HasPrefix(lines[1], "line 15, column 10: ")) {
			t.Errorf("the places are wrong:\n%s", err)
		}
		s.exec(`DROP TABLE message_starts`)
		s.exec(`DROP TABLE dead_letters`)
		if err := run.Check(t.Context(), s.load(stock)); err == nil || !strings.Contains(err.Error(), "migrate up") || !strings.Contains(err.Error(), "line 4") {
			t.Errorf("dead_letters is not there, and it says %v", err)
		}
		if kind, err := dburl.KindOf(s.db.URL); err != nil || kind == "" {
			t.Fatal(err)
		}
	})
}

func TestOldRowsAreRemovedAsTheFileSays(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		s.publish("1", `{"n":1,"sku":"KOPI"}`)
		s.publish("2", `{"n":1,"sku":"KOPI"}`)
		const take = "handle:\n  - sql: UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI'\n"
		s.run(take, nil)
		s.exec(`UPDATE processed_messages SET processed_at = '2020-01-02 03:04:05' WHERE message_key = '1'`)
		left := func() []string { return s.texts(`SELECT message_key FROM processed_messages`) }
		s.run(take+"retention: {keep: 240h, max_duplicate_age: 24h, every: 1s}\n", func() bool { return len(left()) == 1 })
		equal(t, left(), []string{"2"})

		for policy, says := range map[string]string{
			"retention: {keep: 48h, max_duplicate_age: 24h}\n": "shorter time than a duplicate can travel", "retention: {keep: 240h}\n": "add max_duplicate_age",
		} {
			err := run.Run(t.Context(), s.load(take+policy), run.Options{Source: s.broker.NewSource("other"), Log: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "line 10, column 12: retention: ") {
				t.Errorf("%s: %v", policy, err)
			}
		}
	})
}
