//go:build !fast

package amqpbroker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/internal/amqptest"
	"github.com/sekali/sekali/internal/faulty"
)

// soon is a context for what must end in time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func newPublisher(t testing.TB) *amqpbroker.Publisher {
	t.Helper()
	p, err := amqpbroker.NewPublisher(amqpbroker.PublisherConfig{URL: amqptest.URL(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(soon(t)) })
	return p
}

func newSource(t testing.TB, cfg amqpbroker.SourceConfig) *amqpbroker.Source {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = amqptest.URL(t)
	}
	s, err := amqpbroker.NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(soon(t)); err != nil {
			t.Errorf("close the source: %v", err)
		}
	})
	return s
}

// wires are proxies before a queue's sources.
type wires struct {
	mu  sync.Mutex
	all map[broker.Source]*faulty.Proxy
}

func (w *wires) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.all {
		p.Cut()
	}
}

func harness(t *testing.T) brokertest.Harness {
	artemis := amqptest.IsArtemis(t)
	h := brokertest.Harness{
		Open: func(t *testing.T, o brokertest.Options) brokertest.Queue {
			name := amqptest.Queue(t)
			w := &wires{all: map[broker.Source]*faulty.Proxy{}}
			return brokertest.Queue{
				Topic: name, Publisher: newPublisher(t),
				Source: func(t *testing.T) broker.Source {
					url, proxy := amqptest.Proxied(t)
					s := newSource(t, amqpbroker.SourceConfig{URL: url, Queue: name, Credit: 1000, Exclusive: o.Lanes})
					w.mu.Lock()
					defer w.mu.Unlock()
					w.all[s] = proxy
					return s
				},
				Cut: w.cut,
				Kill: func(s broker.Source) {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.all[s].Refuse()
					w.all[s].Cut()
				},
			}
		},
		Features: brokertest.Features{
			MessageID: true, OrderingKey: true, BinaryHeaders: true, UniqueHeaders: true, NullBody: artemis,
		},
	}
	return h
}

func TestSuite(t *testing.T) { brokertest.Run(t, harness(t)) }
