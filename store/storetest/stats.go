package storetest

import (
	"strconv"
	"sync"
	"time"

	"github.com/sekali/sekali/store"
)

func statTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "counts of a minute add up, whoever adds them", f: statsAddUp[Tx]},
		{name: "statistics are read by consumer and time", f: statsAreRead[Tx]},
		{name: "a minute is one of UTC by the database's clock whatever the session's zone", f: statsInUTC[Tx]},
		{name: "a missing table of statistics is named", f: statsWithoutTable[Tx], empty: true},
	}
}

func (b *bench[Tx]) stats(c Client[Tx]) store.Stats {
	b.t.Helper()
	s, ok := store.As[interface{ Stats() store.Stats }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Stats", c.Store)
	}
	return s.Stats()
}

// someCounts has another number in each field.
func someCounts() store.Counts {
	c := store.Counts{
		Processed: 1, Stale: 2, Conflicts: 3, Redriven: 4, LostRaces: 5, Redelivered: 6, Repeated: 7, Retries: 8, DeadLetters: 9,
	}
	for i := range c.Ages {
		c.Ages[i] = int64(10 + i)
	}
	return c
}

// total is what a consumer did in the last and the coming hour.
func (b *bench[Tx]) total(c Client[Tx], consumer string) (sum store.Counts) {
	b.t.Helper()
	minutes, err := b.stats(c).Stats(b.ctx, consumer, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	b.ok(err)
	for _, m := range minutes {
		sum = sum.Plus(m.Counts)
	}
	return sum
}

func statsAddUp[Tx any](b *bench[Tx]) {
	const each = 10
	var adding sync.WaitGroup
	for _, c := range []Client[Tx]{b.One, b.Two} {
		adding.Go(func() {
			for range each {
				b.ok(b.addStats(c, consumer))
			}
		})
	}
	adding.Wait()
	var want store.Counts
	for range 2 * each {
		want = want.Plus(someCounts())
	}
	if got := b.total(b.Two, consumer); got != want {
		b.t.Errorf("the counts are %+v, want %+v", got, want)
	}
	if n := b.number("SELECT count(*) FROM consumer_stats"); n > 2 { // a minute may have ended
		b.t.Errorf("there are %d rows", n)
	}
}

// addStats adds counts, again while a rival is in the way.
func (b *bench[Tx]) addStats(c Client[Tx], consumer string) error {
	for {
		err := b.stats(c).Add(b.ctx, consumer, someCounts())
		if err == nil || c.Store.Classify(err) != store.ClassConflict || b.ctx.Err() != nil {
			return err
		}
	}
}

func statsAreRead[Tx any](b *bench[Tx]) {
	for _, name := range []string{"b", "B", "a"} {
		b.ok(b.addStats(b.One, name))
	}
	minute := time.Now().UTC().Truncate(time.Minute)
	b.run("UPDATE consumer_stats SET at_minute = " + strconv.FormatInt(minute.Unix()/60, 10))
	b.run("UPDATE consumer_stats SET at_minute = at_minute - 1 WHERE consumer_name = 'b'")
	read := func(consumer string, from, to time.Duration) (names string) {
		b.t.Helper()
		minutes, err := b.stats(b.Two).Stats(b.ctx, consumer, minute.Add(from), minute.Add(to))
		b.ok(err)
		for _, m := range minutes {
			names += m.Consumer
			if want := someCounts(); m.Counts != want || m.At.Location() != time.UTC ||
				m.At != minute && (m.Consumer != "b" || m.At != minute.Add(-time.Minute)) {
				b.t.Errorf("%s at %v: %+v", m.Consumer, m.At, m.Counts)
			}
		}
		return names
	}
	for _, c := range []struct {
		consumer string
		from, to time.Duration
		want     string
	}{
		{"", -time.Hour, time.Hour, "bBa"},
		{"", 0, time.Hour, "Ba"},
		{"", -time.Minute, 0, "b"},
		{"", -time.Minute, time.Nanosecond, "bBa"},
		{"", time.Nanosecond, time.Hour, ""},
		{"b", -time.Hour, time.Hour, "b"},
		{"B", -time.Hour, time.Hour, "B"},
		{"nobody", -time.Hour, time.Hour, ""},
	} {
		if got := read(c.consumer, c.from, c.to); got != c.want {
			b.t.Errorf("consumer %q from %v to %v: %q, want %q", c.consumer, c.from, c.to, got, c.want)
		}
	}
}

func statsInUTC[Tx any](b *bench[Tx]) {
	for i, zone := range b.zones() {
		c, name := b.with(zone), strconv.FormatInt(int64(i), 10)
		before := time.Now().Truncate(time.Minute)
		b.ok(b.addStats(c, name))
		minutes, err := b.stats(c).Stats(b.ctx, name, before, time.Now().Add(slack))
		b.ok(err)
		if len(minutes) != 1 {
			b.t.Errorf("with %v there are %d minutes", zone, len(minutes))
		}
	}
}

func statsWithoutTable[Tx any](b *bench[Tx]) {
	b.wantClass(b.One, b.stats(b.One).Check(b.ctx), store.ClassMisconfigured)
	b.wantClass(b.One, b.stats(b.One).Add(b.ctx, consumer, someCounts()), store.ClassMisconfigured)
}
