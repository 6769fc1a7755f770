package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
)

func TestGetReturnsTheFirstValueAndTellsNoneFromEmpty(t *testing.T) {
	h := broker.Headers{{"a", []byte("1")}, {"A", []byte("2")}, {"a", []byte("3")}, {"null", nil}}
	for name, want := range map[string]string{"a": "1", "A": "2", "null": ""} {
		if v, ok := h.Get(name); !ok || string(v) != want {
			t.Errorf("Get(%q) = %q, %v; want %q", name, v, ok, want)
		}
	}
	if v, ok := h.Get("b"); ok || v != nil {
		t.Errorf("Get of a header that is not there = %q, %v", v, ok)
	}
}

func TestSetReplacesEveryValueInTheFirstPlaceAndLeavesTheOriginalAlone(t *testing.T) {
	h := broker.Headers{{"x", []byte("0")}, {"a", []byte("1")}, {"b", []byte("2")}, {"a", []byte("3")}}
	check := func(got broker.Headers, want ...string) {
		t.Helper()
		var flat []string
		for _, x := range got {
			flat = append(flat, x.Name+"="+string(x.Value))
		}
		if len(flat) != len(want) {
			t.Fatalf("got %q, want %q", flat, want)
		}
		for i := range want {
			if flat[i] != want[i] {
				t.Fatalf("got %q, want %q", flat, want)
			}
		}
	}
	check(h.Set("a", []byte("new")), "x=0", "a=new", "b=2")
	check(h.Set("c", []byte("new")), "x=0", "a=1", "b=2", "a=3", "c=new")
	check(broker.Headers(nil).Set("c", []byte("new")), "c=new")
	check(h, "x=0", "a=1", "b=2", "a=3")
}

func TestACloneSharesNoMemoryAndKeepsNilAndEmptyApart(t *testing.T) {
	m := broker.Message{
		OrderingKey: []byte("k"), Body: []byte("body"),
		Headers: broker.Headers{{"a", []byte("1")}, {"empty", []byte{}}, {"null", nil}},
	}
	c := m.Clone()
	m.OrderingKey[0], m.Body[0], m.Headers[0].Value[0] = 'X', 'X', 'X'
	m.Headers[1].Name = "X"
	if string(c.OrderingKey) != "k" || string(c.Body) != "body" || string(c.Headers[0].Value) != "1" || c.Headers[1].Name != "empty" {
		t.Errorf("the clone changed with the original: %q", c)
	}
	if c.Headers[1].Value == nil || c.Headers[2].Value != nil {
		t.Error("nil and empty header values became alike")
	}
	if e := (broker.Message{Body: []byte{}}).Clone(); e.Body == nil || e.OrderingKey != nil || e.Headers != nil {
		t.Errorf("nil and empty became alike: %#v", e)
	}
}

func TestADeliveryExpiresAtItsDeadlineAndOneWithoutNever(t *testing.T) {
	var d broker.Delivery
	if d.Expired() {
		t.Error("a delivery without a deadline has expired")
	}
	d.Extend(time.Hour)
	if d.Expired() {
		t.Error("expired an hour early")
	}
	for _, by := range []time.Duration{0, -time.Second, -time.Hour, -1 << 62} {
		if d.Extend(by); !d.Expired() {
			t.Errorf("not expired with %v to go", by)
		}
	}
	d.Extend(time.Minute)
	if d.Expired() {
		t.Error("what was extended has expired")
	}
}

func TestAPublishErrorCountsAndUnwrapsWhatFailed(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	for want, e := range map[string]*broker.PublishError{
		"1 message was not confirmed: first":   {Errs: []error{nil, first}},
		"2 messages were not confirmed: first": {Errs: []error{first, nil, second}},
		"no message failed":                    {Errs: []error{nil}},
	} {
		if e.Error() != want {
			t.Errorf("got %q, want %q", e, want)
		}
	}
	if e := error(&broker.PublishError{Errs: []error{nil, first, second}}); !errors.Is(e, second) || errors.Is(e, broker.ErrLost) {
		t.Error("a PublishError must be what failed, and nothing else")
	}
}

func TestActionsHaveNames(t *testing.T) {
	if a, r := broker.Ack.String(), broker.Retry.String(); a != "ack" || r != "retry" {
		t.Errorf("got %q and %q", a, r)
	}
	var zero broker.Settlement
	if zero.Action != broker.Ack {
		t.Error("the zero action is not Ack")
	}
}

type wrapper struct{ inner any }

func (w wrapper) Unwrap() any { return w.inner }

type pins bool

func (p pins) PinsLanes() bool { return bool(p) }

func TestAsSeesThroughWrappers(t *testing.T) {
	if p, ok := broker.As[broker.PinsLanes](wrapper{wrapper{pins(true)}}); !ok || !p.PinsLanes() {
		t.Error("not found below two wrappers")
	}
	for _, s := range []any{nil, wrapper{nil}, wrapper{3}} {
		if _, ok := broker.As[broker.PinsLanes](s); ok {
			t.Errorf("found in %v", s)
		}
	}
}
