package kafkabroker_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/internal/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names makes names of topics and groups that nobody else has.
var names atomic.Int64

func name(prefix string) string {
	return fmt.Sprintf("%s-%d-%d", prefix, time.Now().UnixNano(), names.Add(1))
}

// kafka is a cluster that a test uses.
type kafka struct {
	brokers    []string
	serverSide bool
}

// fake starts a cluster in this process that speaks Kafka's protocol.
func fake(t testing.TB) kafka {
	t.Helper()
	return kafka{brokers: kafkatest.BrokersAt(t, kafkatest.Start(t))}
}

// topic makes a topic and deletes it at the end of the test.
func (k kafka) topic(t testing.TB, partitions int32) string {
	t.Helper()
	topic := name("orders")
	k.makeTopic(t, topic, partitions)
	t.Cleanup(func() { k.deleteTopic(t, topic) })
	return topic
}

func (k kafka) admin(t testing.TB) *kadm.Client {
	t.Helper()
	a, err := kadm.NewOptClient(kgo.SeedBrokers(k.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (k kafka) makeTopic(t testing.TB, topic string, partitions int32) {
	t.Helper()
	a := k.admin(t)
	defer a.Close()
	if _, err := a.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatalf("make topic %s: %v", topic, err)
	}
}

func (k kafka) deleteTopic(t testing.TB, topic string) {
	a := k.admin(t)
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = a.DeleteTopic(ctx, topic) // the test may have done so itself
}

func (k kafka) publisher(t testing.TB) *kafkabroker.Publisher {
	t.Helper()
	p, err := kafkabroker.NewPublisher(kgo.SeedBrokers(k.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// wires are connections that can be cut.
type wires struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (w *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wires) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (k kafka) harness() brokertest.Harness {
	return brokertest.Harness{
		Open: func(t *testing.T, _ brokertest.Options) brokertest.Queue {
			topic, group, w := k.topic(t, 1), name("group"), &wires{}
			var mu sync.Mutex
			lives := map[broker.Source]*silence{}
			return brokertest.Queue{
				Topic: topic, Nowhere: name("nowhere"), Publisher: k.publisher(t), Cut: w.cut,
				Source: func(t *testing.T) broker.Source {
					life := &silence{wires: w}
					s := k.source(t, group, topic, life.option)
					mu.Lock()
					defer mu.Unlock()
					lives[s] = life
					return s
				},
				Kill: func(s broker.Source) {
					mu.Lock()
					defer mu.Unlock()
					lives[s].fall()
					closeLater(t, s)
				},
			}
		},
		Features: brokertest.Features{
			Redelivered: true, OrderingKey: true, NullBody: true, BinaryHeaders: true, HeaderOrder: true, Lanes: true,
			Positions: true,
		},
	}
}

// source returns a source that is not closed at the end.
func (k kafka) source(t testing.TB, group, topic string, edit ...func(*kafkabroker.SourceConfig)) *kafkabroker.Source {
	t.Helper()
	cfg := kafkabroker.SourceConfig{Brokers: k.brokers, Group: group, Topics: []string{topic}, ServerSide: k.serverSide}
	if !k.serverSide {
		cfg.SessionTimeout = 6 * time.Second
	}
	for _, e := range edit {
		e(&cfg)
	}
	s, err := kafkabroker.NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuiteOnAFakeCluster(t *testing.T) {
	k := fake(t)
	t.Run("suite", func(t *testing.T) { brokertest.Run(t, k.harness()) })
}
