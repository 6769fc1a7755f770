//go:build !fast

package runtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/kafkatest"
	"github.com/sekali/sekali/internal/rabbittest"
)

// A shop: stock is taken, and each order is noted. Nothing keeps an order from
// being noted twice but Sekali.
const handler = `
key: {header: idempotency-key}
workers: 1
batch: {size: 5}
when: body.type == "paid"
handle:
  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
    rows: 1
  - sql: INSERT INTO taken (id, sku, n) VALUES (:id, :sku, :n)
    params: {id: key, sku: body.sku, n: body.n}
drain_timeout: 20s
`

const (
	orders    = 1200
	perhaps   = 120 // of them are for a sku that is not there yet
	unrelated = 200
	inStock   = 1_000_000
)

// feed makes the messages, a third of them twice or three times, and what is to
// be taken of each sku.
func feed() (all []message, want map[string]int) {
	want = map[string]int{}
	chance := rand.New(rand.NewPCG(1, 2))
	for i := range orders {
		sku, n := fmt.Sprintf("SKU-%d", i%10), 1+i%5
		if i < perhaps {
			sku = "LATE"
		}
		want[sku] += n
		m := message{fmt.Sprintf("order-%05d", i), map[string]any{"type": "paid", "sku": sku, "n": n}}
		all = append(all, m)
		for range chance.IntN(3) / 2 * (1 + chance.IntN(2)) {
			all = append(all, m)
		}
	}
	for i := range unrelated {
		all = append(all, message{fmt.Sprintf("other-%05d", i), map[string]any{"type": "sent", "sku": "SKU-1"}})
	}
	chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, want
}

// shop is the database.
type shop struct {
	t  *testing.T
	db *dbtest.DB
}

func newShop(t *testing.T, db *dbtest.DB) *shop {
	t.Helper()
	s := &shop{t, db}
	s.exec(`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`)
	s.exec(`CREATE TABLE taken (id VARCHAR(40) NOT NULL, sku VARCHAR(20) NOT NULL, n INT NOT NULL)`)
	for i := range 10 {
		s.exec(fmt.Sprintf(`INSERT INTO stock VALUES ('SKU-%d', %d)`, i, inStock))
	}
	return s
}

func (s *shop) exec(query string) {
	s.t.Helper()
	if _, err := s.db.SQL.Exec(query); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) count(query string) (n int) {
	s.t.Helper()
	if err := s.db.SQL.QueryRow(query).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// await waits until a query counts so many. The database tells nobody when.
func (s *shop) await(query string, want int) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if n := s.count(query); n >= want {
			return
		} else if time.Now().After(end) {
			s.t.Fatalf("%s: %d, want %d", query, n, want)
		}
	}
}

// exact checks that every order was taken once, and that stock says the same.
func (s *shop) exact(want map[string]int, skus []string) {
	s.t.Helper()
	if n := s.count(`SELECT COUNT(*) FROM (SELECT id FROM taken GROUP BY id HAVING COUNT(*) > 1) AS twice`); n != 0 {
		s.t.Errorf("%d orders were taken more than once", n)
	}
	for _, sku := range skus {
		left := s.count(`SELECT quantity FROM stock WHERE sku = '` + sku + `'`)
		noted := s.count(`SELECT COALESCE(SUM(n), 0) FROM taken WHERE sku = '` + sku + `'`)
		if inStock-left != want[sku] || noted != want[sku] {
			s.t.Errorf("%s: %d are gone and %d noted, want %d", sku, inStock-left, noted, want[sku])
		}
	}
}

// plays has producers, kills, stops, duplicates and a redrive.
func plays(t *testing.T, db *dbtest.DB, source, url, topic string) {
	s := newShop(t, db)
	folder := t.TempDir()
	file := "consumer: stock-service\n" + source + "database: ${SHOP_DATABASE}\n" + handler
	if err := os.WriteFile(filepath.Join(folder, "sekali.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"SHOP_DATABASE=" + db.URL, "SHOP_BROKER=" + url}
	if out := command(t, env, "run", "--check", "-c", filepath.Join(folder, "sekali.yaml")); !strings.Contains(out, "nothing is wrong") {
		t.Fatal(out)
	}
	all, want := feed()
	p := start(t, env, folder)
	produced := produce(t, url, topic, all)
	const taken = `SELECT COUNT(*) FROM taken`
	inTheMiddle := 0
	for i, at := range []int{50, 250, 450, 650} {
		s.await(taken, at)
		if s.count(taken) < orders-perhaps {
			inTheMiddle++
		}
		if i%2 == 0 {
			p.kill()
		} else {
			p.term()
		}
		p = start(t, env, folder)
	}
	produced()
	if inTheMiddle < 2 {
		t.Errorf("%d of the ends came in the middle of the work: it shows nothing", inTheMiddle)
	}
	s.await(taken, orders-perhaps)
	s.await(`SELECT COUNT(*) FROM processed_messages`, orders-perhaps+unrelated)
	s.await(`SELECT COUNT(*) FROM dead_letters`, perhaps)
	var there []string
	for _, sku := range slices.Sorted(maps.Keys(want)) {
		if sku != "LATE" {
			there = append(there, sku)
		}
	}
	s.exact(want, there)

	s.exec(fmt.Sprintf(`INSERT INTO stock VALUES ('LATE', %d)`, inStock))
	command(t, env, "deadletters", "redrive", "--consumer", "stock-service", "--yes", "--database", db.URL)
	s.await(taken, orders-perhaps/2)
	p.kill()
	p = start(t, env, folder)
	s.await(taken, orders)
	s.await(`SELECT COUNT(*) FROM dead_letters WHERE status = 'processed'`, perhaps)
	p.term()
	s.exact(want, append(there, "LATE"))
	if n := s.count(`SELECT COUNT(*) FROM processed_messages`); n != orders+unrelated {
		t.Errorf("%d keys, want %d", n, orders+unrelated)
	}
	if strings.Contains(p.said(), "sekali:sekali@") {
		t.Errorf("the log shows a password: %s", p.said())
	}
}

func TestPostgreSQLWithKafkaIsExact(t *testing.T) {
	t.Parallel()
	url := kafkatest.URL(t)
	topic := kafkatest.TopicAt(t, url, 4, nil)
	plays(t, dbtest.Postgres(t), "source: {url: \"${SHOP_BROKER}\", topics: "+topic+", group: "+topic+", session_timeout: 2s}\n", url, topic)
}

func TestMariaDBWithRabbitMQIsExact(t *testing.T) {
	t.Parallel()
	url := rabbittest.URL(t)
	queue := rabbittest.Name()
	rabbittest.Remove(t, rabbittest.Connect(t), queue)
	plays(t, dbtest.MySQL(t), "source: {url: \"${SHOP_BROKER}\", queue: "+queue+", declare: quorum, prefetch: 50}\n", url, queue)
}

func TestSQLiteWithTheEmbeddedBrokerIsExact(t *testing.T) {
	t.Parallel()
	listen := freeAddress(t)
	plays(t, dbtest.SQLite(t), `source:
  url: nats://embedded
  stream: ORDERS
  subjects: orders.>
  directory: broker
  listen: `+listen+`
  ack_wait: 2s
`, "nats://"+listen, "orders.paid")
}
