package amqpbroker

import (
	"strings"
	"testing"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
)

func TestIDsOfEveryTypeComeBack(t *testing.T) {
	for text, id := range map[string]any{
		"order-1":                            "order-1",
		"ID:host-1":                          "ID:host-1",
		"ID:AMQP_ULONG:18446744073709551615": uint64(1<<64 - 1),
		"ID:AMQP_UUID:01020304-0506-0708-090a-0b0c0d0e0f10": amqp.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		"ID:AMQP_BINARY:00FF0A":                             []byte{0, 0xff, 0x0a},
		"ID:AMQP_STRING:ID:AMQP_ULONG:7":                    "ID:AMQP_ULONG:7",
		"ID:AMQP_NO_PREFIX:7":                               "ID:AMQP_NO_PREFIX:7",
		"ID:AMQP_STRING:ID:AMQP_STRING:ID:AMQP_BINARY:":     "ID:AMQP_STRING:ID:AMQP_BINARY:",
		"ID:AMQP_STRING:foo":                                "ID:AMQP_STRING:foo",
		"ID:AMQP_ULONG:007":                                 "ID:AMQP_ULONG:007",
		"ID:AMQP_BINARY:0aff":                               "ID:AMQP_BINARY:0aff",
		"ID:AMQP_UUID:00000000-0000-0000-0000-000000000000": amqp.UUID{},
		"ID:AMQP_UUID:no uuid, but it looks like one":       "ID:AMQP_UUID:no uuid, but it looks like one",
	} {
		if got := idText(id); got != text {
			t.Errorf("%#v is %q, want %q", id, got, text)
		}
		back := typedID(text)
		if b, ok := back.([]byte); ok {
			back = string(b)
			id = string(id.([]byte))
		}
		if back != id {
			t.Errorf("%q is %#v, want %#v", text, back, id)
		}
	}
	for _, text := range []string{"ID:AMQP_ULONG:x", "ID:AMQP_UUID:1", "ID:AMQP_BINARY:0"} {
		if got := typedID(text); got != text {
			t.Errorf("%q, which only looks typed, is %#v", text, got)
		}
	}
	if got := idText(nil); got != "" {
		t.Errorf("no id is %q", got)
	}
}

func TestWhatAMQPCannotCarryIsRefused(t *testing.T) {
	for name, m := range map[string]broker.Message{
		"no topic":            {},
		"topic not UTF-8":     {Topic: "\xff"},
		"ID not UTF-8":        {Topic: "q", ID: "\xff"},
		"ordering key":        {Topic: "q", OrderingKey: []byte{0xff}},
		"a header twice":      {Topic: "q", Headers: broker.Headers{{Name: "a"}, {Name: "a"}}},
		"a header's name":     {Topic: "q", Headers: broker.Headers{{Name: "\xff"}}},
		"a header twice, nil": {Topic: "q", Headers: broker.Headers{{Name: "a", Value: []byte("1")}, {Name: "a"}}},
	} {
		if _, err := wireOf(m); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigsThatCannotWorkAreRefusedInOneLine(t *testing.T) {
	good := SourceConfig{URL: "amqp10://host:5672", Queue: "q"}
	if _, err := NewSource(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*SourceConfig){
		"no URL":     func(c *SourceConfig) { c.URL = "" },
		"scheme":     func(c *SourceConfig) { c.URL = "http://user:geheim@host" },
		"no host":    func(c *SourceConfig) { c.URL = "amqp10://" },
		"broken URL": func(c *SourceConfig) { c.URL = "amqp10://user:geheim@host:x\x00/" },
		"queue":      func(c *SourceConfig) { c.Queue = " " },
		"credit":     func(c *SourceConfig) { c.Credit = -1 },
		"timeout":    func(c *SourceConfig) { c.Timeout = -1 },
		"capability": func(c *SourceConfig) { c.Capability = "exchange" },
	} {
		cfg := good
		change(&cfg)
		_, err := NewSource(cfg)
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestURLsAreShownWithoutTheirPasswords(t *testing.T) {
	for raw, want := range map[string]string{
		"amqp10://host:5672":              "amqp10://host:5672",
		"amqp10://u:geheim@host:5672?a=b": "amqp10://u:xxxxx@host:5672",
		"u:geheim@host":                   "(hidden)",
		"amqp10://u:geheim@host:x\x00":    "(hidden)",
	} {
		if got := RedactURL(raw); got != want {
			t.Errorf("%q is shown as %q, want %q", raw, got, want)
		}
	}
}
