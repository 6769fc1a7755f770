package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

func letterTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a letter comes back with every byte", f: lettersComeBack[Tx]},
		{name: "a copy updates the open letter", f: copiesUpdate[Tx]},
		{name: "copies at once are one letter", f: copiesAtOnce[Tx]},
		{name: "letters are listed newest first, filtered and in pages", f: listLetters[Tx]},
		{name: "a letter that is not there is not found", f: noSuchLetter[Tx]},
		{name: "a letter's times are UTC whatever the session's zone", f: letterTimes[Tx]},
		{name: "a letter that cannot be written is an error", f: lettersWithoutTable[Tx], empty: true},
		{name: "a letter is not written under a context that has ended", f: letterCancelled[Tx]},
		{name: "a large letter is kept whole", f: largeLetter[Tx]},
	}
}

// queue returns the dead letters that a store keeps.
func (b *bench[Tx]) queue(c Client[Tx]) deadletter.Queue {
	b.t.Helper()
	s, ok := store.As[interface{ DeadLetters() deadletter.Queue }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method DeadLetters", c.Store)
	}
	return s.DeadLetters()
}

func (b *bench[Tx]) put(q deadletter.Queue, l deadletter.Letter) {
	b.t.Helper()
	if err := q.Put(b.ctx, l); err != nil {
		b.t.Fatal(err)
	}
}

// list returns the letters that f lets through.
func (b *bench[Tx]) list(q deadletter.Queue, f deadletter.Filter) []deadletter.Letter {
	b.t.Helper()
	found, err := q.List(b.ctx, f)
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// newest returns the letter that was written last.
func (b *bench[Tx]) newest(q deadletter.Queue) deadletter.Letter {
	b.t.Helper()
	letters := b.list(q, deadletter.Filter{Limit: 1})
	if len(letters) != 1 {
		b.t.Fatalf("%d letters of those in the queue, want the newest", len(letters))
	}
	return letters[0]
}

// letterOf returns a letter with a message of that key and body.
func letterOf(key, body string) deadletter.Letter {
	return deadletter.Letter{
		Consumer: consumer, Key: key, Reason: deadletter.Exhausted, Error: "no stock", Attempts: 10,
		Message: broker.Message{ID: "7", Topic: "orders", Body: []byte(body)},
	}
}

func strangeLetters() []deadletter.Letter {
	strange := []broker.Message{
		{ID: "1", Topic: "orders", Body: nil},
		{ID: "2", Topic: "orders", Body: []byte{}},
		{ID: "3", Body: []byte{0, 0xff, 0xfe, '\'', '\\', '"'}, OrderingKey: []byte{0, 0xff}},
		{ID: "4", Topic: "a\x00b\xff", Body: []byte("☕"), OrderingKey: []byte{}, PublishedAt: time.Unix(1_700_000_000, 123_456_789).UTC()},
		{ID: "\xff\x00", Topic: "tópico 🍵", Body: []byte("{}"), Headers: broker.Headers{
			{Name: "null", Value: nil},
			{Name: "empty", Value: []byte{}},
			{Name: "twice", Value: []byte("1")},
			{Name: "twice", Value: []byte("2")},
			{Name: "Twice", Value: []byte("3")},
			{Name: "\xfe\x00", Value: []byte{0, 0xff}},
		}},
	}
	var letters []deadletter.Letter
	for i, m := range strange {
		letters = append(letters, deadletter.Letter{
			Consumer: consumer, Reason: deadletter.Permanent, Message: m, Attempts: i, Error: "a\x00b\xffc 🍵 '\\",
			Key: []string{"order-42", "a\x00b", "\xff", strings.Repeat("k", 4096), "☕ "}[i],
		})
	}
	// No key could be taken: what is not there is not the empty key.
	none := broker.Message{ID: "5", Topic: "orders", Body: []byte("?")}
	return append(letters, deadletter.Letter{Consumer: consumer, Reason: deadletter.NoKey, Error: store.ErrNoKey.Error(), Message: none})
}

func lettersComeBack[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	for _, want := range strangeLetters() {
		before := time.Now()
		b.put(q, want)
		newest := b.newest(b.queue(b.Two))
		got, err := q.Get(b.ctx, newest.ID)
		if err != nil {
			b.t.Fatal(err)
		}
		if !reflect.DeepEqual(got, newest) {
			b.t.Errorf("Get says %+v, List says %+v", got, newest)
		}
		if got.FirstAt != got.LastAt || got.LastAt.Before(before.Add(-slack)) || got.LastAt.After(time.Now().Add(slack)) {
			b.t.Errorf("the letter was written at %v and %v, want about %v", got.FirstAt, got.LastAt, before)
		}
		b.wantLetter(got, want)
	}
	if n := b.number("SELECT count(*) FROM dead_letters WHERE message_key IS NULL AND raw_key IS NULL"); n != 1 {
		b.t.Errorf("%d letters are without a key, want 1", n)
	}
	b.wantIdle()
}

// wantLetter compares all but ID and times.
func (b *bench[Tx]) wantLetter(got, want deadletter.Letter) {
	b.t.Helper()
	want.ID, want.FirstAt, want.LastAt = got.ID, got.FirstAt, got.LastAt
	want.Copies, want.Status, want.Error = 1, deadletter.Open, deadletter.CleanError(want.Error)
	same := func(x, y []byte) bool { return bytes.Equal(x, y) && (x == nil) == (y == nil) }
	for i, h := range want.Message.Headers {
		if i >= len(got.Message.Headers) || got.Message.Headers[i].Name != h.Name || !same(got.Message.Headers[i].Value, h.Value) {
			b.t.Errorf("header %d of %+q is not %+q", i, got.Message.Headers, h)
		}
	}
	if len(got.Message.Headers) != len(want.Message.Headers) || !same(got.Message.Body, want.Message.Body) ||
		!same(got.Message.OrderingKey, want.Message.OrderingKey) || !got.Message.PublishedAt.Equal(want.Message.PublishedAt) ||
		got.Message.ID != want.Message.ID || got.Message.Topic != want.Message.Topic {
		b.t.Errorf("the message is %#v, want %#v", got.Message, want.Message)
	}
	got.Message, want.Message = broker.Message{}, broker.Message{}
	if !reflect.DeepEqual(got, want) {
		b.t.Errorf("the letter is %+q, want %+q", fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	}
}

func copiesUpdate[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	b.put(q, letterOf("order-42", "one"))
	first := b.newest(q)
	// The letter is older than the clock's resolution.
	b.eventually(func() bool { return time.Since(first.FirstAt) > 20*time.Millisecond })
	again := letterOf("order-42", "one")
	again.Reason, again.Error, again.Attempts, again.Message.ID = deadletter.Permanent, "sku is gone", 3, "8"
	b.put(b.queue(b.Two), again)
	letters := b.list(q, deadletter.Filter{})
	if len(letters) != 1 {
		b.t.Fatalf("%d letters, want 1", len(letters))
	}
	got := letters[0]
	if got.ID != first.ID || got.Copies != 2 || got.Reason != deadletter.Permanent || got.Error != "sku is gone" || got.Attempts != 3 {
		b.t.Errorf("after a copy the letter is %+v", got)
	}
	if !got.FirstAt.Equal(first.FirstAt) || got.LastAt.Before(first.LastAt) {
		b.t.Errorf("first at %v, last at %v; it was %v", got.FirstAt, got.LastAt, first.FirstAt)
	}
	for _, other := range []deadletter.Letter{letterOf("order-42", "two"), letterOf("order-43", "one"), letterOf("Order-42", "one"), letterOf("order-42", "")} {
		b.put(q, other)
	}
	null := letterOf("order-42", "")
	null.Message.Body = nil
	b.put(q, null)
	if n := len(b.list(q, deadletter.Filter{})); n != 6 {
		b.t.Errorf("%d letters, want 6: other bodies and keys are other messages", n)
	}
}

func copiesAtOnce[Tx any](b *bench[Tx]) {
	const copies = 8
	b.workers(copies, func(_ int, c Client[Tx]) error {
		for { // a conflict is tried again, as a consumer does
			err := b.queue(c).Put(b.ctx, letterOf("order-42", "one"))
			if err == nil || c.Store.Classify(err) != store.ClassConflict {
				return err
			}
		}
	})
	letters := b.list(b.queue(b.One), deadletter.Filter{})
	if len(letters) != 1 || letters[0].Copies != copies {
		b.t.Errorf("%d copies became %+v", copies, letters)
	}
	b.wantIdle()
}

func listLetters[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	for i := range 10 {
		l := letterOf(fmt.Sprintf("order-%d", i), "one")
		if i%2 == 1 {
			l.Consumer, l.Reason = "courier-service", deadletter.Permanent
		}
		b.put(q, l)
	}
	b.put(q, letterOf("order-3", "two"))
	b.put(q, letterOf("a\x00b", "one"))
	for _, each := range []struct {
		filter deadletter.Filter
		want   string // keys
	}{
		{deadletter.Filter{}, "a\x00b order-3 order-9 order-8 order-7 order-6 order-5 order-4 order-3 order-2 order-1 order-0"},
		{deadletter.Filter{Limit: 2}, "a\x00b order-3"},
		{deadletter.Filter{Consumer: "courier-service"}, "order-9 order-7 order-5 order-3 order-1"},
		{deadletter.Filter{Consumer: "courier-service", Limit: 2}, "order-9 order-7"},
		{deadletter.Filter{Consumer: "Courier-service"}, ""},
		{deadletter.Filter{Reason: deadletter.Permanent, Limit: 1}, "order-9"},
		{deadletter.Filter{Key: "order-3"}, "order-3 order-3"},
		{deadletter.Filter{Key: "order-3", Consumer: consumer}, "order-3"},
		{deadletter.Filter{Key: "ORDER-3"}, ""},
		{deadletter.Filter{Key: "a\x00b"}, "a\x00b"},
		{deadletter.Filter{Status: deadletter.Open, Limit: 1}, "a\x00b"},
		{deadletter.Filter{Status: "closed"}, ""},
	} {
		var keys []string
		for _, l := range b.list(q, each.filter) {
			keys = append(keys, l.Key)
		}
		if got := strings.Join(keys, " "); got != each.want {
			b.t.Errorf("%+v: %q, want %q", each.filter, got, each.want)
		}
	}
	b.pages(q)
	b.wantIdle()
}

// pages reads all letters three at a time.
func (b *bench[Tx]) pages(q deadletter.Queue) {
	b.t.Helper()
	var ids []int64
	f := deadletter.Filter{Limit: 3}
	for {
		page := b.list(q, f)
		if len(page) == 0 {
			break
		}
		for _, l := range page {
			ids = append(ids, l.ID)
		}
		f.Before = ids[len(ids)-1]
	}
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, func(x, y int64) int { return int(y - x) })
	if len(ids) != 12 || !slices.Equal(ids, sorted) || len(slices.Compact(sorted)) != 12 {
		b.t.Errorf("pages have the letters %v", ids)
	}
}

func noSuchLetter[Tx any](b *bench[Tx]) {
	_, err := b.queue(b.One).Get(b.ctx, 4711)
	b.wantError(err, []error{deadletter.ErrNotFound})
	if letters := b.list(b.queue(b.One), deadletter.Filter{}); len(letters) != 0 {
		b.t.Errorf("an empty queue has %v", letters)
	}
}

func letterTimes[Tx any](b *bench[Tx]) {
	for i, zone := range b.zones() {
		c := b.with(zone)
		before := time.Now()
		b.put(b.queue(c), letterOf(fmt.Sprintf("order-%d", i), "one"))
		for _, reader := range []Client[Tx]{c, b.One} {
			got := b.newest(b.queue(reader)).LastAt
			if off := got.Sub(before); off < -slack || off > slack+time.Since(before) || got.Location() != time.UTC {
				b.t.Errorf("with %v the letter is %v off, in %v", zone, off.Round(time.Second), got.Location())
			}
		}
	}
}

func lettersWithoutTable[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	schema := b.wantSchemaError("put", q.Put(b.ctx, letterOf("order-42", "one")))
	if !strings.Contains(schema.Mend, "sekali migrate up") || !strings.Contains(schema.Table, "dead_letters") {
		b.t.Errorf("the error does not name the table and `sekali migrate up`: %v", schema)
	}
	_, err := q.List(b.ctx, deadletter.Filter{})
	b.wantSchemaError("list", err)
	_, err = q.Get(b.ctx, 1)
	b.wantSchemaError("get", err)
	b.wantError(err, []error{err}, deadletter.ErrNotFound)
	b.wantIdle()
}

func letterCancelled[Tx any](b *bench[Tx]) {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	if err := b.queue(b.One).Put(ctx, letterOf("order-42", "one")); !errors.Is(err, context.Canceled) {
		b.t.Errorf("put: %v", err)
	}
	if letters := b.list(b.queue(b.One), deadletter.Filter{}); len(letters) != 0 {
		b.t.Errorf("it was written: %v", letters)
	}
	b.wantIdle()
}

func largeLetter[Tx any](b *bench[Tx]) {
	l := letterOf("order-42", strings.Repeat("\x00☕\xff", 1<<18)) // 1.25 MiB
	l.Error = strings.Repeat("é", 10_000)
	l.Message.Headers = broker.Headers{{Name: "large", Value: bytes.Repeat([]byte{0xff}, 1<<17)}}
	b.put(b.queue(b.One), l)
	b.wantLetter(b.newest(b.queue(b.One)), l)
}
