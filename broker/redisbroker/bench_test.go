//go:build !fast

package redisbroker_test

import (
	"testing"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/redistest"
)

// publisher returns a publisher and n messages of 100 bytes for a stream.
func publisher(b *testing.B, stream string, n int) (*redisbroker.Publisher, []broker.Message) {
	b.Helper()
	p, err := redisbroker.NewPublisher(redistest.Client(b), redisbroker.PublisherConfig{})
	if err != nil {
		b.Fatal(err)
	}
	all := make([]broker.Message, n)
	for i := range all {
		all[i] = broker.Message{Topic: stream, Body: make([]byte, 100)}
	}
	return p, all
}

func benchmarkSource(b *testing.B, batch int) {
	stream := redistest.Key(b)
	p, all := publisher(b, stream, b.N)
	if err := p.Publish(b.Context(), all...); err != nil {
		b.Fatal(err)
	}
	s := newSource(b, redistest.Client(b), redisbroker.SourceConfig{Stream: stream, Group: group})
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
	p, all := publisher(b, redistest.Key(b), 100)
	for b.Loop() {
		if err := p.Publish(b.Context(), all...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
