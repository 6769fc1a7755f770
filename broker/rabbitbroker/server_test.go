//go:build !fast

package rabbitbroker_test

import (
	"context"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/rabbittest"
)

const keyHeader = "ordering-key"

// soon is a context for what must end in time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// harness opens queues of a kind.
func harness(kind rabbitbroker.Kind) brokertest.Harness {
	return brokertest.Harness{
		Open: func(t *testing.T, o brokertest.Options) brokertest.Queue {
			conn := rabbittest.Connect(t)
			name := rabbittest.Queue(t, conn, string(kind), amqp.Table{amqp.SingleActiveConsumerArg: o.Lanes})
			if !o.Lanes {
				removeRetryQueues(t, conn, name)
			}
			var mu sync.Mutex
			wires := map[broker.Source]*rabbittest.Wires{}
			return brokertest.Queue{
				Topic: name, Nowhere: rabbittest.Name(), Publisher: newPublisher(t),
				Source: func(t *testing.T) broker.Source {
					w := &rabbittest.Wires{}
					s := newSource(t, rabbitbroker.SourceConfig{
						Queue: name, Prefetch: 1000, SingleActive: o.Lanes, DelayedRetry: !o.Lanes, OrderingKeyHeader: keyHeader, Client: w.Client(),
					})
					mu.Lock()
					defer mu.Unlock()
					wires[s] = w
					return s
				},
				Cut: func() {
					mu.Lock()
					defer mu.Unlock()
					for _, w := range wires {
						w.Cut()
					}
				},
				Kill: func(s broker.Source) {
					mu.Lock()
					defer mu.Unlock()
					wires[s].Kill()
				},
			}
		},
		Features: brokertest.Features{
			Attempts: kind == rabbitbroker.Quorum, Redelivered: true, MessageID: true, OrderingKey: true, BinaryHeaders: true,
			UniqueHeaders: true, Lanes: true, DelayedRetry: true,
		},
	}
}

func TestSuiteOnQuorumQueues(t *testing.T) {
	rabbittest.URL(t)
	brokertest.Run(t, harness(rabbitbroker.Quorum))
}

func TestSuiteOnClassicQueues(t *testing.T) {
	rabbittest.URL(t)
	brokertest.Run(t, harness(rabbitbroker.Classic))
}

// removeRetryQueues deletes the retry queues that tests may have made.
func removeRetryQueues(t testing.TB, conn *amqp.Connection, name string) {
	for _, step := range []string{"100", "160", "250", "400", "630", "1000", "1600"} {
		rabbittest.Remove(t, conn, name+".sekali-retry."+step)
	}
}

func newPublisher(t testing.TB, options ...rabbitbroker.PublisherOption) *rabbitbroker.Publisher {
	t.Helper()
	p, err := rabbitbroker.NewPublisher(rabbittest.URL(t), append([]rabbitbroker.PublisherOption{rabbitbroker.WithOrderingKeyHeader(keyHeader)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(soon(t)) })
	return p
}

// newSource returns a source that is closed at the end of the test.
func newSource(t testing.TB, cfg rabbitbroker.SourceConfig) *rabbitbroker.Source {
	t.Helper()
	cfg.URL = rabbittest.URL(t)
	s, err := rabbitbroker.NewSource(cfg)
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
