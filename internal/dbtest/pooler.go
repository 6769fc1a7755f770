package dbtest

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Pooler returns a URL that leads to the same schema on PostgreSQL by way of a
// pooler in transaction mode, as PgBouncer is: it lends its one session to
// whoever begins a transaction, until the transaction ends. Like PgBouncer
// before 1.21 it knows nothing of prepared statements.
func (d *DB) Pooler() string {
	d.t.Helper()
	session, err := pgconn.Connect(context.Background(), d.URL)
	if err != nil {
		d.t.Fatalf("open the session of the pooler: %v", err)
	}
	server, err := session.Hijack()
	if err != nil {
		d.t.Fatalf("take over the session of the pooler: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.t.Fatalf("listen for the pooler: %v", err)
	}
	p := &pooler{t: d.t, server: server, clients: map[net.Conn]bool{}}
	p.serving.Go(func() { p.accept(listener) })
	d.t.Cleanup(func() {
		_ = listener.Close()
		p.closeAll()
		_ = server.Conn.Close()
		p.serving.Wait()
	})
	u := parse(d.t, d.URL)
	u.Host = listener.Addr().String()
	u.RawQuery = url.Values{"sslmode": {"disable"}}.Encode() // the search path is the session's
	return u.String()
}

type pooler struct {
	t       testing.TB
	server  *pgconn.HijackedConn
	lent    sync.Mutex // the session
	serving sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clients map[net.Conn]bool
}

func (p *pooler) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.clients {
		_ = c.Close()
	}
}

func (p *pooler) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // it was closed
		}
		p.mu.Lock()
		if p.closed {
			_ = client.Close()
		}
		p.clients[client] = true
		p.mu.Unlock()
		p.serving.Go(func() {
			defer client.Close()
			p.serve(pgproto3.NewBackend(client, client))
		})
	}
}

// serve answers one client until it leaves. Errors end the connection: the
// client tells of them.
func (p *pooler) serve(client *pgproto3.Backend) {
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range p.server.ParameterStatuses {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	ours := false
	defer func() {
		if ours {
			p.lent.Unlock()
		}
	}()
	for client.Flush() == nil {
		message, err := client.Receive()
		if _, leaves := message.(*pgproto3.Terminate); leaves || err != nil {
			return
		}
		if !ours {
			p.lent.Lock()
			ours = true
		}
		p.server.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Sync, *pgproto3.Query:
			open, err := p.relay(client)
			if err != nil {
				return
			}
			if !open {
				p.lent.Unlock()
				ours = false
			}
		}
	}
}

// relay passes on what the server answers, and tells whether a transaction is
// open then.
func (p *pooler) relay(client *pgproto3.Backend) (open bool, err error) {
	if err := p.server.Frontend.Flush(); err != nil {
		return false, err
	}
	for {
		answer, err := p.server.Frontend.Receive()
		if err != nil {
			return false, err
		}
		client.Send(answer)
		if ready, is := answer.(*pgproto3.ReadyForQuery); is {
			return ready.TxStatus != 'I', nil
		}
	}
}
