package otelsekali_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/otelsekali"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// shop is a database and a broker with a consumer of which everything is told.
type shop struct {
	t         *testing.T
	db        *sql.DB
	store     *sqlstore.Store
	broker    *membroker.Broker
	source    *faulty.Source
	telemetry *otelsekali.Telemetry
	metrics   *sdkmetric.ManualReader
	spans     *tracetest.SpanRecorder
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{
		t: t, db: dbtest.SQLite(t).SQL, broker: membroker.New(membroker.Options{Lanes: 2}),
		metrics: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder(),
	}
	s.store = sqlstore.New(s.db, sqlite.Dialect)
	s.source = faulty.NewSource(s.broker.NewSource("stock-service"))
	var err error
	s.telemetry, err = otelsekali.New(otelsekali.Config{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.metrics)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans)), System: "memory",
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// config is a consumer's, which fails where a header of the message says so. Its
// batches are of one: else what shares a transaction hangs on luck, and so does
// which failure counts.
func (s *shop) config() sekali.Config[*sql.Tx] {
	var once atomic.Bool
	return sekali.Config[*sql.Tx]{
		Name: "stock-service", Source: s.source, Store: s.store, Key: sekali.Header("key"),
		Observer: sekali.Observers(sekali.LogTo(slog.New(slog.DiscardHandler)), s.telemetry), Fingerprint: sekali.BodyFingerprint,
		OnBlocked: sekali.HoldKey, Batch: sekali.Batch{Size: 1}, Backoff: sekali.Backoff{Initial: time.Millisecond, Max: time.Millisecond},
		Version: func(m *sekali.Message) (string, int64, bool) {
			text, ok := m.Headers.Get("version")
			n, _ := strconv.ParseInt(string(text), 10, 64)
			return "entity", n, ok
		},
		Handle: func(_ context.Context, _ *sql.Tx, m *sekali.Message) error {
			switch how, _ := m.Headers.Get("fails"); string(how) {
			case "once":
				if !once.Swap(true) {
					return errors.New("not yet")
				}
			case "for good":
				return sekali.Permanent(errors.New("never"))
			}
			return nil
		},
	}
}

// start runs a consumer until the function that it returns is called.
func (s *shop) start(cfg sekali.Config[*sql.Tx]) (stop func()) {
	s.t.Helper()
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.beside(consumer.Run)
}

// beside runs something until the function that it returns is called.
func (s *shop) beside(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	}
}

// publish publishes a message with a key, a body, an ordering key (empty: none)
// and pairs of headers.
func (s *shop) publish(key, body, orderingKey string, headers ...string) {
	s.t.Helper()
	m := broker.Message{Topic: "orders", Body: []byte(body), Headers: broker.Headers{{Name: "key", Value: []byte(key)}}}
	if orderingKey != "" {
		m.OrderingKey = []byte(orderingKey)
	}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = m.Headers.Set(headers[i], []byte(headers[i+1]))
	}
	if err := s.broker.Publish(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

// point is a value of a metric with its attributes.
type point struct {
	attributes attribute.Set
	value      float64 // of a histogram the count
	sum        float64 // of a histogram
}

// collected returns all values by the names of their metrics.
func (s *shop) collected() map[string][]point {
	s.t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(s.t.Context(), &all); err != nil {
		s.t.Fatal(err)
	}
	found := map[string][]point{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = points(m.Data)
		}
	}
	return found
}

func points(data metricdata.Aggregation) (all []point) {
	switch d := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Value), 0})
		}
	case metricdata.Gauge[int64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Value), 0})
		}
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, p.Value, 0})
		}
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Count), p.Sum})
		}
	default:
		panic(fmt.Sprintf("a metric is a %T", data))
	}
	return all
}

// value returns the sum of a metric's values that have an attribute; empty: of
// all.
func value(all map[string][]point, name, attributeKey, attributeValue string) (sum float64) {
	for _, p := range all[name] {
		v, has := p.attributes.Value(attribute.Key(attributeKey))
		if attributeKey == "" || has && v.String() == attributeValue {
			sum += p.value
		}
	}
	return sum
}

// await waits until such a value is at least want. Metrics tell nobody when they
// change.
func (s *shop) await(want float64, name, attributeKey, attributeValue string) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		got := value(s.collected(), name, attributeKey, attributeValue)
		if got >= want {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%s with %s %q is %v, want %v", name, attributeKey, attributeValue, got, want)
		}
	}
}
