// Package redistest gives tests keys of their own on the real Redis that the
// environment names, and connections that can be cut.
//
// Files with tests that need the server bear the build constraint !fast.
package redistest

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// realURL is the environment's variable with the URL of a real server.
	realURL = "SEKALI_TEST_REDIS_URL"
	// without names the servers that scripts/services could not get here. The
	// run's last lines tell of them, and CI fails.
	without = "SEKALI_TEST_WITHOUT"
)

// patience is how long the server may take to answer.
const patience = 20 * time.Second

// URL returns the URL of the real server that tests are to use. The test fails
// where there is none; it is skipped only where SEKALI_TEST_WITHOUT says that
// this machine cannot have one.
func URL(t testing.TB) string {
	t.Helper()
	raw := os.Getenv(realURL)
	if raw == "" && slices.Contains(strings.Fields(os.Getenv(without)), "redis") {
		t.Skipf("not run: it needs a real Redis, and %s says that this machine cannot have one: set %s to a server of yours", without, realURL)
	}
	if raw == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Debian packages or Docker) and"+
			" `eval \"$(scripts/services env)\"`; or set it to the URL of a server of yours, redis://host:6379", realURL)
	}
	if _, err := redis.ParseURL(raw); err != nil {
		// Not the URL itself: it may hold a password.
		t.Fatalf("the URL of the Redis for tests is not redis://host:port: set %s so", realURL)
	}
	return raw
}

// Options returns the options of a client of the real server.
func Options(t testing.TB) *redis.Options {
	t.Helper()
	o, err := redis.ParseURL(URL(t))
	if err != nil {
		t.Fatal("URL has let a bad one pass")
	}
	return o
}

// Client returns a client of the real server. It is closed at the end of the
// test, before the test's keys are deleted.
func Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(Options(t))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Key returns the name of a key, of a stream say, that nobody else uses. What
// is there at the end of the test is deleted.
func Key(t testing.TB) string {
	t.Helper()
	key, o := "test-"+strings.ToLower(rand.Text()), Options(t)
	t.Cleanup(func() {
		c := redis.NewClient(o)
		defer func() { _ = c.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Del(ctx, key).Err(); err != nil {
			t.Errorf("delete the key %s: %v", key, err)
		}
	})
	return key
}

// Wires are connections that can be cut. Dial is a redis.Options.Dialer.
type Wires struct {
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
}

// errDead is why a dead process's client cannot connect.
var errDead = errors.New("this process is dead")

// Dial connects.
func (w *Wires) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	dead := w.dead
	w.mu.Unlock()
	if dead {
		return nil, errDead
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return c, nil
}

// Cut breaks the connections as a failing network does: what is under way is
// lost.
func (w *Wires) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// Kill breaks the connections, and no others are made, as at the death of a
// process.
func (w *Wires) Kill() {
	w.mu.Lock()
	w.dead = true
	w.mu.Unlock()
	w.Cut()
}
