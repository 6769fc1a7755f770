package otelsekali_test

import (
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/otelsekali"
)

// told is what a Telemetry is told of one message of a batch of a hundred, the
// share of what is told once for all of them included.
func told(t *otelsekali.Telemetry, m *sekali.Message, i int) {
	t.Observe(sekali.Event{Kind: sekali.Received, Consumer: "stock-service", Message: m})
	t.Observe(sekali.Event{
		Kind: sekali.Finished, Consumer: "stock-service", Message: m, Outcome: sekali.Processed, Duration: time.Millisecond, Handling: 300 * time.Microsecond,
	})
	if i%100 == 0 {
		t.Observe(sekali.Event{Kind: sekali.Committed, Consumer: "stock-service", Count: 100, Duration: time.Millisecond})
		t.Observe(sekali.Event{Kind: sekali.Settled, Consumer: "stock-service", Count: 100})
	}
}

func measured(t testing.TB, traces trace.TracerProvider) *otelsekali.Telemetry {
	t.Helper()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	telemetry, err := otelsekali.New(otelsekali.Config{MeterProvider: provider, TracerProvider: traces})
	if err != nil {
		t.Fatal(err)
	}
	return telemetry
}

func traced() *sekali.Message {
	return &sekali.Message{Message: broker.Message{Topic: "orders", ID: "orders/3/17", Headers: broker.Headers{
		{Name: "content-type", Value: []byte("application/json")},
		{Name: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
	}}}
}

// A metric costs no memory: garbage would be paid for by the handlers.
func TestMetricsOfAMessageAllocateNothing(t *testing.T) {
	telemetry, m, i := measured(t, noop.NewTracerProvider()), traced(), 0
	told(telemetry, m, 0)
	if n := testing.AllocsPerRun(1000, func() { told(telemetry, m, i); i++ }); n != 0 {
		t.Errorf("metrics of a message allocate %v times", n)
	}
}

func BenchmarkMetricsOfAMessage(b *testing.B) {
	telemetry, m := measured(b, noop.NewTracerProvider()), traced()
	b.ReportAllocs()
	for i := range b.N {
		told(telemetry, m, i)
	}
}

func BenchmarkMetricsOfAMessageBesideOthers(b *testing.B) {
	telemetry := measured(b, noop.NewTracerProvider())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		m := traced()
		for i := 0; pb.Next(); i++ {
			told(telemetry, m, i)
		}
	})
}

// BenchmarkSpanOfAMessage has no exporter: what that costs is its own.
func BenchmarkSpanOfAMessage(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"sampled": sdktrace.AlwaysSample(), "not sampled": sdktrace.NeverSample()} {
		b.Run(name, func(b *testing.B) {
			telemetry := measured(b, sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)))
			m := []*sekali.Message{traced()}
			b.ReportAllocs()
			for b.Loop() {
				_, end := telemetry.Begin(b.Context(), "stock-service", m)
				end(nil)
			}
		})
	}
}
