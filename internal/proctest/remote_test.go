package proctest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
)

// A memory broker for processes: the parent has it, and serves each child a
// source over a socket. When the connection ends, however the child ended, the
// source is closed, and what was in the child's hand comes again.

// server serves a connection's source.
type server struct {
	source *membroker.Source
	mu     sync.Mutex
	next   int
	held   map[int]*broker.Delivery
}

// parcel is a delivery on the wire.
type parcel struct {
	Ticket      int
	Message     broker.Message
	Lane        string
	Attempt     int
	Redelivered bool
}

// verdict is a settlement on the wire.
type verdict struct {
	Ticket int
	Action broker.Action
}

// Receive waits for a while.
func (s *server) Receive(max int, out *[]parcel) error {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	got, err := s.source.Receive(ctx, max)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range got {
		s.next++
		s.held[s.next] = d
		*out = append(*out, parcel{s.next, d.Message, d.Lane, d.Attempt, d.Redelivered})
	}
	return err
}

// Settle settles.
func (s *server) Settle(in []verdict, _ *struct{}) error {
	s.mu.Lock()
	var x []broker.Settlement
	for _, v := range in {
		x = append(x, broker.Settlement{Delivery: s.held[v.Ticket], Action: v.Action})
		delete(s.held, v.Ticket)
	}
	s.mu.Unlock()
	return s.source.Settle(context.Background(), x)
}

// serve serves a broker's consumer on a socket until the test ends, and
// returns its URL.
func serve(t testing.TB, b *membroker.Broker, consumer string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broker")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				s := &server{source: b.NewSource(consumer), held: map[int]*broker.Delivery{}}
				r := rpc.NewServer()
				if err := r.RegisterName("Broker", s); err != nil {
					panic(err)
				}
				r.ServeConn(conn)
				_ = s.source.Close(context.Background())
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return "unix://" + path
}

// remote is the child's end.
type remote struct{ client *rpc.Client }

func dialRemote(path string) (*remote, error) {
	c, err := rpc.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("reach the parent's broker: %w", err)
	}
	return &remote{c}, nil
}

func (r *remote) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	for {
		var got []parcel
		if err := r.client.Call("Broker.Receive", max, &got); err != nil {
			return nil, err
		}
		var out []*broker.Delivery
		for _, p := range got {
			out = append(out, &broker.Delivery{
				Message: p.Message, Lane: p.Lane, Attempt: p.Attempt, Redelivered: p.Redelivered,
				Handle: strconv.Itoa(p.Ticket),
			})
		}
		if len(out) > 0 {
			return out, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

func (r *remote) Settle(_ context.Context, x []broker.Settlement) error {
	var v []verdict
	for _, s := range x {
		n, err := strconv.Atoi(s.Delivery.Handle.(string))
		if err != nil {
			return err
		}
		v = append(v, verdict{n, s.Action})
	}
	return r.client.Call("Broker.Settle", v, &struct{}{})
}

func (r *remote) Close(context.Context) error { return r.client.Close() }
