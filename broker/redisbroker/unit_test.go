package redisbroker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nobody is a client of a server that is not there.
func nobody(t *testing.T) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestContradictionsAreRefusedWithWhatToChange(t *testing.T) {
	t.Parallel()
	c := nobody(t)
	for says, cfg := range map[string]redisbroker.SourceConfig{
		"give the key of the stream": {Stream: " ", Group: "g"},
		"name the consumer group":    {Stream: "s"},
		"not all different":          {Stream: "s", Group: "g", IDField: "body"},
		"negative":                   {Stream: "s", Group: "g", AckWait: -1},
		"500ms at least":             {Stream: "s", Group: "g", AckWait: time.Millisecond},
	} {
		_, err := redisbroker.NewSource(c, cfg)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: got %v, want one line with %q", cfg, err, says)
		}
	}
	_, err := redisbroker.NewSource(c, redisbroker.SourceConfig{})
	if err == nil || !strings.Contains(err.Error(), "Stream") || !strings.Contains(err.Error(), "Group") || strings.Contains(err.Error(), "\n") {
		t.Errorf("an empty config: got %v, want all that is missing in one line", err)
	}
	if _, err := redisbroker.NewSource(c, redisbroker.SourceConfig{Stream: "s", Group: "g"}); err != nil {
		t.Errorf("the least config: %v", err)
	}
}

func TestAPublishersContradictionsAreRefusedWithWhatToChange(t *testing.T) {
	t.Parallel()
	c := nobody(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	for says, x := range map[string]struct {
		client redis.UniversalClient
		cfg    redisbroker.PublisherConfig
	}{
		"not all different": {c, redisbroker.PublisherConfig{BodyField: "x", OrderingKeyField: "x"}},
		"negative":          {c, redisbroker.PublisherConfig{MaxLen: -1}},
		"several nodes":     {cluster, redisbroker.PublisherConfig{Replicas: 1}},
	} {
		_, err := redisbroker.NewPublisher(x.client, x.cfg)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: got %v, want one line with %q", x.cfg, err, says)
		}
	}
	for _, client := range []redis.UniversalClient{c, cluster} {
		if _, err := redisbroker.NewPublisher(client, redisbroker.PublisherConfig{}); err != nil {
			t.Errorf("the least config: %v", err)
		}
	}
}

func TestPasswordsNeverShow(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"redis://host:6379":                       "redis://host:6379",
		"redis://user:secret@host:6379/1":         "redis://user:xxxxx@host:6379/1",
		"redis://:secret@host":                    "redis://:xxxxx@host",
		"rediss://user@host":                      "rediss://user@host",
		"redis://host:6379?password=secret":       "redis://host:6379",
		"redis://user:secret@host:port":           "(hidden)",
		"user:secret@host":                        "(hidden)",
		"redis://user:sec%zzret@host:6379":        "(hidden)",
		"redis://u:secret@h:6379/0?db=2&x=secret": "redis://u:xxxxx@h:6379/0",
	} {
		if got := redisbroker.RedactURL(in); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
	cfg := redisbroker.SourceConfig{Stream: "s", Group: "g"}
	for _, url := range []string{
		"redis://u:secret@host:port", "redis://u:sec\x7fret@h", "nats://u:secret@h", "redis://u:secret@", "redis://u:secret@h/one",
		"redis://u:secret@h?x=secret", "redis://u:secret@h1:1,h2:2",
	} {
		_, a := redisbroker.OpenSource(url, cfg)
		_, b := redisbroker.OpenPublisher(url, redisbroker.PublisherConfig{})
		for _, err := range []error{a, b} {
			if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec\x7fret") || !strings.Contains(err.Error(), "redis://user:password@host:6379") {
				t.Errorf("%q: got %v", url, err)
			}
		}
	}
}

func TestAnAbsentServerIsAnErrorThatPassesAndShowsNoPassword(t *testing.T) {
	t.Parallel()
	url := "redis://u:secret@127.0.0.1:" + freePort(t)
	s, err := redisbroker.OpenSource(url+"?dial_timeout=1s&max_retries=-1", redisbroker.SourceConfig{Stream: "s", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := redisbroker.OpenPublisher(url+"?max_retries=-1", redisbroker.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, a := s.Receive(t.Context(), 1)
	b := p.Publish(t.Context(), broker.Message{Topic: "s"})
	for _, err := range []error{a, b} {
		if err == nil || errors.Is(err, broker.ErrClosed) || strings.Contains(err.Error(), "secret") {
			t.Errorf("without a server: %v", err)
		}
	}
	if err := errors.Join(s.Close(t.Context()), s.Close(t.Context()), p.Close(t.Context()), p.Close(t.Context())); err != nil {
		t.Errorf("close what was never connected: %v", err)
	}
	if err := p.Publish(t.Context(), broker.Message{Topic: "s"}); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Publish after Close returned %v", err)
	}
}

func TestAClientThatWasClosedEndsTheSource(t *testing.T) {
	t.Parallel()
	c := nobody(t)
	s, err := redisbroker.NewSource(c, redisbroker.SourceConfig{Stream: "s", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, err := s.Receive(t.Context(), 1); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Receive returned %v", err)
	}
	if _, err := s.Receive(t.Context(), 0); err == nil {
		t.Error("Receive of nothing returned no error")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that says nothing must not hold up whoever has given up waiting.
func TestReceiveEndsWithItsContextWhileTheServerIsSilent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c := redis.NewClient(&redis.Options{Addr: l.Addr().String(), DialerRetries: 1, MaxRetries: -1, ReadTimeout: 2 * time.Second})
	defer func() { _ = c.Close() }()
	s, err := redisbroker.NewSource(c, redisbroker.SourceConfig{Stream: "s", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		begun := time.Now()
		if _, err := s.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Receive returned %v", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("Receive took %v", took)
		}
		cancel()
	}
	if err := s.Close(t.Context()); err != nil { // it waits for the question under way
		t.Error(err)
	}
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
