//go:build !fast

package rabbitbroker_test

import (
	"bytes"
	"net"
	"reflect"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/rabbittest"
)

func delayedRetry(c *rabbitbroker.SourceConfig) { c.DelayedRetry = true }

func TestADelayedRetryCountsAndKeepsTheMessageAsItWas(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, nil)
		removeRetryQueues(t, b.conn, b.queue)
		ch, exchange := rabbittest.Channel(t, b.conn), rabbittest.Name()
		if err := ch.ExchangeDeclare(exchange, "direct", true, true, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.QueueBind(b.queue, "orders/paid", exchange, false, nil); err != nil {
			t.Fatal(err)
		}
		// It has been in the queue before, and expired there: the server drops
		// what goes in a circle.
		death := amqp.Table{"queue": b.queue, "reason": "expired", "count": int64(1), "exchange": "", "routing-keys": []any{b.queue}}
		err := ch.PublishWithContext(b.ctx, exchange, "orders/paid", true, false, amqp.Publishing{
			Headers:     amqp.Table{"x-death": []any{death}, "x-first-death-queue": b.queue, "n": int32(7), "raw": []byte("\x00\xff"), "list": []any{"a"}},
			ContentType: "application/json", MessageId: "id-1", Timestamp: time.Unix(1700000000, 0), Expiration: "60000",
			CorrelationId: "c", Priority: 3, Body: []byte("{}"),
		})
		if err != nil {
			t.Fatal(err)
		}
		s := b.source(nil, delayedRetry)
		first := b.receive(s, 1)[0]
		if first.Message.Topic != exchange+"/orders/paid" || first.Attempt != 1 || first.Redelivered {
			t.Fatalf("it arrived as %+v", first)
		}
		d := first
		for attempt := 2; attempt <= 5; attempt++ {
			begun, delay := time.Now(), 150*time.Millisecond
			want := attempt
			if attempt == 4 {
				delay = 0 // given back at once, between delayed ones
				if kind == rabbitbroker.Classic {
					want = 0 // which it does not count
				}
			}
			if err := settle(b.ctx, s, broker.Retry, delay, d); err != nil {
				t.Fatal(err)
			}
			d = b.receive(s, 1)[0]
			if took := time.Since(begun); took < delay {
				t.Errorf("came after %v", took)
			}
			if d.Attempt != want || !d.Redelivered {
				t.Errorf("came as attempt %d, redelivered %v; want %d", d.Attempt, d.Redelivered, want)
			}
			if !reflect.DeepEqual(d.Message, first.Message) {
				t.Errorf("it came as %+v, was %+v", d.Message, first.Message)
			}
		}
		b.settle(s, broker.Ack, d)
		b.close(s)
		if got := b.left(); got != "" {
			t.Errorf("what is left is %q", got)
		}
	})
}

// crashing cuts the first connection when the second one brings a
// confirmation, before anybody hears of it.
type crashing struct {
	mu    sync.Mutex
	conns []net.Conn
	off   bool
}

func (c *crashing) dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	if len(c.conns) == 2 {
		return &listening{conn, c}, nil
	}
	return conn, nil
}

type listening struct {
	net.Conn
	c *crashing
}

func (l *listening) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if basicAck := []byte{0, 60, 0, 80}; bytes.Contains(p[:n], basicAck) {
		l.c.mu.Lock()
		defer l.c.mu.Unlock()
		if !l.c.off {
			l.c.off = true
			_ = l.c.conns[0].Close()
		}
	}
	return n, err
}

func TestACrashBetweenTheCopyAndTheAcknowledgementDoublesAndLosesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b, c := newBench(t, kind, nil), &crashing{}
		removeRetryQueues(t, b.conn, b.queue)
		b.publish(0, 1)
		s := b.source(nil, delayedRetry, func(cfg *rabbitbroker.SourceConfig) { cfg.Client.Dial = c.dial })
		d := b.receive(s, 1)
		if err := settle(b.ctx, s, broker.Retry, 100*time.Millisecond, d...); err == nil {
			t.Error("the acknowledgement cannot have been heard of")
		}
		got := b.receive(s, 2)
		for _, x := range got {
			if x.Message.ID != "id-0" || !x.Redelivered || kind == rabbitbroker.Quorum && x.Attempt != 2 {
				t.Errorf("came as %q, attempt %d, redelivered %v", x.Message.ID, x.Attempt, x.Redelivered)
			}
		}
		b.settle(s, broker.Ack, got...)
		b.close(s)
		if got := b.left(); got != "" {
			t.Errorf("what is left is %q", got)
		}
	})
}

func TestARetryThatCannotBeDelayedGoesBackAtOnceAndIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	// A queue of this name and of other arguments is in the way.
	rabbittest.Declare(t, b.conn, b.queue+".sekali-retry.250", "classic", nil)
	removeRetryQueues(t, b.conn, b.queue)
	b.publish(0, 2)
	s := b.source(nil, delayedRetry)
	d := b.receive(s, 2)
	begun := time.Now()
	err := s.Settle(b.ctx, []broker.Settlement{{Delivery: d[0], Action: broker.Retry, Delay: 200 * time.Millisecond}, {Delivery: d[1]}})
	if err == nil {
		t.Error("no error")
	}
	again := b.receive(s, 1)
	if took := time.Since(begun); text(again) != "0" || again[0].Attempt != 2 || took > 10*time.Second {
		t.Errorf("came again after %v: %s, attempt %d", took, text(again), again[0].Attempt)
	}
	b.settle(s, broker.Ack, again...)
	b.close(s)
	if got := b.left(); got != "" {
		t.Errorf("what is left is %q", got)
	}
}
