// Package rabbittest gives tests a RabbitMQ: the real server that the
// environment names, queues of their own on it, and connections that can be
// cut.
//
// Files with tests that need the server bear the build constraint !fast.
package rabbittest

import (
	"crypto/rand"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// realURL is the environment's variable with the URL of a real server.
	realURL = "SEKALI_TEST_RABBITMQ_URL"
	// without names the servers that scripts/services could not get here. The
	// run's last lines tell of them, and CI fails.
	without = "SEKALI_TEST_WITHOUT"
)

// URL returns the URL of the real server that tests are to use,
// rabbitmq://user:password@host:port/vhost. The test fails where there is none;
// it is skipped only where SEKALI_TEST_WITHOUT says that this machine cannot
// have one.
func URL(t testing.TB) string {
	t.Helper()
	raw := os.Getenv(realURL)
	if raw == "" && slices.Contains(strings.Fields(os.Getenv(without)), "rabbitmq") {
		t.Skipf("not run: it needs a real RabbitMQ, and %s says that this machine cannot have one: set %s to a server of yours", without, realURL)
	}
	if raw == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Debian's packages or Docker) and"+
			" `eval \"$(scripts/services env)\"`; or set it to the URL of a server of yours, rabbitmq://user:password@host:5672/", realURL)
	}
	if !strings.HasPrefix(raw, "rabbitmq://") {
		// Not the URL itself: it may hold a password.
		t.Fatalf("the URL of the RabbitMQ for tests does not begin with rabbitmq://: set %s so", realURL)
	}
	return raw
}

// Name returns a name that nobody else has.
func Name() string { return "test-" + strings.ToLower(rand.Text()) }

// Connect returns a connection that is closed at the end of the test.
func Connect(t testing.TB) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(strings.Replace(URL(t), "rabbitmq://", "amqp://", 1))
	if err != nil {
		t.Fatalf("connect to RabbitMQ: %v", err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(10 * time.Second)) })
	return conn
}

// Channel opens a channel that is closed at the end of the test.
func Channel(t testing.TB, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatalf("open a channel: %v", err)
	}
	return ch
}

// Queue makes a durable queue of the test's own, of a kind ("quorum" or
// "classic") and with arguments besides, and returns its name. It is deleted
// at the end of the test, unless the test has deleted it.
func Queue(t testing.TB, conn *amqp.Connection, kind string, arguments amqp.Table) string {
	t.Helper()
	name := Name()
	Declare(t, conn, name, kind, arguments)
	Remove(t, conn, name)
	return name
}

// Declare makes a queue of a given name, which stays.
func Declare(t testing.TB, conn *amqp.Connection, name, kind string, arguments amqp.Table) {
	t.Helper()
	all := amqp.Table{amqp.QueueTypeArg: kind}
	for k, v := range arguments {
		all[k] = v
	}
	ch := Channel(t, conn)
	defer ch.Close()
	if _, err := ch.QueueDeclare(name, true, false, false, false, all); err != nil {
		t.Fatalf("make the queue %s: %v", name, err)
	}
}

// Delete deletes a queue now, with what is in it.
func Delete(t testing.TB, conn *amqp.Connection, name string) {
	t.Helper()
	ch := Channel(t, conn)
	defer ch.Close()
	if _, err := ch.QueueDelete(name, false, false, false); err != nil {
		t.Errorf("delete the queue %s: %v", name, err)
	}
}

// Remove deletes a queue at the end of the test, if it is there.
func Remove(t testing.TB, conn *amqp.Connection, name string) {
	t.Cleanup(func() { Delete(t, conn, name) })
}

// Messages returns how many messages wait in a queue, those not counted that
// somebody has in hand.
func Messages(t testing.TB, conn *amqp.Connection, name string) int {
	t.Helper()
	ch := Channel(t, conn)
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil {
		t.Fatalf("look at the queue %s: %v", name, err)
	}
	return q.Messages
}

// Wires are connections that can be cut. The zero value is ready.
type Wires struct {
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
}

// Dial is for the client library's Config.
func (w *Wires) Dial(network, addr string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return nil, net.ErrClosed
	}
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	w.conns = append(w.conns, c)
	return c, c.SetDeadline(time.Now().Add(10 * time.Second))
}

// Client returns settings of the client library that dial by w.
func (w *Wires) Client() amqp.Config { return amqp.Config{Dial: w.Dial} }

// Cut breaks the connections that there are, without a word.
func (w *Wires) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut()
}

// Kill breaks them and refuses further ones, as the death of a process does.
func (w *Wires) Kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	w.cut()
}

func (w *Wires) cut() {
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}
