//go:build !fast

package rabbitbroker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/rabbittest"
)

func TestATimeOutOfTheServerIsNoticedAndTheMessageComesAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		// The server's consumer_timeout is 30 s; it looks now and then.
		var cancel context.CancelFunc
		b.ctx, cancel = context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		b.publish(0, 2)
		s := b.source(nil)
		held := b.receive(s, 2)
		err := b.trouble(s)
		if !strings.Contains(err.Error(), "consumer_timeout") || !strings.Contains(err.Error(), "lower Prefetch") {
			t.Errorf("the error is %v", err)
		}
		again := b.receive(s, 2)
		if !held[0].Expired() || !again[0].Redelivered || text(again) != "0 1" {
			t.Errorf("expired %v; came again: %s, redelivered %v", held[0].Expired(), text(again), again[0].Redelivered)
		}
		if err := settle(b.ctx, s, broker.Ack, 0, held...); !errors.Is(err, broker.ErrLost) {
			t.Errorf("late acknowledgements returned %v", err)
		}
		b.settle(s, broker.Ack, again...)
		b.close(s)
		if got := b.left(); got != "" {
			t.Errorf("what is left is %q", got)
		}
	})
}

func TestAQueueThatIsDeletedAndMadeAgainIsFoundAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		b.publish(0, 2)
		s := b.source(nil)
		held := b.receive(s, 2)
		rabbittest.Delete(t, b.conn, b.queue)
		if err := b.trouble(s); !strings.Contains(err.Error(), "the queue was deleted") {
			t.Errorf("the error is %v", err)
		}
		if err := b.trouble(s); !strings.Contains(err.Error(), "the queue is not there: make it, or set Declare") || !strings.Contains(err.Error(), b.queue) {
			t.Errorf("the next error is %v", err)
		}
		rabbittest.Declare(t, b.conn, b.queue, string(kind), nil)
		b.publish(10, 12)
		d := b.receive(s, 2)
		if got := text(d); got != "10 11" {
			t.Errorf("received %s", got)
		}
		if err := settle(b.ctx, s, broker.Ack, 0, held...); !errors.Is(err, broker.ErrLost) {
			t.Errorf("acknowledgements of the old queue's returned %v", err)
		}
		b.close(s)
		if got := b.left(); got != "10 11" {
			t.Errorf("what is left is %q", got)
		}
	})
}

func TestADeclaredQueueIsMadeAndADifferentOneIsAnError(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		rabbittest.Delete(t, b.conn, b.queue)
		declare := func(c *rabbitbroker.SourceConfig) {
			c.Declare = &rabbitbroker.Declare{Kind: kind, Arguments: amqp.Table{"x-max-length": 1000}}
		}
		first := b.source(nil, declare)
		b.nothing(first)
		b.publish(0, 1)
		b.settle(first, broker.Ack, b.receive(first, 1)...)
		same := b.source(nil, declare)
		b.nothing(same)
		unlike := map[rabbitbroker.Kind]rabbitbroker.Kind{rabbitbroker.Quorum: rabbitbroker.Classic, rabbitbroker.Classic: rabbitbroker.Quorum}
		other := b.source(nil, func(c *rabbitbroker.SourceConfig) { c.Declare = &rabbitbroker.Declare{Kind: unlike[kind]} })
		if err := b.trouble(other); !strings.Contains(err.Error(), "is not as Declare says") {
			t.Errorf("the error is %v", err)
		}
		b.close(other)
		// A queue that is deleted is made again.
		rabbittest.Delete(t, b.conn, b.queue)
		if err := b.trouble(same); !strings.Contains(err.Error(), "the queue was deleted") {
			t.Errorf("the error is %v", err)
		}
		b.nothing(same)
	})
}

func TestASingleActiveConsumerHandsOverInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		rabbittest.Delete(t, b.conn, b.queue)
		single := func(c *rabbitbroker.SourceConfig) {
			c.SingleActive, c.Declare = true, &rabbitbroker.Declare{Kind: kind}
		}
		var (
			mu      sync.Mutex
			done    []string
			running sync.WaitGroup
		)
		const n = 60
		ctx, finished := context.WithCancel(b.ctx)
		defer finished()
		wires := []*rabbittest.Wires{{}, {}, {}}
		ready := b.source(nil, single)
		b.nothing(ready) // the queue is there
		b.close(ready)
		b.publish(0, n)
		for i, w := range wires {
			s := b.source(w, single)
			if p, ok := broker.As[broker.PinsLanes](s); !ok || !p.PinsLanes() {
				t.Fatal("it does not pin its lane")
			}
			running.Go(func() {
				for turn := 0; ctx.Err() == nil; turn++ {
					d, err := s.Receive(ctx, 3)
					if err != nil {
						continue
					}
					if d[0].Lane != b.queue {
						t.Errorf("the lane is %q", d[0].Lane)
					}
					if turn%4 == 3 { // not yet
						_ = settle(ctx, s, broker.Retry, 0, d...)
						continue
					}
					if settle(ctx, s, broker.Ack, 0, d...) != nil {
						continue
					}
					mu.Lock()
					for _, x := range d {
						done = append(done, string(x.Message.Body))
					}
					if len(done) > 20*(i+1) && i < 2 {
						w.Kill() // whoever is active dies, and another one goes on
					}
					if len(done) == n {
						finished()
					}
					mu.Unlock()
				}
			})
		}
		running.Wait()
		for i, body := range done {
			if body != fmt.Sprint(i) {
				t.Fatalf("done were %q", done)
			}
		}
		if len(done) != n {
			t.Errorf("%d of %d were done", len(done), n)
		}
	})
}

func TestAMessageThatReachesTheDeliveryLimitIsInTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	dead := rabbittest.Queue(t, b.conn, "quorum", nil)
	rabbittest.Delete(t, b.conn, b.queue)
	s := b.source(nil, func(c *rabbitbroker.SourceConfig) {
		c.Declare = &rabbitbroker.Declare{Arguments: amqp.Table{
			"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
		}}
	})
	b.nothing(s)
	b.publish(0, 1)
	for i := range 3 {
		d := b.receive(s, 1)
		if d[0].Attempt != i+1 {
			t.Errorf("attempt %d, want %d", d[0].Attempt, i+1)
		}
		b.settle(s, broker.Retry, d...)
	}
	b.nothing(s)
	letters := newSource(t, rabbitbroker.SourceConfig{Queue: dead})
	d := b.receive(letters, 1)
	death, _ := d[0].Message.Headers.Get("x-death")
	if text(d) != "0" || d[0].Message.ID != "id-0" || !strings.Contains(string(death), `"reason":"delivery_limit"`) {
		t.Errorf("the dead letter is %s with id %q and x-death %s", text(d), d[0].Message.ID, death)
	}
	// Published again as it came, it is a new message.
	again := d[0].Message
	again.Topic = b.queue
	if err := b.publisher.Publish(b.ctx, again); err != nil {
		t.Fatal(err)
	}
	if d := b.receive(s, 1); d[0].Attempt != 1 || text(d) != "0" {
		t.Errorf("it came as attempt %d of %s", d[0].Attempt, text(d))
	}
}
