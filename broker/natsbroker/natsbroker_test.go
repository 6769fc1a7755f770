package natsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const keyHeader = "Ordering-Key"

// harness opens a stream of its own for each test on the server at url.
func harness(url string) brokertest.Harness {
	return brokertest.Harness{
		Open: func(t *testing.T, o brokertest.Options) brokertest.Queue {
			js := connect(t, url)
			name := makeStream(t, js)
			var (
				mu    sync.Mutex
				conns []*natstest.Conn
				lives = map[broker.Source]*natstest.Conn{}
			)
			return brokertest.Queue{
				Topic:     name + ".orders",
				Nowhere:   "nowhere." + name,
				Publisher: natsbroker.NewPublisher(js, natsbroker.WithOrderingKeyHeader(keyHeader)),
				Source: func(t *testing.T) broker.Source {
					c := natstest.Connect(t, url)
					mu.Lock()
					defer mu.Unlock()
					conns = append(conns, c)
					own, err := jetstream.New(c.Conn)
					if err != nil {
						t.Fatal(err)
					}
					s := newSource(t, own, natsbroker.SourceConfig{
						Stream: name, Consumer: "stock", AckWait: o.AckWait, Ordered: o.Lanes, OrderingKeyHeader: keyHeader,
					})
					lives[s] = c
					return s
				},
				Kill: func(s broker.Source) {
					mu.Lock()
					defer mu.Unlock()
					lives[s].Close()
				},
				Cut: func() {
					mu.Lock()
					defer mu.Unlock()
					for _, c := range conns {
						c.Cut()
					}
				},
			}
		},
		Features: brokertest.Features{
			Attempts: true, Redelivered: true, MessageID: true, OrderingKey: true,
			Expires: true, Lanes: true, DelayedRetry: true,
		},
	}
}

func TestSuiteOnAnEmbeddedServer(t *testing.T) {
	url := natstest.Start(t)
	t.Run("suite", func(t *testing.T) { brokertest.Run(t, harness(url)) })
}

func connect(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// makeStream makes a stream with a name of its own, which is also the first
// token of its subjects, and deletes it at the end of the test.
func makeStream(t testing.TB, js jetstream.JetStream) string {
	t.Helper()
	name := "T" + nuid.Next()
	createStream(t, js, name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = js.DeleteStream(ctx, name) // the test may have done so itself
	})
	return name
}

func createStream(t testing.TB, js jetstream.JetStream, name string) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}})
	if err != nil {
		t.Fatalf("create stream %s: %v", name, err)
	}
}

func newSource(t testing.TB, js jetstream.JetStream, cfg natsbroker.SourceConfig) *natsbroker.Source {
	t.Helper()
	s, err := natsbroker.NewSource(js, cfg)
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

func publish(t testing.TB, js jetstream.JetStream, topic string, bodies ...string) {
	t.Helper()
	m := make([]broker.Message, len(bodies))
	for i := range m {
		m[i] = broker.Message{Topic: topic, Body: []byte(bodies[i])}
	}
	if err := natsbroker.NewPublisher(js).Publish(t.Context(), m...); err != nil {
		t.Fatal(err)
	}
}

func benchmarkSource(b *testing.B, batch int) {
	js := connect(b, natstest.Start(b))
	name := makeStream(b, js)
	all := make([]broker.Message, b.N)
	for i := range all {
		all[i] = broker.Message{ID: fmt.Sprint(i), Topic: name + ".orders", Body: make([]byte, 100)}
	}
	if err := natsbroker.NewPublisher(js).Publish(b.Context(), all...); err != nil {
		b.Fatal(err)
	}
	s := newSource(b, js, natsbroker.SourceConfig{Stream: name, Consumer: "stock"})
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		d, err := s.Receive(b.Context(), batch)
		if err != nil {
			b.Fatal(err)
		}
		if err := settle(b, s, broker.Ack, d...); err != nil {
			b.Fatal(err)
		}
		n += len(d)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

func BenchmarkReceiveAndSettleOneByOne(b *testing.B) { benchmarkSource(b, 1) }
func BenchmarkReceiveAndSettle100(b *testing.B)      { benchmarkSource(b, 100) }

func BenchmarkPublish100(b *testing.B) {
	js := connect(b, natstest.Start(b))
	name := makeStream(b, js)
	p := natsbroker.NewPublisher(js)
	all := make([]broker.Message, 100)
	for i := range all {
		all[i] = broker.Message{Topic: name + ".orders", Body: make([]byte, 100)}
	}
	for b.Loop() {
		if err := p.Publish(b.Context(), all...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
