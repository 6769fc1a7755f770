package bench

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/sekali/sekali/internal/dburl"
)

// far is a way to the database on which a round trip takes some time, as on a
// network: client and server on one machine are nearer than any.
type far struct {
	listener net.Listener
	target   string
	oneWay   time.Duration
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

// farAway returns the URL of a database so that it is a round trip away.
func farAway(kind dburl.Kind, raw string, roundTrip time.Duration) (string, *far, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Port() == "" || kind == dburl.SQLite {
		return "", nil, errors.New("a round trip can be added to a database with a host and a port in its URL")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen for connections that are to be delayed: %w", err)
	}
	f := &far{listener: listener, target: u.Host, oneWay: roundTrip / 2}
	f.running.Go(f.accept)
	u.Host = listener.Addr().String()
	return u.String(), f, nil
}

func (f *far) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", f.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		f.mu.Lock()
		f.conns = append(f.conns, client, server)
		f.mu.Unlock()
		f.running.Go(func() { f.carry(server, client) })
		f.running.Go(func() { f.carry(client, server) })
	}
}

// packet is on its way until its time.
type packet struct {
	data []byte
	due  time.Time
}

// carry carries what comes, each a while after it came, and the end of it.
func (f *far) carry(to, from net.Conn) {
	way := make(chan packet, 10_000)
	f.running.Go(func() {
		for p := range way {
			time.Sleep(time.Until(p.due)) // that is what this is for
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		_ = to.Close()
		for range way { // until the reader has seen it
		}
	})
	defer close(way)
	for {
		data := make([]byte, 32<<10)
		n, err := from.Read(data)
		if n > 0 {
			way <- packet{data[:n], time.Now().Add(f.oneWay)}
		}
		if err != nil {
			return
		}
	}
}

// close ends all connections.
func (f *far) close() {
	if f == nil {
		return
	}
	_ = f.listener.Close()
	f.mu.Lock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
}
