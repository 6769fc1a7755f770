package storetest

import (
	"strings"

	"github.com/sekali/sekali/deadletter"
)

func holdTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an ordering key is blocked by its letters and held messages alone", f: blocked[Tx]},
		{name: "held messages keep their order and their place", f: heldOrder[Tx]},
		{name: "a copy of an open letter that is held changes nothing but its count", f: heldCopy[Tx]},
		{name: "a held message that fails becomes an open letter in its place", f: heldFails[Tx]},
	}
}

func (b *bench[Tx]) holder(c Client[Tx]) deadletter.Holder {
	b.t.Helper()
	h, ok := b.queue(c).(deadletter.Holder)
	if !ok {
		b.t.Fatalf("the dead letters of a %T hold nothing", c.Store)
	}
	return h
}

func ordered(key, body, order string) deadletter.Letter {
	l := letterOf(key, body)
	l.OrderingKey = order
	return l
}

func (b *bench[Tx]) wantBlocked(of, order string, want bool) {
	b.t.Helper()
	got, err := b.holder(b.Two).Blocked(b.ctx, of, order)
	b.ok(err)
	if got != want {
		b.t.Errorf("ordering key %q of %s is blocked: %v, want %v", order, of, got, want)
	}
}

func blocked[Tx any](b *bench[Tx]) {
	strange := []string{"e", "E", "e ", "e\x00", "\xff", strings.Repeat("e", 4096), "sha256:e", "e\u0301"}
	for _, order := range strange {
		b.wantBlocked(consumer, order, false)
	}
	b.put(b.queue(b.One), ordered("no order", "", ""))
	for i, order := range strange {
		if i%2 == 0 {
			b.put(b.queue(b.One), ordered("k", order, order))
		} else {
			b.ok(b.holder(b.One).Hold(b.ctx, ordered("k", order, order)))
		}
		b.wantBlocked(consumer, order, true)
		b.wantBlocked("another", order, false)
		for _, later := range strange[i+1:] {
			b.wantBlocked(consumer, later, false)
		}
		if got := b.newest(b.queue(b.Two)).OrderingKey; got != order {
			b.t.Errorf("the ordering key came back as %q, was %q", got, order)
		}
	}
}

// held returns keys of what is held of an ordering key, in order.
func (b *bench[Tx]) held(order string) string {
	b.t.Helper()
	var keys []string
	for _, l := range b.list(b.queue(b.Two), deadletter.Filter{OrderingKey: order, Status: deadletter.Held}) {
		keys = append([]string{l.Key}, keys...)
	}
	return strings.Join(keys, " ")
}

func heldOrder[Tx any](b *bench[Tx]) {
	h := b.holder(b.One)
	b.put(b.queue(b.One), ordered("a", "1", "e"))
	for _, key := range []string{"b", "c", "d", "c", "b"} { // two come again
		b.ok(h.Hold(b.ctx, ordered(key, "1", "e")))
		b.ok(h.Hold(b.ctx, ordered(key, "1", "another")))
	}
	if got := b.held("e"); got != "b c d" {
		b.t.Errorf("held in this order: %q, want b c d", got)
	}
	if open := b.list(b.queue(b.Two), deadletter.Filter{OrderingKey: "e", Status: deadletter.Open}); len(open) != 1 || open[0].Key != "a" {
		b.t.Errorf("open letters: %+v, want that of a", open)
	}
}

func heldCopy[Tx any](b *bench[Tx]) {
	b.put(b.queue(b.One), ordered("a", "1", "e"))
	again := ordered("a", "1", "e")
	again.Reason, again.Error, again.Attempts = deadletter.Blocked, "blocked by itself", 0
	b.ok(b.holder(b.One).Hold(b.ctx, again))
	got := b.newest(b.queue(b.Two))
	if got.Status != deadletter.Open || got.Reason != deadletter.Exhausted || got.Error != "no stock" || got.Attempts != 10 || got.Copies != 2 {
		b.t.Errorf("the letter is now %+v", got)
	}
}

func heldFails[Tx any](b *bench[Tx]) {
	l := ordered("a", "1", "e")
	l.Reason, l.Attempts = deadletter.Blocked, 0
	b.ok(b.holder(b.One).Hold(b.ctx, l))
	held := b.newest(b.queue(b.Two))
	if held.Status != deadletter.Held || held.Reason != deadletter.Blocked {
		b.t.Errorf("the held message is %+v", held)
	}
	b.put(b.queue(b.One), ordered("a", "1", "e"))
	got := b.newest(b.queue(b.Two))
	if got.ID != held.ID || got.Status != deadletter.Open || got.Reason != deadletter.Exhausted || got.Attempts != 10 {
		b.t.Errorf("the letter is now %+v, was %+v", got, held)
	}
}
