//go:build !fast

package redisbroker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/redistest"
)

const group = "stock"

// harness opens a stream of its own for each test. Protocol is RESP's version.
func harness(protocol int) brokertest.Harness {
	return brokertest.Harness{
		Open: func(t *testing.T, o brokertest.Options) brokertest.Queue {
			stream := redistest.Key(t)
			c := redistest.Client(t)
			if err := c.XGroupCreateMkStream(t.Context(), stream, group, "0").Err(); err != nil {
				t.Fatal(err)
			}
			p, err := redisbroker.NewPublisher(c, redisbroker.PublisherConfig{OnlyExisting: true})
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			lives := map[broker.Source]*redistest.Wires{}
			return brokertest.Queue{
				Topic: stream, Nowhere: redistest.Key(t), Publisher: p,
				Source: func(t *testing.T) broker.Source {
					w := &redistest.Wires{}
					s := newSource(t, wired(t, w, protocol), redisbroker.SourceConfig{Stream: stream, Group: group, AckWait: o.AckWait})
					mu.Lock()
					defer mu.Unlock()
					lives[s] = w
					return s
				},
				Cut: func() {
					mu.Lock()
					defer mu.Unlock()
					for _, w := range lives {
						w.Cut()
					}
				},
				Kill: func(s broker.Source) {
					mu.Lock()
					defer mu.Unlock()
					lives[s].Kill()
				},
			}
		},
		Features: brokertest.Features{
			Attempts: true, Redelivered: true, MessageID: true, OrderingKey: true, NullBody: true, BinaryHeaders: true,
			HeaderOrder: true, Expires: true, DelayedRetry: true,
		},
	}
}

func TestSuiteOnARealServer(t *testing.T) { brokertest.Run(t, harness(3)) }

func TestSuiteOnARealServerWithTheOldProtocol(t *testing.T) { brokertest.Run(t, harness(2)) }

// wired is a client whose connections can be cut.
func wired(t testing.TB, w *redistest.Wires, protocol int) *redis.Client {
	t.Helper()
	o := redistest.Options(t)
	o.Dialer, o.Protocol, o.DialerRetries = w.Dial, protocol, 1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newSource(t testing.TB, c redis.UniversalClient, cfg redisbroker.SourceConfig) *redisbroker.Source {
	t.Helper()
	s, err := redisbroker.NewSource(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// receive waits for n deliveries, going on after errors that pass.
func receive(t testing.TB, s broker.Source, n int) []*broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []*broker.Delivery
	for len(got) < n {
		d, err := s.Receive(ctx, n-len(got))
		if err != nil && (ctx.Err() != nil || errors.Is(err, broker.ErrClosed)) {
			t.Fatalf("received %d of %d: %v", len(got), n, err)
		}
		got = append(got, d...)
	}
	return got
}

func settle(t testing.TB, s broker.Source, a broker.Action, d ...*broker.Delivery) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	all := make([]broker.Settlement, len(d))
	for i := range d {
		all[i] = broker.Settlement{Delivery: d[i], Action: a}
	}
	return s.Settle(ctx, all)
}
