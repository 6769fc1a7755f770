//go:build !fast

package redisbroker_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
)

func text(m broker.Message) string {
	s := fmt.Sprintf("id %q, key %q (nil %v), body %q (nil %v)", m.ID, m.OrderingKey, m.OrderingKey == nil, m.Body, m.Body == nil)
	for _, h := range m.Headers {
		s += fmt.Sprintf(", %q=%q", h.Name, h.Value)
	}
	return s
}

func TestFieldsOfAForeignProducerBecomeAMessage(t *testing.T) {
	b := newBench(t)
	named := func(c *redisbroker.SourceConfig) {
		c.BodyField, c.OrderingKeyField, c.IDField = "payload", "order", "event"
	}
	for name, x := range map[string]struct {
		edit   func(*redisbroker.SourceConfig)
		fields []any
		want   string // %s: the entry's id
	}{
		"ours":              {func(*redisbroker.SourceConfig) {}, []any{"a", "1", "body", "{}", "a", "2", "message-id", "e1", "ordering-key", "k"}, `id "e1", key "k" (nil false), body "{}" (nil false), "a"="1", "a"="2"`},
		"no field of ours":  {func(*redisbroker.SourceConfig) {}, []any{"z", "1", "b", "\x00\xff"}, `id "%s", key "" (nil true), body "" (nil true), "z"="1", "b"="\x00\xff"`},
		"empty ones":        {func(*redisbroker.SourceConfig) {}, []any{"body", "", "ordering-key", "", "message-id", "", "", ""}, `id "%s", key "" (nil false), body "" (nil false), ""=""`},
		"a body twice":      {func(*redisbroker.SourceConfig) {}, []any{"body", "1", "body", "2"}, `id "%s", key "" (nil true), body "1" (nil false), "body"="2"`},
		"names of its own":  {named, []any{"payload", "{}", "order", "k", "event", "e2", "body", "1"}, `id "e2", key "k" (nil false), body "{}" (nil false), "body"="1"`},
		"an id of no value": {named, []any{"event", "", "payload", "1"}, `id "%s", key "" (nil true), body "1" (nil false)`},
	} {
		id, err := b.XAdd(t.Context(), &redis.XAddArgs{Stream: b.stream, Values: x.fields}).Result()
		b.ok(err)
		s := b.source(x.edit)
		d := receive(t, s, 1)
		want := strings.Replace(x.want, "%s", b.stream+"/"+id, 1)
		if got := text(d[0].Message); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
		b.ok(settle(t, s, broker.Ack, d...))
		b.close(s)
	}
}

func TestTheIDsAndTimesOfEntries(t *testing.T) {
	b := newBench(t)
	explicit := func(id string) {
		b.ok(b.XAdd(t.Context(), &redis.XAddArgs{Stream: b.stream, ID: id, Values: []any{"body", id}}).Err())
	}
	explicit("7-1") // a number of the producer's, no time
	explicit("7-2")
	b.add(1)
	s := b.source()
	d := receive(t, s, 3)
	for i, id := range []string{"7-1", "7-2"} {
		if m := d[i].Message; m.ID != b.stream+"/"+id || !m.PublishedAt.IsZero() {
			t.Errorf("entry %s has the id %q and the time %v", id, m.ID, m.PublishedAt)
		}
	}
	if age := time.Since(d[2].Message.PublishedAt); age.Abs() > time.Minute {
		t.Errorf("an entry that was added now is %v old", age)
	}
	// The ids of a stream that was made again go on with the time.
	old := d[2].Message.ID
	b.ok(b.Del(t.Context(), b.stream).Err())
	for now := d[2].Message.PublishedAt; now.UnixMilli() <= d[2].Message.PublishedAt.UnixMilli(); {
		var err error
		now, err = b.Time(t.Context()).Result()
		b.ok(err)
	}
	b.add(1)
	if m := receive(t, s, 1)[0].Message; m.ID == old {
		t.Errorf("a new entry has the id %q of an old one", m.ID)
	}
}

func TestEveryMessageArrivesAsItWasPublished(t *testing.T) {
	b := newBench(t)
	p, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{})
	b.ok(err)
	all := []broker.Message{
		{},
		{Body: []byte{}},
		{OrderingKey: []byte{}},
		{ID: "\x00\xff", OrderingKey: []byte("\r\n\x00"), Body: []byte("\x00"), Headers: broker.Headers{{Name: ""}, {Name: "\xff", Value: []byte("\xff")}, {Name: "", Value: []byte("2")}}},
		{Body: bytes.Repeat([]byte("x"), 5<<20)}, // longer than a window
		{Headers: broker.Headers{{Name: "Body", Value: []byte("case counts")}}},
	}
	for i := range all {
		all[i].Topic = b.stream
	}
	b.ok(p.Publish(t.Context(), all...))
	for i, d := range receive(t, b.source(), len(all)) {
		got, want := d.Message, all[i]
		if want.ID == "" {
			got.ID = ""
		}
		if text(got) != text(want) {
			t.Errorf("message %d: got %.200s, want %.200s", i, text(got), text(want))
		}
	}
}

func TestWhatCannotBePublishedFailsAlone(t *testing.T) {
	b := newBench(t)
	b.group()
	p, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{OnlyExisting: true})
	b.ok(err)
	good := broker.Message{Topic: b.stream, Body: []byte("good")}
	bad := []broker.Message{
		{Body: good.Body},
		{Topic: b.stream + "-nowhere"},
		{Topic: b.stream, Headers: broker.Headers{{Name: "body"}}},
		{Topic: b.stream, Headers: broker.Headers{{Name: "message-id", Value: []byte("1")}}},
	}
	err = p.Publish(t.Context(), append(append([]broker.Message{good}, bad...), good)...)
	var failed *broker.PublishError
	if !errors.As(err, &failed) || len(failed.Errs) != 6 {
		t.Fatalf("got %v, want a PublishError of 6", err)
	}
	for i, err := range failed.Errs {
		if want := i > 0 && i < 5; (err != nil) != want {
			t.Errorf("message %d: got %v, want an error: %v", i, err, want)
		}
	}
	if !errors.Is(failed.Errs[2], redisbroker.ErrNoStream) {
		t.Errorf("publishing to no stream returned %v", failed.Errs[2])
	}
	if n := b.XLen(t.Context(), b.stream).Val(); n != 2 {
		t.Errorf("%d entries were added, want 2", n)
	}
	b.ok(p.Publish(t.Context()))
}

func TestAPublisherTrimsOnlyIfItIsTold(t *testing.T) {
	b := newBench(t)
	all := make([]broker.Message, 1500)
	for i := range all {
		all[i] = broker.Message{Topic: b.stream, Body: []byte("x")}
	}
	for _, x := range []struct {
		maxLen, least, most int64
	}{{0, 1500, 1500}, {10, 10, 300}} { // "about" is a node's hundred entries
		p, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{MaxLen: x.maxLen})
		b.ok(err)
		b.ok(p.Publish(t.Context(), all...))
		if n := b.XLen(t.Context(), b.stream).Val(); n < x.least || n > x.most {
			t.Errorf("with MaxLen %d there are %d entries", x.maxLen, n)
		}
	}
}

func TestADelayIsAckWaitAtMost(t *testing.T) {
	b := newBench(t)
	b.add(1)
	s := b.source(short)
	if s.MaxDelay() != 500*time.Millisecond || s.KeepAliveEvery() > s.MaxDelay()/2 {
		t.Errorf("MaxDelay is %v, KeepAliveEvery %v", s.MaxDelay(), s.KeepAliveEvery())
	}
	d := receive(t, s, 1)
	begun := time.Now()
	b.ok(s.Settle(t.Context(), []broker.Settlement{{Delivery: d[0], Action: broker.Retry, Delay: time.Hour}}))
	receive(t, s, 1)
	if took := time.Since(begun); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("came again after %v", took)
	}
}
