package natsbroker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/natstest"
)

func TestContradictionsAreRefusedWithWhatToChange(t *testing.T) {
	t.Parallel()
	js := connect(t, natstest.Start(t))
	for says, c := range map[string]natsbroker.SourceConfig{
		"name the stream":           {Consumer: "c"},
		"give the durable consumer": {Stream: "s", Consumer: "a.b"},
		"not a subject":             {Stream: "s", Consumer: "c", FilterSubjects: []string{"a..b"}},
		"one delivery at a time":    {Stream: "s", Consumer: "c", Ordered: true, MaxAckPending: 2},
		"keep one":                  {Stream: "s", Consumer: "c", OrderingKeyHeader: "h", OrderingKeyToken: 1},
		"negative":                  {Stream: "s", Consumer: "c", AckWait: -1},
		"500ms at least":            {Stream: "s", Consumer: "c", AckWait: time.Millisecond},
		"BindOnly takes":            {Stream: "s", Consumer: "c", BindOnly: true, AckWait: time.Second},
	} {
		_, err := natsbroker.NewSource(js, c)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: got %v, want one line with %q", c, err, says)
		}
	}
	_, err := natsbroker.NewSource(js, natsbroker.SourceConfig{})
	if err == nil || !strings.Contains(err.Error(), "Stream") || !strings.Contains(err.Error(), "Consumer") || strings.Contains(err.Error(), "\n") {
		t.Errorf("an empty config: got %v, want all that is missing in one line", err)
	}
	if _, err := natsbroker.NewSource(js, natsbroker.SourceConfig{Stream: "s", Consumer: "c"}); err != nil {
		t.Errorf("the least config: %v", err)
	}
}

func TestPasswordsNeverShow(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats://host:4222":                             "nats://host:4222",
		"nats://user:secret@host:4222":                 "nats://user:xxxxx@host:4222",
		"nats://secret@host:4222":                      "nats://xxxxx@host:4222",
		"nats://host:4222?token=secret":                "nats://host:4222",
		"nats://a:secret@h1:4222, nats://b:secret@h2":  "nats://a:xxxxx@h1:4222,nats://b:xxxxx@h2",
		"nats://user:secret@host:port":                 "(hidden)",
		"user:secret@host":                             "(hidden)",
		"nats://user:sec%zzret@host:4222,nats://host2": "(hidden),nats://host2",
	} {
		if got := natsbroker.RedactURL(in); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
	for _, url := range []string{"nats://u:secret@127.0.0.1:" + freePort(t), "nats://u:secret@host:port", "nats://u:sec\x7fret@h"} {
		for _, err := range connectErrors(url) {
			if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec\x7fret") {
				t.Errorf("%q: got %v", url, err)
			}
		}
	}
}

func connectErrors(url string) []error {
	_, a := natsbroker.Connect(url)
	_, b := natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: "s", Consumer: "c"})
	_, c := natsbroker.OpenPublisher(url)
	return []error{a, b, c}
}

// freePort returns a port on which nobody answers.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestWhatOpensAConnectionClosesIt(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t)
	name := makeStream(t, connect(t, url))
	p, err := natsbroker.OpenPublisher(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: name, Consumer: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), broker.Message{Topic: name + ".x"}); err != nil {
		t.Fatal(err)
	}
	receive(t, s, 1)
	// goleak finds the connections if they stay.
	if err := errors.Join(s.Close(t.Context()), p.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func TestHeadersArriveAsTheyWerePublishedOrAreRefused(t *testing.T) {
	t.Parallel()
	js := connect(t, natstest.Start(t))
	name := makeStream(t, js)
	s, p := newSource(t, js, natsbroker.SourceConfig{Stream: name, Consumer: "stock"}), natsbroker.NewPublisher(js)
	value := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte(" \t\r\n:,;="))), 0, 12)
	rapid.Check(t, func(r *rapid.T) {
		m := broker.Message{Topic: name + ".x", Headers: broker.Headers{
			{Name: "x" + string(value.Draw(r, "name")), Value: value.Draw(r, "value")},
		}}
		if p.Publish(t.Context(), m) != nil {
			return
		}
		d := receive(t, s, 1)
		if err := settle(t, s, broker.Ack, d...); err != nil {
			r.Fatal(err)
		}
		got, want := d[0].Message.Headers, m.Headers
		if len(got) != 1 || got[0].Name != want[0].Name || string(got[0].Value) != string(want[0].Value) {
			r.Fatalf("published %q, received %q", want, got)
		}
	})
}

func TestAServerThatRestartsLosesNothing(t *testing.T) {
	t.Parallel()
	server := natstest.NewServer(t)
	server.Start()
	js := connect(t, server.URL())
	name := makeStream(t, js)
	publish(t, js, name+".x", "1", "2")
	s := newSource(t, js, natsbroker.SourceConfig{Stream: name, Consumer: "stock", AckWait: 4 * time.Second})
	held := receive(t, s, 1)

	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	p := natsbroker.NewPublisher(js, natsbroker.WithConfirmTimeout(100*time.Millisecond))
	if err := p.Publish(ctx, broker.Message{ID: "3", Topic: name + ".x", Body: []byte("3")}); !errors.Is(err, natsbroker.ErrNotConfirmed) {
		t.Errorf("publishing without a server: %v", err)
	}
	if _, err := s.Receive(ctx, 1); err == nil || errors.Is(err, broker.ErrClosed) {
		t.Errorf("receiving without a server: %v", err)
	}
	if err := s.Settle(ctx, []broker.Settlement{{Delivery: held[0]}}); err == nil {
		t.Error("an acknowledgement was confirmed without a server")
	}
	if err := s.KeepAlive(ctx, held); err == nil {
		t.Error("a delivery was kept alive without a server")
	}

	server.Start()
	publishAgain(t, p, broker.Message{ID: "3", Topic: name + ".x", Body: []byte("3")})
	seen := map[string]bool{string(held[0].Message.Body): true}
	for len(seen) < 3 {
		d := receive(t, s, 1)
		if err := settle(t, s, broker.Ack, d...); err == nil {
			seen[string(d[0].Message.Body)] = true
		}
	}
}

// publishAgain publishes until it is confirmed.
func publishAgain(t *testing.T, p *natsbroker.Publisher, m broker.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for err := p.Publish(ctx, m); err != nil; err = p.Publish(ctx, m) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestAClosedConnectionEndsTheSource(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t)
	name := makeStream(t, connect(t, url))
	c := natstest.Connect(t, url)
	js, err := jetstream.New(c.Conn)
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(t, js, natsbroker.SourceConfig{Stream: name, Consumer: "stock"})
	p := natsbroker.NewPublisher(js)
	if err := p.Publish(t.Context(), broker.Message{Topic: name + ".x"}); err != nil {
		t.Fatal(err)
	}
	d := receive(t, s, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Receive(t.Context(), 1); !errors.Is(err, broker.ErrClosed) {
			t.Errorf("Receive on a connection that was closed: %v", err)
		}
	})
	c.Close()
	wg.Wait()
	if err := settle(t, s, broker.Ack, d...); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Settle on a connection that was closed: %v", err)
	}
	if err := p.Publish(t.Context(), broker.Message{Topic: name + ".x"}); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Publish on a connection that was closed: %v", err)
	}
}

// The connection breaks in the middle of many acknowledgements: what was
// written to it last is lost, what follows goes to the next connection, and the
// last of all is confirmed.
func TestAcknowledgementsLostWithAConnectionAreSaidAgain(t *testing.T) {
	t.Parallel()
	const n = 3000
	url := natstest.Start(t)
	name := makeStream(t, connect(t, url))
	c := natstest.Connect(t, url)
	js, err := jetstream.New(c.Conn)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, js, name+".x", make([]string, n)...)
	s := newSource(t, js, natsbroker.SourceConfig{Stream: name, Consumer: "stock", MaxAckPending: n})
	d := receive(t, s, n)
	c.LoseNext([]byte("+ACK"))
	if err := settle(t, s, broker.Ack, d...); err != nil {
		t.Fatalf("settle: %v", err)
	}
	if c.Stats().Reconnects == 0 {
		t.Fatal("the connection did not break")
	}
	consumer, err := js.Consumer(t.Context(), name, "stock")
	if err != nil {
		t.Fatal(err)
	}
	if left := consumer.CachedInfo().NumAckPending; left != 0 {
		t.Errorf("%d acknowledgements were lost although Settle confirmed them", left)
	}
}
