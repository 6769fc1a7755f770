package rabbitbroker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
)

func TestAURLSaysWhatIsWrongWithItAndNeverShowsASecret(t *testing.T) {
	for url, want := range map[string]string{
		"rabbitmq://host": "",
		"rabbitmq://user:geheim@host:5672/shop?heartbeat=5": "",
		"rabbitmqs://user:geheim@host:5671":                 "",
		"amqp://host:5672/":                                 "",
		"amqps://host":                                      "",
		"amqps://host?auth_mechanism=external":              "",
		"rabbitmq://host?auth_mechanism=geheim":             "unknown auth_mechanism",
		"rabbitmq://host?password=geheim":                   `parameter "password"`,
		"rabbitmq://host?heartbeat=often":                   "heartbeat",
		"rabbitmq://user:geheim@":                           "no host",
		"rabbitmq://:5672":                                  "no host",
		"http://user:geheim@host":                           "does not begin with rabbitmq://",
		"geheim":                                            "does not begin",
		"rabbitmq://user:geheim@host:56 72":                 "not a URL",
		"rabbitmq://user:%zzgeheim@host":                    "not a URL",
	} {
		_, err := rabbitbroker.NewPublisher(url)
		switch {
		case (err == nil) != (want == ""):
			t.Errorf("%s: %v, want %q", url, err, want)
		case err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") && want != "unknown auth_mechanism"):
			t.Errorf("%s: %v, want %q and no secret", url, err, want)
		}
	}
	for url, want := range map[string]string{
		"rabbitmq://user:geheim@host:5672/shop":       "rabbitmq://user:…@host:5672/shop",
		"rabbitmq://user@host":                        "rabbitmq://user@host",
		"rabbitmq://host:5672":                        "rabbitmq://host:5672",
		"amqp://u:ge@heim@h?heartbeat=5&token=secret": "amqp://u:…@h?heartbeat=5&…",
		"amqp://u:ge?heim@h":                          "amqp://…",
		"geheim":                                      "…",
	} {
		if got := rabbitbroker.RedactURL(url); got != want {
			t.Errorf("redacted: %s, want %s", got, want)
		}
	}
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	good := rabbitbroker.SourceConfig{URL: "rabbitmq://host", Queue: "orders"}
	declare := func(kind rabbitbroker.Kind, arguments amqp.Table) *rabbitbroker.Declare {
		return &rabbitbroker.Declare{Kind: kind, Arguments: arguments}
	}
	long := strings.Repeat("q", 250)
	for _, c := range []struct {
		want string
		edit func(*rabbitbroker.SourceConfig)
	}{
		{"", func(c *rabbitbroker.SourceConfig) {}},
		{"URL is not set", func(c *rabbitbroker.SourceConfig) { c.URL = "" }},
		{"names no host", func(c *rabbitbroker.SourceConfig) { c.URL = "rabbitmq://" }},
		{"Queue is not set", func(c *rabbitbroker.SourceConfig) { c.Queue = "" }},
		{"Queue is longer than 255", func(c *rabbitbroker.SourceConfig) { c.Queue = long + long }},
		{"URL is not set: name the server, such as rabbitmq://host:5672; Queue is not set", func(c *rabbitbroker.SourceConfig) { c.URL, c.Queue = "", "" }},
		{"Prefetch is -1", func(c *rabbitbroker.SourceConfig) { c.Prefetch = -1 }},
		{"Prefetch is 65536", func(c *rabbitbroker.SourceConfig) { c.Prefetch = 65536 }},
		{"Timeout is negative", func(c *rabbitbroker.SourceConfig) { c.Timeout = -time.Second }},
		{"Client.Recovery", func(c *rabbitbroker.SourceConfig) { c.Client.Recovery = &amqp.Recovery{} }},
		{"keep one", func(c *rabbitbroker.SourceConfig) { c.DelayedRetry, c.SingleActive = true, true }},
		{"too long for names of retry queues", func(c *rabbitbroker.SourceConfig) { c.DelayedRetry, c.Queue = true, long }},
		{"Declare.Kind is \"stream\"", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("stream", nil) }},
		{"", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", nil) }},
		{"", func(c *rabbitbroker.SourceConfig) {
			c.Declare = &rabbitbroker.Declare{Kind: rabbitbroker.Classic, Transient: true}
		}},
		{"quorum queues are durable", func(c *rabbitbroker.SourceConfig) { c.Declare = &rabbitbroker.Declare{Transient: true} }},
		{"say it with Kind", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", amqp.Table{"x-queue-type": "classic"}) }},
		{"say it with SingleActive", func(c *rabbitbroker.SourceConfig) {
			c.Declare = declare("", amqp.Table{"x-single-active-consumer": true})
		}},
		{"message that reaches the limit would be gone", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", amqp.Table{"x-delivery-limit": 5}) }},
		{"not a whole number", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", amqp.Table{"x-delivery-limit": "5"}) }},
		{"", func(c *rabbitbroker.SourceConfig) {
			c.Declare = declare("", amqp.Table{"x-delivery-limit": 5, "x-dead-letter-exchange": ""})
		}},
		{"", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", amqp.Table{"x-delivery-limit": -1}) }},
		{"not supported", func(c *rabbitbroker.SourceConfig) { c.Declare = declare("", amqp.Table{"x-max-length": struct{}{}}) }},
	} {
		cfg := good
		c.edit(&cfg)
		switch _, err := rabbitbroker.NewSource(cfg); {
		case (err == nil) != (c.want == ""):
			t.Errorf("%v, want %q", err, c.want)
		case err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%v, want %q in one line", err, c.want)
		}
	}
}

func TestADelayIsOfferedOnlyWhereItIsSetUp(t *testing.T) {
	for delayed, want := range map[bool]time.Duration{false: 0, true: 63_000 * time.Second} {
		s, err := rabbitbroker.NewSource(rabbitbroker.SourceConfig{URL: "rabbitmq://host", Queue: "orders", DelayedRetry: delayed})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.MaxDelay(); got != want {
			t.Errorf("DelayedRetry %v: MaxDelay is %v, want %v", delayed, got, want)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAServerThatIsAwayIsAnErrorThatPasses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := rabbitbroker.NewSource(rabbitbroker.SourceConfig{URL: "rabbitmq://kopi:geheim@" + dead, Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := rabbitbroker.NewPublisher("rabbitmq://kopi:geheim@" + dead)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it tries again by itself
		_, err := s.Receive(ctx, 1)
		for _, err := range []error{err, p.Publish(ctx, broker.Message{Topic: "orders"})} {
			if err == nil || errors.Is(err, broker.ErrClosed) || ctx.Err() != nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), dead) || !strings.Contains(err.Error(), "is the server running") {
				t.Errorf("the error is %v", err)
			}
		}
	}
	if err := errors.Join(s.Close(ctx), p.Close(ctx)); err != nil {
		t.Error(err)
	}
	if _, err := s.Receive(ctx, 1); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
