//go:build !fast

package amqpbroker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/internal/amqptest"
)

// receive waits for n deliveries, going on after errors that pass.
func receive(t *testing.T, s broker.Source, n int) (all []*broker.Delivery) {
	t.Helper()
	ctx := soon(t)
	for len(all) < n {
		got, err := s.Receive(ctx, n-len(all))
		if err != nil && (ctx.Err() != nil || errors.Is(err, broker.ErrClosed)) {
			t.Fatalf("received %d of %d: %v", len(all), n, err)
		}
		all = append(all, got...)
	}
	return all
}

func settle(t *testing.T, s broker.Source, a broker.Action, d ...*broker.Delivery) {
	t.Helper()
	var batch []broker.Settlement
	for _, one := range d {
		batch = append(batch, broker.Settlement{Delivery: one, Action: a})
	}
	if err := s.Settle(soon(t), batch); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, queue string, bodies ...string) {
	t.Helper()
	p := newPublisher(t)
	for _, body := range bodies {
		if err := p.Publish(soon(t), broker.Message{Topic: queue, Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
}

// artemisOnly: what follows is Artemis' own.
func artemisOnly(t *testing.T) {
	t.Helper()
	if !amqptest.IsArtemis(t) {
		t.Skip("the server stands in for Artemis, and is none; the run says so")
	}
}

func TestAJMSClientsMessageHasItsJMSMessageID(t *testing.T) {
	t.Parallel()
	artemisOnly(t)
	queue := amqptest.Queue(t)
	id := amqptest.JMS(t, "send", queue)[0]
	s := newSource(t, amqpbroker.SourceConfig{Queue: queue})
	d := receive(t, s, 1)[0]
	m := d.Message
	if m.ID != id || !strings.HasPrefix(id, "ID:") {
		t.Errorf("the ID is %q, and JMSMessageID %q", m.ID, id)
	}
	trace, _ := m.Headers.Get("trace")
	quantity, _ := m.Headers.Get("quantity")
	if string(m.Body) != "kopi ☕" || string(trace) != "abc" || string(quantity) != "3" || string(m.OrderingKey) != "KOPI-250" {
		t.Errorf("the message is %+v", m)
	}
	if d.Attempt != 1 || d.Redelivered || time.Since(m.PublishedAt).Abs() > time.Minute {
		t.Errorf("the delivery is %+v, published at %v", d, m.PublishedAt)
	}
	settle(t, s, broker.Ack, d)
}

func TestAJMSClientSeesWhatIsPublished(t *testing.T) {
	t.Parallel()
	artemisOnly(t)
	queue := amqptest.Queue(t)
	err := newPublisher(t).Publish(soon(t), broker.Message{
		Topic: queue, ID: "ID:AMQP_UUID:4502a5e6-354a-867d-8e10-bdfbc4e19188", OrderingKey: []byte("KOPI-250"), Body: []byte("kopi ☕"),
		Headers: broker.Headers{{Name: "trace", Value: []byte("abc")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := amqptest.JMS(t, "receive", queue)
	want := []string{"ID:AMQP_UUID:4502a5e6-354a-867d-8e10-bdfbc4e19188", "1", "KOPI-250", "abc", "kopi ☕"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("a JMS client sees %q, want %q", got, want)
	}
}

func TestTheCountGrowsWhenAConnectionIsLostAndNotWhenADeliveryIsGivenBack(t *testing.T) {
	t.Parallel()
	artemisOnly(t)
	queue := amqptest.Queue(t)
	publish(t, queue, "a")
	url, proxy := amqptest.Proxied(t)
	s := newSource(t, amqpbroker.SourceConfig{URL: url, Queue: queue})
	for range 3 {
		d := receive(t, s, 1)[0]
		if d.Attempt != 1 || d.Redelivered {
			t.Errorf("given back, it is attempt %d", d.Attempt)
		}
		settle(t, s, broker.Retry, d)
	}
	// Artemis does not count every loss, but what it counted stays counted.
	highest := 1
	for tries := 0; highest < 3; tries++ {
		again := receive(t, s, 1)[0]
		if again.Attempt < highest || again.Redelivered != (again.Attempt > 1) || tries > 50 {
			t.Fatalf("after %d lost connections it is attempt %d, redelivered: %v", tries, again.Attempt, again.Redelivered)
		}
		highest = again.Attempt
		proxy.Cut()
	}
	settle(t, s, broker.Ack, receive(t, s, 1)...)
}

func TestADeliveryOfALostLinkSettlesNothing(t *testing.T) {
	t.Parallel()
	queue := amqptest.Queue(t)
	publish(t, queue, "a", "b")
	url, proxy := amqptest.Proxied(t)
	s := newSource(t, amqpbroker.SourceConfig{URL: url, Queue: queue})
	stale := receive(t, s, 2)
	proxy.Cut()
	fresh := receive(t, s, 2)
	settle(t, s, broker.Ack, fresh[0])
	err := s.Settle(soon(t), []broker.Settlement{{Delivery: stale[0]}, {Delivery: stale[1]}})
	if !errors.Is(err, broker.ErrLost) {
		t.Errorf("stale deliveries were settled: %v", err)
	}
	if err := s.Settle(soon(t), []broker.Settlement{{Delivery: fresh[0]}}); !errors.Is(err, broker.ErrLost) {
		t.Errorf("a delivery was settled twice: %v", err)
	}
	if err := s.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	left := receive(t, newSource(t, amqpbroker.SourceConfig{Queue: queue}), 1)
	if string(left[0].Message.Body) != string(fresh[1].Message.Body) {
		t.Errorf("left is %q, want %q", left[0].Message.Body, fresh[1].Message.Body)
	}
}

func TestADeliveryLimitMovesTheMessageToWhereItIsSeen(t *testing.T) {
	t.Parallel()
	artemisOnly(t)
	queue := amqptest.Queue(t)
	publish(t, queue, "poison of "+queue)
	url, proxy := amqptest.Proxied(t)
	s := newSource(t, amqpbroker.SourceConfig{URL: url, Queue: queue})
	// Artemis' max-delivery-attempts is 10, and it does not count every loss.
	for begun := time.Now(); time.Since(begun) < 2*time.Minute; {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		got, err := s.Receive(ctx, 1)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break // it does not come any more
		}
		if len(got) > 0 {
			proxy.Cut()
		}
	}
	dead := newSource(t, amqpbroker.SourceConfig{Queue: "DLQ"})
	for {
		d := receive(t, dead, 1)[0]
		settle(t, dead, broker.Ack, d)
		if string(d.Message.Body) == "poison of "+queue {
			return
		}
	}
}

func TestALinkThatTheBrokerEndsIsMadeAgain(t *testing.T) {
	t.Parallel()
	queue := amqptest.Queue(t)
	publish(t, queue, "a")
	url, proxy := amqptest.Proxied(t)
	s := newSource(t, amqpbroker.SourceConfig{URL: url, Queue: queue})
	settle(t, s, broker.Ack, receive(t, s, 1)...)
	proxy.Refuse()
	proxy.Cut()
	ctx := soon(t)
	for range 2 { // one finds the link gone, one that there is no server
		if _, err := s.Receive(ctx, 1); err == nil || errors.Is(err, broker.ErrClosed) || strings.Contains(err.Error(), "sekali:sekali@") {
			t.Errorf("while the server is away: %v", err)
		}
	}
	proxy.Accept()
	publish(t, queue, "b")
	settle(t, s, broker.Ack, receive(t, s, 1)...)
}

func TestAnExclusiveQueueIsOneLane(t *testing.T) {
	t.Parallel()
	queue := amqptest.Queue(t)
	s := newSource(t, amqpbroker.SourceConfig{Queue: queue, Exclusive: true})
	publish(t, queue, "a", "b", "c")
	got := ""
	for _, d := range receive(t, s, 3) {
		got += string(d.Message.Body)
		if d.Lane != queue {
			t.Errorf("the lane is %q", d.Lane)
		}
	}
	if got != "abc" || !s.PinsLanes() {
		t.Errorf("received %q, lanes are pinned: %v", got, s.PinsLanes())
	}
}

// Values that other clients may send.
func TestWhatOtherClientsSendComesAsBytes(t *testing.T) {
	t.Parallel()
	queue := amqptest.Queue(t)
	conn := amqptest.Connect(t)
	session, err := conn.NewSession(soon(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := session.NewSender(soon(t), queue, &amqp.SenderOptions{TargetCapabilities: []string{"queue"}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 12, 1, 2, 3, 4, 0, time.UTC)
	bodies := map[string]*amqp.Message{
		"text":  {Value: "text"},
		"\x00b": {Value: []byte("\x00b")},
		"7":     {Value: int32(7)},
	}
	if amqptest.IsArtemis(t) { // RabbitMQ 3.10 turns the sections round
		bodies["joined"] = &amqp.Message{Data: [][]byte{[]byte("joi"), []byte("ned")}}
	}
	for body, m := range bodies {
		m.ApplicationProperties = map[string]any{"b": true, "f": 1.5, "t": at, "n": nil, "u": uint64(1 << 63), "i": int8(-1)}
		if err := sender.Send(soon(t), m, nil); err != nil {
			t.Fatal(err)
		}
		s := newSource(t, amqpbroker.SourceConfig{Queue: queue})
		d := receive(t, s, 1)[0]
		if string(d.Message.Body) != body {
			t.Errorf("a body came as %q, want %q", d.Message.Body, body)
		}
		headers := ""
		for _, h := range d.Message.Headers {
			headers += h.Name + "=" + string(h.Value) + " "
		}
		if want := "b=true f=1.5 i=-1 n= t=2026-12-01T02:03:04Z u=9223372036854775808 "; headers != want {
			t.Errorf("headers came as %q, want %q", headers, want)
		}
		settle(t, s, broker.Ack, d)
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
	}
}
