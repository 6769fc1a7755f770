package deadletter_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

func TestTwoLettersAreCopiesOnlyIfConsumerKeyAndBodyAreTheSame(t *testing.T) {
	letter := func(consumer, key string, body []byte, id string) deadletter.Letter {
		return deadletter.Letter{Consumer: consumer, Key: key, Message: broker.Message{Body: body, ID: id}}
	}
	base := letter("stock", "k", []byte("b"), "1")
	if again := letter("stock", "k", []byte("b"), "2"); base.Identity() != again.Identity() {
		t.Error("the same message from another place must be a copy")
	}
	others := map[string]deadletter.Letter{
		"other consumer":               letter("courier", "k", []byte("b"), "1"),
		"other key":                    letter("stock", "l", []byte("b"), "1"),
		"other body":                   letter("stock", "k", []byte("c"), "1"),
		"empty body":                   letter("stock", "k", []byte{}, "1"),
		"null body":                    letter("stock", "k", nil, "1"),
		"no key":                       letter("stock", "", []byte("b"), "1"),
		"no key, other id":             letter("stock", "", []byte("b"), "2"),
		"bytes moved from key to body": letter("stock", "", []byte("kb"), "1"),
	}
	seen := map[[32]byte]string{base.Identity(): "base"}
	for name, l := range others {
		if twin, ok := seen[l.Identity()]; ok {
			t.Errorf("%s is taken for a copy of %s", name, twin)
		}
		seen[l.Identity()] = name
	}
}

func TestErrorTextsBecomeStorableEverywhere(t *testing.T) {
	got := deadletter.CleanError("a\x00b\xffc")
	if want := "a\uFFFDb\uFFFDc"; got != want {
		t.Errorf("CleanError = %q, want %q", got, want)
	}
	long := deadletter.CleanError(strings.Repeat("ä", 9000))
	if len(long) > 8<<10 || !utf8.ValidString(long) || !strings.HasSuffix(long, "…") {
		t.Errorf("a long text became %d bytes, valid %v", len(long), utf8.ValidString(long))
	}
}

func TestEnvelopeKeepsNilAndEmptyApart(t *testing.T) {
	for _, m := range []broker.Message{
		{},
		{OrderingKey: []byte{}, Body: []byte{}},
		{ID: "\xff", Topic: "orders", OrderingKey: []byte{0, 0xff}, PublishedAt: time.Unix(1, 5).UTC()},
		{Headers: broker.Headers{{Name: "a", Value: nil}, {Name: "a", Value: []byte{}}, {Name: "\xfe", Value: []byte("{\"base64\":1}")}}},
	} {
		roundTrip(t, m)
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add("id", "topic", []byte("key"), "name", []byte("value"))
	f.Add("\xff", "", []byte(nil), "\x00", []byte{0xfe})
	f.Fuzz(func(t *testing.T, id, topic string, key []byte, name string, value []byte) {
		roundTrip(t, broker.Message{
			ID: id, Topic: topic, OrderingKey: key,
			Headers: broker.Headers{{Name: name, Value: value}, {Name: name}},
		})
	})
}

func roundTrip(t *testing.T, m broker.Message) {
	t.Helper()
	data, err := deadletter.MarshalEnvelope(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := deadletter.UnmarshalEnvelope(data, m.Body)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }
	if got.ID != m.ID || got.Topic != m.Topic || !same(got.OrderingKey, m.OrderingKey) ||
		!same(got.Body, m.Body) || !got.PublishedAt.Equal(m.PublishedAt) || len(got.Headers) != len(m.Headers) {
		t.Fatalf("got %#v, want %#v (by way of %s)", got, m, data)
	}
	for i, h := range m.Headers {
		if got.Headers[i].Name != h.Name || !same(got.Headers[i].Value, h.Value) {
			t.Fatalf("header %d: got %#v, want %#v (by way of %s)", i, got.Headers[i], h, data)
		}
	}
}
