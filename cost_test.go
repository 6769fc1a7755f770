package sekali_test

import (
	"context"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// BenchmarkConsumer is what the Consumer itself costs a message: broker and
// store do nothing but count. Run it with -cpu 1.
func BenchmarkConsumer(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run("batches of "+strconv.Itoa(size), func(b *testing.B) {
			b.ReportAllocs()
			s := &endless{left: b.N, done: make(chan struct{}), body: make([]byte, 100)}
			c, err := sekali.NewConsumer(sekali.Config[int]{
				Name: "c", Source: s, Store: counted{}, Key: sekali.MessageID(), Observer: silent{}, Workers: 1,
				DeadLetters: noLetters{}, Batch: sekali.Batch{Size: size},
				Handle: func(context.Context, int, *sekali.Message) error { return nil },
			})
			if err != nil {
				b.Fatal(err)
			}
			s.make(b.N)
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			runtime.GC()
			b.ResetTimer()
			go func() { ended <- c.Run(ctx) }()
			<-s.done
			b.StopTimer()
			stop()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}

type endless struct {
	deliveries []*broker.Delivery
	left       int
	settled    atomic.Int64
	done       chan struct{}
	body       []byte
}

// make makes all deliveries beforehand: they are the broker's cost.
func (s *endless) make(n int) {
	slab := make([]broker.Delivery, n)
	s.deliveries = make([]*broker.Delivery, n)
	for i := range slab {
		slab[i].Message = broker.Message{ID: strconv.Itoa(i), Topic: "orders", Body: s.body}
		s.deliveries[i] = &slab[i]
	}
}

func (s *endless) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	n := min(max, len(s.deliveries))
	if n == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	got := s.deliveries[:n]
	s.deliveries = s.deliveries[n:]
	return got, nil
}

func (s *endless) Settle(_ context.Context, x []broker.Settlement) error {
	if s.settled.Add(int64(len(x))) == int64(s.left) {
		close(s.done)
	}
	return nil
}

func (s *endless) Close(context.Context) error { return nil }

type nothing struct{}

func (nothing) Begin(_ context.Context, c store.Claim) (int, []store.State, error) {
	return 0, make([]store.State, len(c.Keys)), nil
}

func (nothing) Claim(context.Context, int, store.Claim) ([]store.State, error) { return nil, nil }
func (nothing) Commit(context.Context, int) error                              { return nil }
func (nothing) Rollback(context.Context, int) error                            { return nil }
func (nothing) Seen(context.Context, store.Claim) ([]store.State, error)       { return nil, nil }
func (nothing) Classify(error) store.Class                                     { return store.ClassFailed }
func (nothing) Check(context.Context) error                                    { return nil }

// counted is nothing with statistics, so that counting is part of the cost.
type counted struct{ nothing }

func (counted) Stats() store.Stats { return noStats{} }

type noStats struct{}

func (noStats) Add(context.Context, string, store.Counts) error { return nil }
func (noStats) Check(context.Context) error                     { return nil }

func (noStats) Stats(context.Context, string, time.Time, time.Time) ([]store.Minute, error) {
	return nil, nil
}

type silent struct{}

func (silent) Observe(sekali.Event) {}

type noLetters struct{}

func (noLetters) Put(context.Context, deadletter.Letter) error { return nil }
