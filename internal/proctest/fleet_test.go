package proctest

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/migrate"
)

// member is a child process.
type member struct {
	t       testing.TB
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	started chan struct{} // closed when it works
	ended   chan struct{} // closed when it is gone
	mu      sync.Mutex
	said    []string
	err     error
}

// start starts a child. It is ended with the test.
func start(t testing.TB, do task) *member {
	t.Helper()
	m := &member{t: t, started: make(chan struct{}), ended: make(chan struct{})}
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), childEnv+"=1")
	m.cmd.Stderr = os.Stderr
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.stdin, err = m.cmd.StdinPipe()
	}
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, _ := json.Marshal(do)
	_, _ = m.stdin.Write(append(line, '\n'))
	go func() {
		defer close(m.ended)
		scan := bufio.NewScanner(out)
		for scan.Scan() {
			if scan.Text() == "started" {
				close(m.started)
			}
			m.mu.Lock()
			m.said = append(m.said, scan.Text())
			m.mu.Unlock()
		}
		m.err = m.cmd.Wait()
	}()
	t.Cleanup(func() {
		m.signal(syscall.SIGKILL)
		<-m.ended
		if t.Failed() {
			t.Logf("a child said at last: %q", m.last(20))
		}
	})
	return m
}

func (m *member) signal(s syscall.Signal) {
	select {
	case <-m.ended:
	default:
		_ = m.cmd.Process.Signal(s)
	}
}

// kill kills it and waits for its end.
func (m *member) kill() {
	m.signal(syscall.SIGKILL)
	<-m.ended
}

// stop stops it in good order.
func (m *member) stop() {
	_ = m.stdin.Close()
	select {
	case <-m.ended:
	case <-time.After(30 * time.Second):
		m.t.Errorf("a child does not stop; it said %q", m.last(10))
		m.kill()
	}
}

// works waits until the child works, or is gone.
func (m *member) works() {
	select {
	case <-m.started:
	case <-m.ended:
	case <-time.After(30 * time.Second):
		m.t.Errorf("a child does not start; it said %q", m.last(10))
	}
}

func (m *member) last(n int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.said[max(0, len(m.said)-n):]...)
}

func (m *member) count(prefix string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, line := range m.said {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// place is a broker with a topic, for any number of children.
type place struct {
	broker, topic string
	publisher     broker.Publisher
	publishTo     string
}

// shop is a database with the table of effects.
type shop struct {
	t  testing.TB
	db *dbtest.DB
}

func newShop(t testing.TB, db *dbtest.DB) *shop {
	t.Helper()
	n, now := "BIGSERIAL", "TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()"
	switch db.Dialect {
	case migrate.SQLite:
		n, now = "INTEGER", "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
	case migrate.MySQL:
		n, now = "BIGINT AUTO_INCREMENT", "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
	}
	// No unique key: a doubled effect is to be seen, not refused.
	_, err := db.SQL.Exec(`CREATE TABLE effects (n ` + n + ` PRIMARY KEY, at ` + now +
		`, lane INT NOT NULL, entity VARCHAR(40) NOT NULL, seq INT NOT NULL, id VARCHAR(80) NOT NULL)`)
	if err != nil {
		t.Fatal(err)
	}
	return &shop{t, db}
}

func (s *shop) number(query string) (n int) {
	s.t.Helper()
	var v sql.NullInt64
	if err := s.db.SQL.QueryRow(query).Scan(&v); err != nil {
		s.t.Fatal(err)
	}
	return int(v.Int64)
}

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

// words is an expression for columns with blanks between them.
func (s *shop) words(columns ...string) string {
	if s.db.Dialect == migrate.MySQL {
		return "CONCAT_WS(' ', " + strings.Join(columns, ", ") + ")"
	}
	return strings.Join(columns, " || ' ' || ")
}

// exact fails the test unless each of n messages had its effect once.
func (s *shop) exact(n int) {
	s.t.Helper()
	all, distinct := s.number(`SELECT COUNT(*) FROM effects`), s.number(`SELECT COUNT(DISTINCT id) FROM effects`)
	if all != n || distinct != n {
		s.t.Errorf("%d effects of %d messages, want %d of each", all, distinct, n)
	}
}

// await waits until a query gives at least n.
func (s *shop) await(d time.Duration, n int, query string, also func()) {
	s.t.Helper()
	for end := time.Now().Add(d); s.number(query) < n; also() {
		if time.Now().After(end) {
			s.t.Fatalf("%s gives %d after %v, want %d", query, s.number(query), d, n)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// message is an order on its way to a place.
func (p place) message(o order) broker.Message {
	body, _ := json.Marshal(o)
	return broker.Message{
		Topic: p.publishTo, OrderingKey: []byte(o.Entity), Body: body,
		Headers: broker.Headers{{Name: "key", Value: []byte(o.ID)}},
	}
}

func (p place) publish(t testing.TB, orders ...order) {
	t.Helper()
	for len(orders) > 0 {
		n := min(len(orders), 500)
		var m []broker.Message
		for _, o := range orders[:n] {
			m = append(m, p.message(o))
		}
		if err := p.publisher.Publish(context.Background(), m...); err != nil {
			t.Fatal(err)
		}
		orders = orders[n:]
	}
}

// some makes n orders of as many entities, each of which takes a little time.
func some(n int) (all []order) {
	for i := range n {
		id := fmt.Sprintf("order-%04d", i)
		all = append(all, order{ID: id, Entity: id, Sleep: rand.IntN(10)})
	}
	return all
}
