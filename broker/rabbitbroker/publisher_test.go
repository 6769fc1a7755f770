//go:build !fast

package rabbitbroker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/internal/rabbittest"
)

// failures returns an error for each message.
func failures(t *testing.T, err error, n int) []error {
	t.Helper()
	if err == nil {
		return make([]error, n)
	}
	var failed *broker.PublishError
	if !errors.As(err, &failed) || len(failed.Errs) != n {
		t.Fatalf("got %v, want a PublishError of %d", err, n)
	}
	return failed.Errs
}

func TestAnUnroutableMessageIsAnErrorAndItsNeighboursAreConfirmed(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	exchange, nowhere := rabbittest.Name(), rabbittest.Name()
	ch := rabbittest.Channel(t, b.conn)
	if err := ch.ExchangeDeclare(exchange, "direct", true, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(b.queue, "paid", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	const calls, each = 8, 300 // more than are under way at once
	for range calls {
		running.Go(func() {
			var m []broker.Message
			for i := range each {
				// Of equal bodies, so that only where they go tells them apart.
				m = append(m, broker.Message{Topic: []string{b.queue, nowhere, exchange + "/paid", exchange + "/lost", nowhere + "/paid", b.queue}[i%6], Body: []byte("same")})
			}
			for i, err := range failures(t, b.publisher.Publish(b.ctx, m...), each) {
				lost := i%6 == 1 || i%6 == 3 || i%6 == 4
				if errors.Is(err, rabbitbroker.ErrUnroutable) != lost || (err != nil) != lost {
					t.Errorf("message %d to %s: %v", i, m[i].Topic, err)
				}
			}
		})
	}
	running.Wait()
	s := b.source(nil)
	for got := 0; got < calls*each/2; {
		d := b.receive(s, 100)
		b.settle(s, broker.Ack, d...)
		got += len(d)
	}
	b.nothing(s)
}

func TestOnlyWhoeverSentItHearsThatAMessageCameBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Classic, nil)
	nowhere := rabbittest.Name()
	var running sync.WaitGroup
	for call := range 16 {
		running.Go(func() {
			for range 20 {
				m := broker.Message{ID: "same", Topic: b.queue, Body: []byte("same")}
				if call%2 == 1 {
					m.Topic = nowhere
				}
				if err := b.publisher.Publish(b.ctx, m); (err != nil) != (call%2 == 1) {
					t.Errorf("call %d: %v", call, err)
				}
			}
		})
	}
	running.Wait()
}

func TestAMessageThatAQueueRefusesIsAnError(t *testing.T) {
	onBoth(t, func(t *testing.T, kind rabbitbroker.Kind) {
		b := newBench(t, kind, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
		refused := 0
		for range 10 { // a queue may take some more than its length
			err := b.publisher.Publish(b.ctx, broker.Message{Topic: b.queue})
			if errors.Is(err, rabbitbroker.ErrRefused) {
				refused++
			} else if err != nil {
				t.Errorf("the error is %v", err)
			}
		}
		if refused < 5 {
			t.Errorf("refused were %d of 10", refused)
		}
	})
}

func TestWhatAMQPCannotCarryIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	long := strings.Repeat("x", 256)
	bad := map[string]broker.Message{
		"is there twice":         {Topic: b.queue, Headers: broker.Headers{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte("1")}}},
		"name of 256 bytes":      {Topic: b.queue, Headers: broker.Headers{{Name: long}}},
		"name of 0 bytes":        {Topic: b.queue, Headers: broker.Headers{{Name: ""}}},
		"ID is longer than 255":  {Topic: b.queue, ID: long},
		"exchange and routing":   {Topic: "/" + long},
		"there is no topic":      {},
		"frame_max":              {Topic: b.queue, Headers: broker.Headers{{Name: "big", Value: make([]byte, 200_000)}}},
		"more than the server's": {Topic: b.queue, Headers: broker.Headers{{Name: "just", Value: bytes.Repeat([]byte("y"), 131072-60)}}},
	}
	for want, m := range bad {
		errs := failures(t, b.publisher.Publish(b.ctx, broker.Message{Topic: b.queue, Body: []byte("good")}, m), 2)
		if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), want) {
			t.Errorf("the errors are %v, want %q of the second", errs, want)
		}
	}
	if got := text(b.receive(b.source(nil), len(bad))); got != strings.TrimSpace(strings.Repeat("good ", len(bad))) {
		t.Errorf("received %s", got)
	}
}

func TestWhatIsTheServersIsNotPublishedAndPropertiesAreAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	other := rabbittest.Queue(t, b.conn, "classic", nil)
	big := bytes.Repeat([]byte("b"), 100_000)
	want := broker.Headers{
		{Name: "a", Value: []byte("1")},
		{Name: "app-id", Value: []byte("\xff")},
		{Name: "big", Value: big},
		{Name: "content-type", Value: []byte("application/json")},
		{Name: "type", Value: []byte{}},
		{Name: keyHeader, Value: []byte("sku")},
	}
	m := broker.Message{Topic: b.queue, OrderingKey: []byte("sku"), Headers: broker.Headers{
		{Name: "CC", Value: []byte(other)},
		{Name: "BCC", Value: []byte(other)},
		{Name: "x-death", Value: []byte("[]")},
		{Name: "x-delivery-count", Value: []byte("7")},
		{Name: "x-first-death-queue", Value: []byte("q")},
		{Name: keyHeader, Value: []byte("old")},
	}}
	m.Headers = append(m.Headers, want[:5]...)
	if err := b.publisher.Publish(b.ctx, m); err != nil {
		t.Fatal(err)
	}
	got := b.receive(b.source(nil, func(c *rabbitbroker.SourceConfig) { c.OrderingKeyHeader = keyHeader }), 1)[0]
	// By name: "ordering-key" stands before "type".
	want[4], want[5] = want[5], want[4]
	if fmt.Sprint(got.Message.Headers) != fmt.Sprint(want) || string(got.Message.OrderingKey) != "sku" || got.Attempt != 1 {
		t.Errorf("it came with %q, ordering key %q, attempt %d", got.Message.Headers, got.Message.OrderingKey, got.Attempt)
	}
	if age := time.Since(got.Message.PublishedAt); age < -2*time.Second || age > time.Minute || got.Message.ID != "" {
		t.Errorf("published at %v, with the id %q", got.Message.PublishedAt, got.Message.ID)
	}
	raw := rabbittest.Channel(t, b.conn)
	if err := b.publisher.Publish(b.ctx, broker.Message{Topic: other, Headers: want[3:4]}); err != nil {
		t.Fatal(err)
	}
	if d, ok, err := raw.Get(other, true); err != nil || !ok || d.ContentType != "application/json" || d.DeliveryMode != amqp.Persistent {
		t.Errorf("there is %v: %+v, %v", ok, d, err)
	}
}

func TestNamesWithSlashesArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	b := newBench(t, rabbitbroker.Quorum, nil)
	exchange := rabbittest.Name() + "/%"
	ch := rabbittest.Channel(t, b.conn)
	if err := ch.ExchangeDeclare(exchange, "direct", true, true, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(b.queue, "a/b", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	topic := strings.TrimSuffix(exchange, "/%") + "%2F%25/a/b"
	if err := b.publisher.Publish(b.ctx, broker.Message{Topic: topic}); err != nil {
		t.Fatal(err)
	}
	if got := b.receive(b.source(nil), 1)[0].Message.Topic; got != topic {
		t.Errorf("the topic is %s, was %s", got, topic)
	}
	slashed := "/" + rabbittest.Name() + "/x"
	rabbittest.Declare(t, b.conn, slashed[1:], "classic", nil)
	rabbittest.Remove(t, b.conn, slashed[1:])
	if err := b.publisher.Publish(b.ctx, broker.Message{Topic: slashed}); err != nil {
		t.Fatal(err)
	}
	if got := b.receive(newSource(t, rabbitbroker.SourceConfig{Queue: slashed[1:]}), 1)[0].Message.Topic; got != slashed {
		t.Errorf("the topic is %s, was %s", got, slashed)
	}
}

func TestAPublisherConnectsAgain(t *testing.T) {
	t.Parallel()
	b, w := newBench(t, rabbitbroker.Quorum, nil), &rabbittest.Wires{}
	p := newPublisher(t, rabbitbroker.WithClient(w.Client()))
	for range 10 {
		for {
			err := p.Publish(b.ctx, broker.Message{Topic: b.queue})
			if err == nil {
				break
			}
			if b.ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		w.Cut()
	}
	if err := p.Close(b.ctx); err != nil {
		t.Error(err)
	}
	if err := p.Publish(b.ctx, broker.Message{Topic: b.queue}); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestALostConfirmationIsAnError(t *testing.T) {
	t.Parallel()
	b, c := newBench(t, rabbitbroker.Quorum, nil), &deaf{}
	p := newPublisher(t, rabbitbroker.WithClient(amqp.Config{Dial: c.dial}))
	err := p.Publish(b.ctx, broker.Message{Topic: b.queue, Body: []byte("0")})
	if errs := failures(t, err, 1); !errors.Is(errs[0], rabbitbroker.ErrNotConfirmed) {
		t.Errorf("the error is %v", err)
	}
	if got := text(b.receive(b.source(nil), 1)); got != "0" {
		t.Errorf("received %s", got)
	}
}

// deaf breaks its connection at the first confirmation.
type deaf struct{ net.Conn }

func (d *deaf) dial(network, addr string) (net.Conn, error) {
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	d.Conn = c
	return d, err
}

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if basicAck := []byte{0, 60, 0, 80}; bytes.Contains(p[:n], basicAck) {
		_ = d.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// told is a connection on which a test says things in the server's name.
type told struct {
	net.Conn
	mu  sync.Mutex
	say []byte
}

func (c *told) dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, 10*time.Second)
	c.Conn = conn
	return c, err
}

// Read returns what the test says at the end of something that the server
// says.
func (c *told) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 && p[n-1] == 0xCE && len(p)-n > len(c.say) { // a frame's end
		n += copy(p[n:], c.say)
		c.say = nil
	}
	return n, err
}

func (c *told) says(method byte, arguments string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	payload := append([]byte{0, 10, 0, method}, arguments...)
	c.say = append(append([]byte{1, 0, 0, 0, 0, 0, byte(len(payload))}, payload...), 0xCE)
}

func TestAServerThatTakesNothingHoldsAPublishNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	const blocked, unblocked = 60, 61
	b, c := newBench(t, rabbitbroker.Quorum, nil), &told{}
	// The server says something twice a second at least.
	p, err := rabbitbroker.NewPublisher(rabbittest.URL(t)+"?heartbeat=1", rabbitbroker.WithClient(amqp.Config{Dial: c.dial}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(soon(t)) })
	send := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		defer cancel()
		return p.Publish(ctx, broker.Message{Topic: b.queue})
	}
	if err := send(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	c.says(blocked, "\x0alow memory")
	for range 2 {
		begun := time.Now()
		err := send(200 * time.Millisecond)
		for err == nil { // the word comes with the answer to this
			begun = time.Now()
			err = send(200 * time.Millisecond)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "low memory") {
			t.Fatalf("the error is %v", err)
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	c.says(unblocked, "")
	if err := send(20 * time.Second); err != nil {
		t.Errorf("when it takes messages again: %v", err)
	}
}

func TestAWriteThatIsStuckIsCutAtTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	b, c := newBench(t, rabbitbroker.Quorum, nil), &sticky{}
	p := newPublisher(t, rabbitbroker.WithClient(amqp.Config{Dial: c.dial}))
	if err := p.Publish(b.ctx, broker.Message{Topic: b.queue}); err != nil {
		t.Fatal(err)
	}
	c.stick(true)
	short, cancel := context.WithTimeout(b.ctx, 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := p.Publish(short, broker.Message{Topic: b.queue}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	c.stick(false)
	if err := p.Publish(b.ctx, broker.Message{Topic: b.queue}); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// sticky is a connection whose writes can be made to hang until it is closed.
type sticky struct {
	mu    sync.Mutex
	stuck bool
}

func (s *sticky) stick(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = on
}

func (s *sticky) dial(network, addr string) (net.Conn, error) {
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	return &hanging{Conn: c, s: s, closed: make(chan struct{})}, err
}

type hanging struct {
	net.Conn
	s      *sticky
	once   sync.Once
	closed chan struct{}
}

func (h *hanging) Write(p []byte) (int, error) {
	h.s.mu.Lock()
	stuck := h.s.stuck
	h.s.mu.Unlock()
	if stuck {
		<-h.closed
	}
	return h.Conn.Write(p)
}

func (h *hanging) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}
