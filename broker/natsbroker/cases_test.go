package natsbroker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/natstest"
)

func TestCasesOnAnEmbeddedServer(t *testing.T) {
	url := natstest.Start(t)
	t.Run("cases", func(t *testing.T) { cases(t, url) })
}

// fixture is a stream of its own with what cases need.
type fixture struct {
	js    jetstream.JetStream
	name  string // of the stream
	topic string
}

func cases(t *testing.T, url string) {
	for name, run := range map[string]func(*testing.T, fixture){
		"the messages of a stream that was made again are new":               recreatedStream,
		"a late acknowledgement settles nothing in a stream made again":      staleAck,
		"Receive ends when the stream or the consumer is deleted":            deleted,
		"a stream may be made after its source":                              lateStream,
		"a subject in the place of a stream is told its stream":              subjectForStream,
		"a bound consumer that loses messages or their order is refused":     unfitConsumer,
		"a consumer of ours is brought in line and keeps its other settings": inLine,
		"a bound consumer keeps its AckWait":                                 bound,
		"MaxAckPending holds messages back and nothing waits for them":       maxAckPending,
		"Close gives back what the server sent and nobody received":          unreceived,
		"the duplicate window drops a repeated id, unless ids are left out":  duplicateWindow,
		"headers that NATS would change are refused, instructions dropped":   publishedHeaders,
		"what cannot be published fails alone":                               failsAlone,
		"filters, starting points and ordering keys are obeyed":              choices,
		"the source tells how long its stream keeps messages":                told,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := connect(t, url)
			stream := makeStream(t, js)
			run(t, fixture{js, stream, stream + ".orders"})
		})
	}
}

func (f fixture) source(t *testing.T, change ...func(*natsbroker.SourceConfig)) *natsbroker.Source {
	t.Helper()
	cfg := natsbroker.SourceConfig{Stream: f.name, Consumer: "stock"}
	for _, c := range change {
		c(&cfg)
	}
	return newSource(t, f.js, cfg)
}

// quick has short requests: servers before 2.10 do not say that what they were
// asked of was deleted, so that it is noticed at a request's end.
func quick(c *natsbroker.SourceConfig) { c.AckWait = 2 * time.Second }

// remake deletes the stream and makes it again.
func (f fixture) remake(t *testing.T) {
	t.Helper()
	if err := f.js.DeleteStream(t.Context(), f.name); err != nil {
		t.Fatal(err)
	}
	createStream(t, f.js, f.name)
}

func recreatedStream(t *testing.T, f fixture) {
	publish(t, f.js, f.topic, "1", "2")
	s := f.source(t)
	old := receive(t, s, 2)
	seen := map[string]bool{old[0].Message.ID: true, old[1].Message.ID: true}
	if id := old[0].Message.ID; !strings.HasPrefix(id, f.name+"@") || !strings.HasSuffix(id, "/1") {
		t.Errorf("the id is %q", id)
	}
	// The source has no request open and hears nothing of what happens.
	f.remake(t)
	other := f.source(t)
	publish(t, f.js, f.topic, "1 again", "2 again")
	fresh := receive(t, other, 2)
	if err := settle(t, other, broker.Retry, fresh[0]); err != nil {
		t.Fatal(err)
	}
	again := receive(t, s, 1)
	if id := again[0].Message.ID; id != fresh[0].Message.ID || seen[id] || seen[fresh[1].Message.ID] {
		t.Errorf("the ids %q and %q of new messages, seen before: %v", id, fresh[1].Message.ID, seen)
	}
	// The sequence of old 2 is in the other's hand as new 2.
	if err := settle(t, s, broker.Ack, old[1], again[0]); !errors.Is(err, broker.ErrLost) {
		t.Errorf("acknowledging a message of the stream that is gone returned %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, s, 1)[0].Message; string(got.Body) != "2 again" {
		t.Errorf("received %q, want what the other gave back", got.Body)
	}
}

func staleAck(t *testing.T, f fixture) {
	publish(t, f.js, f.topic, "old")
	s := f.source(t, quick)
	old := receive(t, s, 1)
	if err := f.js.DeleteStream(t.Context(), f.name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(t.Context(), 1); err == nil {
		t.Fatal("received from a deleted stream")
	}
	createStream(t, f.js, f.name)
	publish(t, f.js, f.topic, "new")
	other := f.source(t)
	held := receive(t, other, 1)
	if err := settle(t, s, broker.Ack, old...); !errors.Is(err, broker.ErrLost) {
		t.Errorf("acknowledging a message of the stream that is gone returned %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, f.source(t), 1)[0].Message; string(got.Body) != "new" || got.ID != held[0].Message.ID {
		t.Errorf("received %q", got.Body)
	}
}

func deleted(t *testing.T, f fixture) {
	deletedWhileWaiting(t, f, "consumer", func() error { return f.js.DeleteConsumer(t.Context(), f.name, "stock") })
	deletedWhileWaiting(t, f, "stream", func() error { return f.js.DeleteStream(t.Context(), f.name) })
}

func deletedWhileWaiting(t *testing.T, f fixture, what string, remove func() error) {
	t.Helper()
	s := f.source(t, quick)
	publish(t, f.js, f.topic, "1")
	d := receive(t, s, 1)
	if err := settle(t, s, broker.Ack, d...); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var err error
		for err == nil || !errors.Is(err, broker.ErrClosed) && ctx.Err() == nil {
			_, err = s.Receive(ctx, 1)
		}
		ended <- err
	}()
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, broker.ErrClosed) || !strings.Contains(err.Error(), what+" was deleted") {
		t.Errorf("after the %s was deleted Receive returned %v", what, err)
	}
}

func lateStream(t *testing.T, f fixture) {
	if err := f.js.DeleteStream(t.Context(), f.name); err != nil {
		t.Fatal(err)
	}
	s := f.source(t)
	if _, err := s.Receive(t.Context(), 1); !errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, broker.ErrClosed) {
		t.Errorf("Receive without a stream returned %v", err)
	}
	createStream(t, f.js, f.name)
	publish(t, f.js, f.topic, "1")
	receive(t, s, 1)
}

func subjectForStream(t *testing.T, f fixture) {
	subject := "subject-" + f.name
	if _, err := f.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: f.name, Subjects: []string{f.topic, subject}}); err != nil {
		t.Fatal(err)
	}
	s := f.source(t, func(c *natsbroker.SourceConfig) { c.Stream = subject })
	_, err := s.Receive(t.Context(), 1)
	if err == nil || errors.Is(err, broker.ErrClosed) || !strings.Contains(err.Error(), fmt.Sprintf("%q is a subject, and its stream is %q", subject, f.name)) {
		t.Errorf("Receive from a subject returned %v", err)
	}
}

func (f fixture) consumer(t *testing.T, c jetstream.ConsumerConfig) {
	t.Helper()
	c.Durable = "stock"
	if _, err := f.js.CreateOrUpdateConsumer(t.Context(), f.name, c); err != nil {
		t.Fatal(err)
	}
}

func unfitConsumer(t *testing.T, f fixture) {
	bind := func(c *natsbroker.SourceConfig) { c.BindOnly = true }
	bindOrdered := func(c *natsbroker.SourceConfig) { c.BindOnly, c.Ordered = true, true }
	explicit := jetstream.AckExplicitPolicy
	for what, x := range map[string]struct {
		consumer jetstream.ConsumerConfig
		change   func(*natsbroker.SourceConfig)
		says     string
	}{
		"limit":        {jetstream.ConsumerConfig{AckPolicy: explicit, MaxDeliver: 5}, bind, "set it to -1"},
		"policy":       {jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, bind, "AckPolicy explicit"},
		"policy, ours": {jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, func(*natsbroker.SourceConfig) {}, "AckPolicy explicit"},
		"headers":      {jetstream.ConsumerConfig{AckPolicy: explicit, HeadersOnly: true}, bind, "HeadersOnly"},
		"order":        {jetstream.ConsumerConfig{AckPolicy: explicit, MaxAckPending: 2}, bindOrdered, "set it to 1"},
		"time":         {jetstream.ConsumerConfig{AckPolicy: explicit, AckWait: 50 * time.Millisecond}, bind, "at least"},
	} {
		f.consumer(t, x.consumer)
		_, err := f.source(t, x.change).Receive(shortly(t, 5*time.Second), 1)
		if !errors.Is(err, broker.ErrClosed) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: Receive returned %v", what, err)
		}
		if err := f.js.DeleteConsumer(t.Context(), f.name, "stock"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.js.CreatePushConsumer(t.Context(), f.name, jetstream.ConsumerConfig{
		Durable: "stock", AckPolicy: explicit, DeliverSubject: "push." + f.name,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.source(t).Receive(shortly(t, 5*time.Second), 1); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("a push consumer: Receive returned %v", err)
	}
}

func inLine(t *testing.T, f fixture) {
	f.consumer(t, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 2, AckWait: time.Minute, Description: "kept",
		DeliverPolicy: jetstream.DeliverNewPolicy,
	})
	s := f.source(t, func(c *natsbroker.SourceConfig) { c.MaxAckPending = 7 })
	publish(t, f.js, f.topic, "1")
	for n := 1; n <= 4; n++ {
		d := receive(t, s, 1)
		if d[0].Attempt != n {
			t.Fatalf("attempt %d, want %d", d[0].Attempt, n)
		}
		if err := settle(t, s, broker.Retry, d...); err != nil {
			t.Fatal(err)
		}
	}
	c, err := f.js.Consumer(t.Context(), f.name, "stock")
	if err != nil {
		t.Fatal(err)
	}
	got := c.CachedInfo().Config
	if got.MaxDeliver != -1 || got.AckWait != 30*time.Second || got.MaxAckPending != 7 ||
		got.Description != "kept" || got.DeliverPolicy != jetstream.DeliverNewPolicy {
		t.Errorf("the consumer is now %+v", got)
	}
}

func bound(t *testing.T, f fixture) {
	bind := func(c *natsbroker.SourceConfig) { c.BindOnly = true }
	s := f.source(t, bind)
	if _, err := s.Receive(t.Context(), 1); !errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, broker.ErrClosed) {
		t.Errorf("Receive without a consumer returned %v", err)
	}
	f.consumer(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, AckWait: 3 * time.Second, MaxRequestBatch: 2})
	publish(t, f.js, f.topic, "1", "2", "3")
	receive(t, s, 3)
	if got := s.KeepAliveEvery(); got != time.Second {
		t.Errorf("KeepAliveEvery is %v, want a third of the consumer's AckWait", got)
	}
}

func maxAckPending(t *testing.T, f fixture) {
	limit := func(c *natsbroker.SourceConfig) { c.MaxAckPending = 5 }
	publish(t, f.js, f.topic, "1", "2", "3", "4", "5", "6")
	s, other := f.source(t, limit), f.source(t, limit)
	held := receive(t, s, 3)
	// Two are free, five are asked for: the server does not say that these are
	// all for now.
	var more []*broker.Delivery
	for begun := time.Now(); len(more) < 2; {
		d, err := other.Receive(shortly(t, 10*time.Second), 5)
		if err != nil || time.Since(begun) > 2*time.Second {
			t.Fatalf("received %d after %v, %v", len(d), time.Since(begun), err)
		}
		more = append(more, d...)
	}
	// One message is left, and more than one is asked for already: the server
	// refuses a further request that does not wait.
	asked := f.js.Conn().Stats().OutMsgs
	var wg sync.WaitGroup
	for _, waiting := range []broker.Source{s, other} {
		wg.Go(func() {
			if d, err := waiting.Receive(shortly(t, 600*time.Millisecond), 5); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with five out, received %d, %v", len(d), err)
			}
		})
	}
	wg.Wait()
	if asked = f.js.Conn().Stats().OutMsgs - asked; asked > 30 {
		t.Errorf("asked the server %d times while there was nothing to have", asked)
	}
	if err := settle(t, s, broker.Ack, held...); err != nil {
		t.Fatal(err)
	}
	rest := receive(t, other, 1)
	if err := settle(t, other, broker.Ack, append(more, rest...)...); err != nil {
		t.Fatal(err)
	}
}

// unreceived: the server delivers to a request that is still open after Receive
// returned. AckWait is longer than receive waits.
func unreceived(t *testing.T, f fixture) {
	limit := func(c *natsbroker.SourceConfig) { c.MaxAckPending = 4 }
	publish(t, f.js, f.topic, "1", "2", "3", "4")
	s, other := f.source(t, limit), f.source(t, limit)
	held := receive(t, other, 2)
	receive(t, s, 1) // of a request for one
	d, err := s.Receive(shortly(t, 10*time.Second), 4)
	if err != nil || len(d) != 1 {
		t.Fatalf("received %d, %v", len(d), err)
	}
	publish(t, f.js, f.topic, "5", "6")
	if err := settle(t, other, broker.Ack, held...); err != nil { // two may go out now
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, d := range receive(t, other, 4) {
		got[string(d.Message.Body)] = d.Attempt
	}
	if got["5"] != 2 || got["6"] != 2 {
		t.Errorf("received %v, want 5 and 6 for the second time", got)
	}
}

func shortly(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func duplicateWindow(t *testing.T, f fixture) {
	m := broker.Message{ID: "same", Topic: f.topic, Body: []byte("1")}
	with, without := natsbroker.NewPublisher(f.js), natsbroker.NewPublisher(f.js, natsbroker.WithoutMsgID())
	for _, p := range []*natsbroker.Publisher{with, with, without} {
		if err := p.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	d := receive(t, f.source(t), 2)
	if d[0].Message.ID != "same" || d[1].Message.ID == "same" {
		t.Errorf("received ids %q and %q", d[0].Message.ID, d[1].Message.ID)
	}
	publish(t, f.js, f.topic, "last")
	if last := receive(t, f.source(t), 1); string(last[0].Message.Body) != "last" {
		t.Errorf("received %q, want the last", last[0].Message.Body)
	}
}

func publishedHeaders(t *testing.T, f fixture) {
	p := natsbroker.NewPublisher(f.js)
	for _, h := range []broker.Header{
		{Name: "", Value: []byte("x")},
		{Name: "a b", Value: []byte("x")},
		{Name: "a:b", Value: []byte("x")},
		{Name: "a\r\nb", Value: []byte("x")},
		{Name: "a", Value: []byte("x\r\nNats-Msg-Id: y")},
		{Name: "a", Value: []byte("x\ny")},
		{Name: "a", Value: []byte(" x")},
		{Name: "a", Value: []byte("x\t")},
	} {
		if err := p.Publish(t.Context(), broker.Message{Topic: f.topic, Headers: broker.Headers{h}}); err == nil {
			t.Errorf("header %q with value %q was published", h.Name, h.Value)
		}
	}
	// As a redriven message would carry them.
	m := broker.Message{ID: "new", Topic: f.topic, Headers: broker.Headers{
		{Name: "Nats-Msg-Id", Value: []byte("old")},
		{Name: "Nats-Expected-Last-Sequence", Value: []byte("99")},
		{Name: "Nats-Rollup", Value: []byte("all")},
		{Name: "bytes", Value: []byte("\x00\x01\xff\x7f")},
	}}
	if err := p.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got := receive(t, f.source(t), 1)[0].Message
	if v, _ := got.Headers.Get("bytes"); got.ID != "new" || string(v) != "\x00\x01\xff\x7f" || len(got.Headers) != 2 {
		t.Errorf("received id %q with headers %q", got.ID, got.Headers)
	}
}

func failsAlone(t *testing.T, f fixture) {
	p := natsbroker.NewPublisher(f.js)
	good := broker.Message{Topic: f.topic, Body: []byte("good")}
	huge := broker.Message{Topic: f.topic, Body: make([]byte, 2<<20)}
	err := p.Publish(t.Context(), good, huge, broker.Message{Topic: "a b"}, broker.Message{Topic: f.name + ".*"},
		broker.Message{Topic: ""}, broker.Message{Topic: "nowhere." + f.name}, good)
	var failed *broker.PublishError
	if !errors.As(err, &failed) {
		t.Fatalf("got %v", err)
	}
	for i, want := range []bool{false, true, true, true, true, true, false} {
		if (failed.Errs[i] != nil) != want {
			t.Errorf("message %d: %v", i, failed.Errs[i])
		}
	}
	if !errors.Is(failed.Errs[1], nats.ErrMaxPayload) || !errors.Is(failed.Errs[5], natsbroker.ErrNoStream) {
		t.Errorf("the causes are %v and %v", failed.Errs[1], failed.Errs[5])
	}
	receive(t, f.source(t), 2)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Publish(ended, good); !errors.Is(err, context.Canceled) {
		t.Errorf("publishing with a context that has ended: %v", err)
	}
	if err := errors.Join(p.Close(t.Context()), p.Close(t.Context()), p.Publish(t.Context())); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("publishing after Close: %v", err)
	}
}

func choices(t *testing.T, f fixture) {
	publish(t, f.js, f.name+".42.paid", "paid before")
	s := f.source(t, func(c *natsbroker.SourceConfig) {
		c.FilterSubjects, c.OnlyNew, c.OrderingKeyToken = []string{f.name + ".*.paid"}, true, 2
	})
	if _, err := s.Receive(shortly(t, 300*time.Millisecond), 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a consumer of new messages received an old one, or %v", err)
	}
	publish(t, f.js, f.name+".42.sent", "sent")
	publish(t, f.js, f.name+".43.paid", "paid")
	d := receive(t, s, 1)[0].Message
	if string(d.Body) != "paid" || string(d.OrderingKey) != "43" {
		t.Errorf("received %q with ordering key %q", d.Body, d.OrderingKey)
	}
	if none := receive(t, f.source(t, func(c *natsbroker.SourceConfig) { c.Consumer = "other" }), 3)[0]; none.Message.OrderingKey != nil || none.Lane != "" {
		t.Errorf("ordering key %q, lane %q; want none", none.Message.OrderingKey, none.Lane)
	}
}
