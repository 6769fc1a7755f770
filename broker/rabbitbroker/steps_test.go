package rabbitbroker

import (
	"math"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestADelayIsRoundedUpToOneOfFewSteps(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		1:                            100 * time.Millisecond,
		100 * time.Millisecond:       100 * time.Millisecond,
		101 * time.Millisecond:       160 * time.Millisecond,
		time.Second:                  time.Second,
		time.Second + 1:              1600 * time.Millisecond,
		time.Minute:                  63 * time.Second,
		time.Hour:                    4000 * time.Second,
		maxDelay:                     maxDelay,
		time.Duration(math.MaxInt64): maxDelay,
		700 * time.Millisecond:       time.Second,
		5 * time.Minute:              400 * time.Second,
	} {
		if got := step(d); got != want {
			t.Errorf("%v is rounded to %v, want %v", d, got, want)
		}
	}
	steps := map[time.Duration]bool{}
	for d := time.Millisecond; d < 2*maxDelay; d += d/50 + 1 {
		steps[step(d)] = true
	}
	if len(steps) > 30 {
		t.Errorf("there are %d steps", len(steps))
	}
}

func TestHeaderValuesBecomeBytes(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{nil, ""},
		{"kopi ☕", "kopi ☕"},
		{[]byte("\x00\xff"), "\x00\xff"},
		{true, "true"},
		{byte(7), "7"},
		{int8(-8), "-8"},
		{int16(-16), "-16"},
		{int32(-32), "-32"},
		{int64(math.MinInt64), "-9223372036854775808"},
		{uint16(16), "16"},
		{uint32(math.MaxUint32), "4294967295"},
		{float32(0.1), "0.1"},
		{1e300, "1e+300"},
		{math.Inf(1), "+Inf"},
		{amqp.Decimal{Scale: 2, Value: 12345}, "123.45"},
		{amqp.Decimal{Scale: 3, Value: -5}, "-0.005"},
		{amqp.Decimal{Value: -5}, "-5"},
		{time.Unix(1700000000, 0), "2023-11-14T22:13:20Z"},
		{[]any{int64(1), "a", []byte("b"), []byte("\xff"), nil, math.NaN(), time.Unix(0, 0)}, `[1,"a","b","/w==",null,"NaN","1970-01-01T00:00:00Z"]`},
		{amqp.Table{"b": amqp.Table{"x": false}, "a": int32(1)}, `{"a":1,"b":{"x":false}}`},
	} {
		if got := valueOf(c.value); got == nil || string(got) != c.want {
			t.Errorf("%#v became %q, want %q", c.value, got, c.want)
		}
	}
}

func TestATopicNamesAnExchangeAndARoutingKey(t *testing.T) {
	for topic, want := range map[string][2]string{
		"orders":             {"", "orders"},
		"/orders":            {"", "orders"},
		"/a/b":               {"", "a/b"},
		"shop/":              {"shop", ""},
		"shop/order.paid":    {"shop", "order.paid"},
		"shop/a/b":           {"shop", "a/b"},
		"a%2Fb%25c%2525/k%2": {"a/b%c%25", "k%2"},
	} {
		exchange, key, err := placeOf(topic)
		if err != nil || exchange != want[0] || key != want[1] {
			t.Errorf("%q is %q and %q (%v), want %q", topic, exchange, key, err, want)
		}
		again := topicOf(exchange, key)
		if e, k, err := placeOf(again); err != nil || e != exchange || k != key {
			t.Errorf("%q and %q became %q, which is %q and %q", exchange, key, again, e, k)
		}
	}
	for _, bad := range []string{"", "/"} {
		if _, _, err := placeOf(bad); err == nil {
			t.Errorf("%q is taken as a topic", bad)
		}
	}
}

func TestAnAcknowledgementCoversOnlyWhatIsSettled(t *testing.T) {
	s, x := &Source{}, &session{}
	items := map[uint64]*item{}
	for tag := uint64(1); tag <= 10; tag++ {
		items[tag] = &item{session: x, tag: tag}
		x.open = append(x.open, items[tag])
	}
	for _, c := range []struct {
		tags   []uint64
		upTo   uint64
		single []uint64
	}{
		{[]uint64{2}, 0, []uint64{2}},
		{[]uint64{4, 1}, 2 - 1, []uint64{4}},
		{[]uint64{10, 3}, 3, []uint64{10}},
		{[]uint64{9, 8, 7, 6, 5}, 9, nil},
		{nil, 0, nil},
	} {
		var some []*item
		for _, tag := range c.tags {
			some = append(some, items[tag])
		}
		upTo, single := s.mark(x, some)
		if upTo != c.upTo || len(single) != len(c.single) || len(single) > 0 && single[0] != c.single[0] {
			t.Errorf("%v: up to %d and %v, want up to %d and %v", c.tags, upTo, single, c.upTo, c.single)
		}
	}
	if len(x.open) != 0 {
		t.Errorf("%d are still open", len(x.open))
	}
}
