// Package natstest runs NATS JetStream for tests: an embedded server with file
// storage in the test's folder, and connections that can be cut.
package natstest

import (
	"bytes"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startTimeout is how long an embedded server may take to answer.
const startTimeout = 20 * time.Second

// Start starts an embedded server with JetStream on a port of its own and
// returns its URL. It ends with the test.
func Start(t testing.TB) string {
	t.Helper()
	s := NewServer(t)
	s.Start()
	return s.URL()
}

// Server is an embedded server that can be stopped and started again on the
// same port, over the same files.
type Server struct {
	t    testing.TB
	opts server.Options
	srv  *server.Server
}

// NewServer returns a Server that has not started yet. It ends with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "natstest-")
	if err != nil {
		t.Fatalf("make a folder for the embedded nats-server: %v", err)
	}
	// Not t.TempDir: the server may still write a file while it is removed.
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		NoLog: true, NoSigs: true,
	}}
	t.Cleanup(s.Stop)
	return s
}

// Start starts the server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	opts := s.opts
	srv, err := server.NewServer(&opts)
	if err != nil {
		s.t.Fatalf("make an embedded nats-server: %v", err)
	}
	srv.Start()
	s.srv = srv
	if !srv.ReadyForConnections(startTimeout) {
		s.t.Fatalf("the embedded nats-server does not answer after %v", startTimeout)
	}
	s.opts.Port = srv.Addr().(*net.TCPAddr).Port
}

// Stop stops the server and waits for it. It may be called twice.
func (s *Server) Stop() {
	if s.srv != nil {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
		s.srv = nil
	}
}

// URL returns where the server answers.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Conn is a connection that can be cut.
type Conn struct {
	*nats.Conn
	mu   sync.Mutex
	live net.Conn
	lose []byte // see LoseNext
}

// LoseNext has the next write that holds pattern seem to succeed, and get lost
// with the connection, which breaks.
func (c *Conn) LoseNext(pattern []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = pattern
}

// losing is a connection that obeys LoseNext.
type losing struct {
	net.Conn
	owner *Conn
}

func (l losing) Write(b []byte) (int, error) {
	l.owner.mu.Lock()
	lose := len(l.owner.lose) > 0 && bytes.Contains(b, l.owner.lose)
	if lose {
		l.owner.lose = nil
	}
	l.owner.mu.Unlock()
	if lose {
		_ = l.Close()
		return len(b), nil
	}
	return l.Conn.Write(b)
}

// Connect opens a connection that reconnects at once and for ever, and is
// closed at the end of the test.
func Connect(t testing.TB, url string) *Conn {
	t.Helper()
	c := &Conn{}
	nc, err := nats.Connect(url, nats.SetCustomDialer(c), nats.MaxReconnects(-1),
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	c.Conn = nc
	t.Cleanup(nc.Close)
	return c
}

// Dial is nats.CustomDialer.
func (c *Conn) Dial(network, address string) (net.Conn, error) {
	live, err := net.DialTimeout(network, address, startTimeout)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live = live
	return losing{live, c}, nil
}

// Cut breaks the connection as a failing network does: what is under way is
// lost. The client connects again by itself.
func (c *Conn) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.live.Close()
}

// realURL is the environment's variable with the URL of a real nats-server.
const realURL = "SEKALI_TEST_NATS_URL"

// RealURL returns the URL of the real nats-server that tests are to use. The
// test fails where there is none: nothing is skipped in silence.
func RealURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv(realURL)
	if url == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Debian packages or Docker) and"+
			" `eval \"$(scripts/services env)\"`; or set it to the URL of a server of yours", realURL)
	}
	return url
}
