//go:build !fast

package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/rabbittest"
)

// openRabbitFeed opens a feed of the test's own; it is closed at the end.
func openRabbitFeed(t *testing.T) *rabbitFeed {
	t.Helper()
	f, err := openFeed(t.Context(), rabbittest.URL(t), rabbittest.Name(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.close(context.Background(), false) })
	return f.(*rabbitFeed)
}

// thereAre returns how many of a feed's queues and exchanges are there.
func thereAre(t *testing.T, f *rabbitFeed) int {
	t.Helper()
	conn, n := rabbittest.Connect(t), 0
	look := func(do func(ch *amqp.Channel) error) {
		if do(rabbittest.Channel(t, conn)) == nil {
			n++
		}
	}
	for _, s := range services {
		look(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(rabbitQueue(f.exchange, s.name), true, false, false, false, nil)
			return err
		})
	}
	look(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(f.exchange, amqp.ExchangeFanout, true, false, false, false, nil)
	})
	return n
}

func TestTheDemoIsExactOnRabbitMQ(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	report, err := Play(t.Context(), Config{
		Orders: 100, Duplicates: 0.2, Crashes: 1, Seed: 1, Broker: rabbittest.URL(t), Keep: true, Command: []string{os.Args[0]},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK {
		t.Errorf("the report is %+v", report)
	}
	kept := ""
	for _, k := range report.Kept {
		if _, rest, ok := strings.Cut(k, "the exchange "); ok {
			kept, _, _ = strings.Cut(rest, " ")
		}
	}
	f := &rabbitFeed{url: rabbittest.URL(t), exchange: kept, conn: rabbittest.Connect(t)}
	if n := thereAre(t, f); n != 1+len(services) {
		t.Errorf("the report says that %q was kept; of that there are %d", report.Kept, n)
	}
	if err := f.close(context.Background(), false); err != nil {
		t.Error(err)
	}
}

func TestARabbitFeedLeavesNothingUnlessItIsKept(t *testing.T) {
	for _, keep := range []bool{true, false} {
		f := openRabbitFeed(t)
		if err := publish(t, f, newPlan(Config{Orders: 5, Seed: 1})); err != nil {
			t.Fatal(err)
		}
		if err := f.close(t.Context(), keep); err != nil {
			t.Fatal(err)
		}
		want := 0
		if keep {
			want = 1 + len(services)
		}
		if n := thereAre(t, f); n != want {
			t.Errorf("kept: %v, and there are %d on the server", keep, n)
		}
		if keep {
			f.conn = rabbittest.Connect(t)
			if err := f.close(t.Context(), false); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestARabbitQueueHasDrainedWhenNobodyHasAnythingOfItInHand(t *testing.T) {
	f := openRabbitFeed(t)
	want := func(when, consumer string, drained bool) {
		t.Helper()
		if got, err := f.drained(t.Context(), consumer); err != nil || got != drained {
			t.Errorf("%s: drained %v, %v", when, got, err)
		}
	}
	want("nothing was published", courierService, true)
	if err := publish(t, f, newPlan(Config{Orders: 5, Seed: 1})); err != nil {
		t.Fatal(err)
	}
	want("nothing was received", stockService, false)
	ch := rabbittest.Channel(t, rabbittest.Connect(t))
	deliveries, err := ch.Consume(rabbitQueue(f.exchange, stockService), "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var last amqp.Delivery
	for range 5 {
		last = <-deliveries
	}
	want("a consumer has them in hand", stockService, false)
	if err := last.Ack(true); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclarePassive(rabbitQueue(f.exchange, stockService), true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	want("the consumer may have one in hand", stockService, false)
	if err := ch.Close(); err != nil {
		t.Fatal(err)
	}
	// The server tells nobody when it has noticed: ask again and again.
	for begun := time.Now(); time.Since(begun) < 10*time.Second; {
		if drained, err := f.drained(t.Context(), stockService); err != nil || drained {
			break
		}
	}
	want("there is none", stockService, true)
}

func TestARabbitQueueThatIsGoneIsAnError(t *testing.T) {
	f := openRabbitFeed(t)
	rabbittest.Delete(t, rabbittest.Connect(t), rabbitQueue(f.exchange, stockService))
	if _, err := f.drained(t.Context(), stockService); err == nil || !strings.Contains(err.Error(), "the queue "+rabbitQueue(f.exchange, stockService)) {
		t.Errorf("the error is %v", err)
	}
}

func TestTheRabbitFeedShowsNoPassword(t *testing.T) {
	f := &rabbitFeed{url: "rabbitmq://kopi:geheim@127.0.0.1:1"}
	if got := f.String(); strings.Contains(got, "geheim") {
		t.Errorf("it is called %s", got)
	}
	if _, err := openFeed(t.Context(), f.url, "run", t.TempDir()); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the error is %v", err)
	}
}

// scripted is a source that hands over what it has, then waits.
type scripted struct {
	mu     sync.Mutex
	has    []*broker.Delivery
	closed chan struct{}
}

func (s *scripted) Receive(ctx context.Context, _ int) ([]*broker.Delivery, error) {
	s.mu.Lock()
	d := s.has
	s.has = nil
	s.mu.Unlock()
	if len(d) > 0 {
		return d, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *scripted) Settle(context.Context, []broker.Settlement) error { return nil }

func (s *scripted) Close(context.Context) error {
	close(s.closed)
	return nil
}

func TestARabbitSourceRestsOnlyWithNothingInHand(t *testing.T) {
	first := &scripted{has: []*broker.Delivery{{}}, closed: make(chan struct{})}
	second := &scripted{has: []*broker.Delivery{{}}, closed: make(chan struct{})}
	next := []broker.Source{first, second}
	r, err := newResting(func() (broker.Source, error) {
		s := next[0]
		next = next[1:]
		return s, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := r.Receive(ctx, 10)
	if err != nil || len(d) != 1 {
		t.Fatalf("received %d and %v", len(d), err)
	}
	short, done := context.WithTimeout(ctx, 3*rabbitIdle)
	defer done()
	if _, err := r.Receive(short, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("received %v", err)
	}
	select {
	case <-first.closed:
		t.Fatal("it rests with a delivery in hand")
	default:
	}
	if err := r.Settle(ctx, []broker.Settlement{{Delivery: d[0]}}); err != nil {
		t.Fatal(err)
	}
	if d, err := r.Receive(ctx, 10); err != nil || len(d) != 1 {
		t.Fatalf("after its rest: received %d and %v", len(d), err)
	}
	select {
	case <-first.closed:
	default:
		t.Error("it did not rest")
	}
}
