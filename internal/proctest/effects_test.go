package proctest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/dbtest"
)

// provider sells labels, in the parent.
type provider struct {
	*httptest.Server
	knowsKeys bool

	mu     sync.Mutex
	byKey  map[string]string // the label of a key
	labels map[string]int    // how many were sold, by order
	hold   map[string]chan struct{}
	asked  chan string // orders whose request has arrived
}

func newProvider(t *testing.T, knowsKeys bool) *provider {
	t.Helper()
	p := &provider{
		knowsKeys: knowsKeys, byKey: map[string]string{}, labels: map[string]int{}, hold: map[string]chan struct{}{}, asked: make(chan string, 10_000),
	}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var o order
	if err := json.Unmarshal(body, &o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/")
	p.mu.Lock()
	label, known := p.byKey[key]
	if r.Method == http.MethodPost && (!known || !p.knowsKeys) {
		p.labels[o.ID]++
		label = fmt.Sprintf("label %d of %s", p.labels[o.ID], o.ID)
		p.byKey[key] = label
	}
	if n := p.labels[o.ID]; r.Method == http.MethodGet && n > 0 {
		label = fmt.Sprintf("label %d of %s", n, o.ID) // it can be searched
	}
	hold := p.hold[o.ID]
	p.mu.Unlock()
	p.asked <- o.ID
	if r.Method == http.MethodPost && o.DieAt == duringCall {
		time.Sleep(100 * time.Millisecond) // it has acted, and is asked no more
	}
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	_, _ = io.WriteString(w, label)
}

// wrong returns a line for each order that has not exactly one label.
func (p *provider) wrong(orders []order, allowed ...int) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range orders {
		if n := p.labels[o.ID]; !slices.Contains(allowed, n) {
			lines = append(lines, fmt.Sprintf("%s (%s): %d labels", o.ID, o.DieAt, n))
		}
	}
	return lines
}

// deaths: a process dies at every boundary of an effect. Each order has one
// label; or, where what is unknown is parked, one or none and a parked row.
func deaths(t *testing.T, s *shop, at place, workers int) {
	for _, recovery := range []string{"repeat", "lookup", "park"} {
		t.Run(recovery, func(t *testing.T) {
			seller := newProvider(t, recovery == "repeat")
			var orders []order
			for i := range 4 * len(boundaries) {
				id := fmt.Sprintf("%s-%02d", recovery, i)
				o := order{ID: id, Entity: id, Seq: i}
				if i%2 == 0 {
					o.DieAt = boundaries[i/2%len(boundaries)]
				}
				orders = append(orders, o)
			}
			at.publish(t, orders...)
			do := task{
				Consumer: "shop", Database: s.db.URL, Broker: at.broker, Topic: at.topic, Instance: "one", Workers: workers,
				Recovery: recovery, Provider: seller.URL, Marks: t.TempDir(),
			}
			m, died := start(t, do), 0
			const settled = `SELECT (SELECT COUNT(DISTINCT id) FROM effects WHERE id LIKE '%s-%%') + (SELECT COUNT(*) FROM dead_letters WHERE status = 'waiting' AND message_key LIKE '%s-%%')`
			s.await(2*time.Minute, len(orders), fmt.Sprintf(settled, recovery, recovery), func() {
				select {
				case <-m.ended:
					died++
					m = start(t, do)
				default:
				}
			})
			m.stop()
			// What was beside one that died may be parked before its own turn; and
			// one may die at the very end.
			want, least := 2*len(boundaries), 2*len(boundaries)-1
			if recovery == "park" {
				least = 2
			}
			if died < least || died > want {
				t.Errorf("%d processes died, want %d", died, want)
			}
			allowed := []int{1}
			if recovery == "park" {
				allowed = []int{0, 1}
			}
			if lines := seller.wrong(orders, allowed...); len(lines) > 0 {
				t.Errorf("labels: %q", lines)
			}
			if twice := s.texts(fmt.Sprintf(`SELECT id FROM effects WHERE id LIKE '%s-%%' GROUP BY id HAVING COUNT(*) > 1`, recovery)); len(twice) > 0 {
				t.Errorf("shipped twice: %q", twice)
			}
			open := s.texts(`SELECT ` + s.words("message_key", "effect_name", "state") +
				` FROM external_effects WHERE state <> 'succeeded' AND message_key LIKE '` + recovery + `-%'`)
			for _, o := range orders {
				parks := slices.Contains([]string{afterRow, duringCall, afterCall}, o.DieAt)
				if recovery == "park" && parks && !slices.Contains(open, o.ID+" label parked") {
					t.Errorf("%s died %q and is not parked: %q", o.ID, o.DieAt, open)
				}
			}
			if slices.ContainsFunc(open, func(line string) bool { return !strings.HasSuffix(line, " label parked") }) {
				t.Errorf("neither succeeded nor parked: %q", open)
			}
			if recovery != "park" && len(open) > 0 {
				t.Errorf("not succeeded: %q", open)
			}
		})
	}
}

func TestDeathAtEveryBoundaryOfAnEffectOnSQLite(t *testing.T) {
	t.Parallel()
	b := membroker.New(membroker.Options{AckWait: time.Minute})
	deaths(t, newShop(t, dbtest.SQLite(t)), place{broker: serve(t, b, "shop"), publisher: b, publishTo: "orders"}, 1)
}
