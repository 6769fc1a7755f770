package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

func adminTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a key is found for each consumer that processed it, raw or as it is stored", f: keysFound[Tx]},
		{name: "keys and their consumers are listed in pages", f: keysListed[Tx]},
		{name: "a forgotten key is fresh again, and it is audited", f: keysForgotten[Tx]},
		{name: "seeded keys are duplicates, as old as was said, and can be seeded again", f: keysSeeded[Tx]},
		{name: "what cannot be forgotten or seeded is refused", f: keysRefused[Tx]},
		{name: "a row's time and day are in UTC whatever the session's zone", f: keyTimes[Tx]},
		{name: "activity is added up by steps", f: activity[Tx]},
		{name: "an overview counts what waits and tells who is active", f: overview[Tx]},
		{name: "without tables an overview names them", f: overviewWithoutTables[Tx], empty: true},
		{name: "a healthy database has nothing but its name to tell", f: healthyFacts[Tx]},
		{name: "sessions that lose commits or write nothing are told", f: unsafeSessions[Tx]},
	}
}

func (b *bench[Tx]) admin(c Client[Tx]) admin.Admin {
	b.t.Helper()
	k, ok := store.As[admin.Keeper](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Admin", c.Store)
	}
	return k.Admin()
}

// processed records keys for a consumer.
func (b *bench[Tx]) processed(consumer string, keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.commit(b.One, b.begin(b.One, store.Claim{Consumer: consumer, Keys: []store.Key{{Raw: key}}}, store.Fresh))
	}
}

var ayu = admin.Decision{By: "Ayu", Note: "asked by the shop"}

func keysFound[Tx any](b *bench[Tx]) {
	long := strings.Repeat("k", 300)
	b.processed("courier", "Key", long, "\xff\x00")
	b.processed("Courier", "key", long)
	b.processed("stock", "key ", store.StoredKey(long))
	for key, want := range map[string]string{
		"Key":                 "courier",
		"key":                 "Courier",
		"key ":                "stock",
		"KEY":                 "",
		long:                  "Courier courier",
		"\xff\x00":            "courier",
		store.StoredKey(long): "Courier courier stock", // what the stock service was sent looks like it
	} {
		found, err := b.admin(b.Two).Keys.Find(b.ctx, key)
		b.ok(err)
		var names []string
		for _, k := range found {
			names = append(names, k.Consumer)
			if time.Since(k.ProcessedAt).Abs() > slack || k.ProcessedAt.Location() != time.UTC {
				b.t.Errorf("%q was processed at %v", key, k.ProcessedAt)
			}
			if k.Raw == key != (k.Stored == store.StoredKey(key)) {
				b.t.Errorf("%q stored as %q came as %q", key, k.Stored, k.Raw)
			}
		}
		if got := strings.Join(names, " "); got != want {
			b.t.Errorf("%.20q was processed by %q, want %q", key, got, want)
		}
	}
}

func keysListed[Tx any](b *bench[Tx]) {
	b.processed("a", "1", "2", "3")
	b.processed("b", "1")
	b.processed("c", "1", "2", "3", "4")
	keys := b.admin(b.One).Keys
	read := func(f admin.KeyFilter) (pages string) {
		b.t.Helper()
		for {
			page, err := keys.List(b.ctx, f)
			b.ok(err)
			for _, k := range page {
				pages += k.Consumer + k.Stored + " "
				f.After = k
			}
			if pages += "| "; len(page) == 0 {
				return pages
			}
		}
	}
	for want, f := range map[string]admin.KeyFilter{
		"a1 a2 a3 b1 c1 c2 c3 c4 | | ":       {},
		"a1 a2 | a3 b1 | c1 c2 | c3 c4 | | ": {Limit: 2},
		"c1 c2 c3 | c4 | | ":                 {Limit: 3, Consumer: "c"},
		"| ":                                 {Consumer: "d"},
	} {
		if got := read(f); got != want {
			b.t.Errorf("%+v: %q, want %q", f, got, want)
		}
	}
	names, err := keys.Consumers(b.ctx)
	if b.ok(err); strings.Join(names, " ") != "a b c" {
		b.t.Errorf("consumers are %q", names)
	}
}

func keysForgotten[Tx any](b *bench[Tx]) {
	long := strings.Repeat("k", 300)
	b.processed("courier", "Key", "key", long)
	b.processed("stock", "key")
	keys := b.admin(b.One).Keys
	found, err := keys.Find(b.ctx, long)
	b.ok(err)
	forget := append(found, admin.Key{Consumer: "courier", Stored: "key", Raw: "key"}, admin.Key{Consumer: "courier", Stored: "other"})
	if n, err := keys.Forget(b.ctx, forget, ayu); n != 2 || err != nil {
		b.t.Errorf("forgot %d, %v, want 2", n, err)
	}
	for _, c := range []struct {
		consumer, key string
		want          store.State
	}{{"courier", long, store.Fresh}, {"courier", "key", store.Fresh}, {"courier", "Key", store.Duplicate}, {"stock", "key", store.Duplicate}} {
		b.rollback(b.Two, b.begin(b.Two, store.Claim{Consumer: c.consumer, Keys: []store.Key{{Raw: c.key}}}, c.want))
	}
	trail, err := b.desk(b.Two).Trail(b.ctx, 0, 10)
	b.ok(err)
	if len(trail) != 2 || trail[0].By != "Ayu" || trail[0].Action != "forget key" || trail[0].Detail != "asked by the shop" ||
		trail[0].Consumer != "courier" || trail[0].Key != "key" || trail[1].Key != long {
		b.t.Errorf("the trail: %+v", trail)
	}
	if n, err := keys.Forget(b.ctx, forget, ayu); n != 0 || err != nil {
		b.t.Errorf("forgot %d again, %v", n, err)
	}
}

func keysSeeded[Tx any](b *bench[Tx]) {
	b.processed("stock", "there")
	keys := b.admin(b.One).Keys
	at := time.Date(2026, 3, 1, 12, 30, 15, 123e6, time.UTC)
	long := strings.Repeat("ä", 200)
	seed := admin.Seed{Consumer: "stock", Keys: []string{"there", "b", "a", "b", long}, ProcessedAt: at}
	if n, err := keys.Seed(b.ctx, seed, ayu); n != 3 || err != nil {
		b.t.Errorf("seeded %d, %v, want 3", n, err)
	}
	if n, err := keys.Seed(b.ctx, seed, ayu); n != 0 || err != nil {
		b.t.Errorf("seeded %d again, %v", n, err)
	}
	for _, key := range []string{"there", "a", "b", long} {
		b.rollback(b.Two, b.begin(b.Two, store.Claim{Consumer: "stock", Keys: []store.Key{{Raw: key}}}, store.Duplicate))
		found, err := keys.Find(b.ctx, key)
		b.ok(err)
		if len(found) != 1 || found[0].ProcessedAt.Sub(at).Abs() < time.Millisecond == (key == "there") {
			b.t.Errorf("%.10q: %+v", key, found)
		}
	}
	if n, err := keys.Seed(b.ctx, admin.Seed{Consumer: "stock", Keys: []string{"now"}}, ayu); n != 1 || err != nil {
		b.t.Errorf("seeded %d, %v", n, err)
	}
	if found, err := keys.Find(b.ctx, "now"); err != nil || time.Since(found[0].ProcessedAt).Abs() > slack {
		b.t.Errorf("without a time: %+v, %v", found, err)
	}
	trail, err := b.desk(b.Two).Trail(b.ctx, 0, 10)
	b.ok(err)
	want := fmt.Sprintf("3 keys, \"a\" to %q, processed at 2026-03-01T12:30:15Z, asked by the shop", store.StoredKey(long))
	if len(trail) != 2 || trail[0].Action != "seed keys" || trail[0].Consumer != "stock" || trail[0].Key != "" || trail[0].Detail != want {
		b.t.Errorf("the trail: %+v, want %q", trail, want)
	}
}

func keysRefused[Tx any](b *bench[Tx]) {
	keys := b.admin(b.One).Keys
	for name, s := range map[string]admin.Seed{
		"no keys":     {Consumer: "stock"},
		"no consumer": {Keys: []string{"k"}},
		"a blank key": {Consumer: "stock", Keys: []string{"k", " "}},
		"too many":    {Consumer: "stock", Keys: make2(admin.MaxSeed + 1)},
		"by nobody":   {Consumer: "stock", Keys: []string{"k"}},
		"a long name": {Consumer: strings.Repeat("c", 101), Keys: []string{"k"}},
	} {
		how := ayu
		if name == "by nobody" {
			how.By = ""
		}
		if n, err := keys.Seed(b.ctx, s, how); err == nil || n != 0 {
			b.t.Errorf("%s: %d were seeded", name, n)
		}
	}
	if _, err := keys.Forget(b.ctx, []admin.Key{{Consumer: "stock", Stored: "k"}}, admin.Decision{}); err == nil {
		b.t.Error("nobody may forget")
	}
	if _, err := keys.Forget(b.ctx, make([]admin.Key, admin.MaxForget+1), ayu); err == nil {
		b.t.Error("too many keys were taken")
	}
	if n := b.number("SELECT count(*) FROM processed_messages") + b.number("SELECT count(*) FROM audit_trail"); n != 0 {
		b.t.Errorf("there are %d rows", n)
	}
}

func make2(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
	}
	return keys
}

func keyTimes[Tx any](b *bench[Tx]) {
	at := time.Date(2026, 3, 1, 23, 59, 59, 0, time.UTC)
	for i, zone := range b.zones() {
		keys, name := b.admin(b.with(zone)).Keys, fmt.Sprint(i)
		for _, k := range []struct {
			key string
			at  time.Time
		}{{"late", at}, {"early", at.Add(time.Second)}} {
			if _, err := keys.Seed(b.ctx, admin.Seed{Consumer: name, Keys: []string{k.key}, ProcessedAt: k.at}, ayu); err != nil {
				b.t.Fatal(err)
			}
		}
		found, err := keys.Find(b.ctx, "late")
		b.ok(err)
		if got := found[i].ProcessedAt; !got.Equal(at) {
			b.t.Errorf("with %v it was processed at %v, want %v", zone, got, at)
		}
		days, err := keys.Days(b.ctx, name)
		b.ok(err)
		if len(days) != 2 || days[0].Rows != 1 || days[0].Consumer != name ||
			!days[0].Day.Equal(at.Truncate(24*time.Hour)) || !days[1].Day.Equal(at.Add(time.Second)) {
			b.t.Errorf("with %v the days are %+v", zone, days)
		}
	}
	if days, err := b.admin(b.One).Keys.Days(b.ctx, ""); err != nil || len(days) != 2*len(b.zones()) {
		b.t.Errorf("all days are %+v, %v", days, err)
	}
}

func activity[Tx any](b *bench[Tx]) {
	for range 2 {
		b.ok(b.addStats(b.One, "a"))
	}
	b.ok(b.addStats(b.One, "b"))
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	b.run(fmt.Sprintf("UPDATE consumer_stats SET at_minute = %d", noon.Unix()/60))
	b.run("UPDATE consumer_stats SET at_minute = at_minute + 59 WHERE consumer_name = 'b'")
	b.ok(b.addStats(b.One, "a"))
	b.run(fmt.Sprintf("UPDATE consumer_stats SET at_minute = %d WHERE at_minute > %d", noon.Unix()/60+59, noon.Unix()/60+59))
	for _, c := range []struct {
		span admin.Span
		want string
	}{
		{admin.Span{To: noon.Add(time.Hour), Step: time.Hour}, "12:00 a 3, 12:00 b 1, "},
		{admin.Span{To: noon.Add(time.Hour)}, "12:00 a 2, 12:59 a 1, 12:59 b 1, "},
		{admin.Span{To: noon.Add(time.Hour), Step: 24 * time.Hour, Consumer: "a"}, "00:00 a 3, "},
		{admin.Span{From: noon.Add(time.Minute), To: noon.Add(time.Hour), Step: time.Hour}, "12:00 a 1, 12:00 b 1, "},
		{admin.Span{To: noon}, ""},
	} {
		buckets, err := b.admin(b.Two).Health.Activity(b.ctx, c.span)
		b.ok(err)
		got := ""
		for _, bucket := range buckets {
			got += fmt.Sprint(bucket.At.Format("15:04 "), bucket.Consumer, " ", bucket.Processed, ", ")
			if bucket.Ages[11] != bucket.Processed*someCounts().Ages[11] {
				b.t.Errorf("the last column is %d", bucket.Ages[11])
			}
		}
		if got != c.want {
			b.t.Errorf("%+v: %q, want %q", c.span, got, c.want)
		}
	}
	for _, bad := range []admin.Span{{}, {To: noon, Step: time.Second}, {To: noon, Step: 90 * time.Second}} {
		if _, err := b.admin(b.Two).Health.Activity(b.ctx, bad); err == nil {
			b.t.Errorf("%+v was taken", bad)
		}
	}
}

func overview[Tx any](b *bench[Tx]) {
	health := b.admin(b.One).Health
	o, err := health.Overview(b.ctx)
	b.ok(err)
	for status, w := range o.DeadLetters {
		if w != (admin.Waiting{}) {
			b.t.Errorf("there are %s letters: %+v", status, w)
		}
	}
	for i := range 3 {
		b.ok(b.desk(b.One).Put(b.ctx, deadletter.Letter{Consumer: "stock", Key: fmt.Sprint(i), Reason: deadletter.Exhausted}))
	}
	b.ok(b.desk(b.One).Discard(b.ctx, 1, deadletter.Decision{By: "Ayu"}))
	for key, s := range map[string]effect.State{"k1": effect.Unknown, "k2": effect.Parked, "k3": effect.Succeeded} {
		r := b.startEffect(b.One, label(key), time.Hour, true)
		b.ok(b.effects(b.One).End(b.ctx, r, s, []byte("1"), "text"))
	}
	b.startEffect(b.One, label("k4"), time.Hour, true)
	b.startEffect(b.One, label("k5"), 0, true)
	b.ok(b.addStats(b.One, "courier"))
	b.processed("old", "k")
	o, err = health.Overview(b.ctx)
	b.ok(err)
	got := fmt.Sprint(o.DeadLetters[deadletter.Open].Count, o.DeadLetters[deadletter.Held].Count, o.Effects[effect.Unknown].Count,
		o.Effects[effect.Parked].Count, o.Effects[effect.Started].Count, o.Outbox.Pending, o.Missing)
	if want := "2 0 1 1 1 0 []"; got != want {
		b.t.Errorf("%s, want %s: %+v", got, want, o)
	}
	if oldest := o.DeadLetters[deadletter.Open].Oldest; oldest <= 0 || oldest > slack {
		b.t.Errorf("the oldest letter is from %v ago", oldest)
	}
	if oldest := o.Effects[effect.Unknown].Oldest; oldest <= 0 || oldest > slack {
		b.t.Errorf("the oldest effect is from %v ago", oldest)
	}
	names := ""
	for _, c := range o.Consumers {
		names += fmt.Sprint(c.Name, " ", c.HasKeys, " ", time.Since(c.LastActive) < time.Hour, ", ")
	}
	if want := "courier false true, old true false, stock true false, "; names != want {
		b.t.Errorf("consumers: %q, want %q", names, want)
	}
	waiting, err := health.Backlog(b.ctx)
	b.ok(err)
	if fmt.Sprint(counts(waiting)) != fmt.Sprint(counts(o)) || len(waiting.Consumers) != 0 {
		b.t.Errorf("the backlog is %+v, and the overview says %+v", waiting, o)
	}
}

// counts are those of what waits. Ages go on.
func counts(o admin.Overview) (n [10]int) {
	for i, s := range []deadletter.Status{deadletter.Open, deadletter.Held, deadletter.Requested, deadletter.Waiting} {
		n[i] = o.DeadLetters[s].Count
	}
	for i, s := range []effect.State{effect.Unknown, effect.Parked, effect.Started} {
		n[4+i] = o.Effects[s].Count
	}
	n[7], n[8], n[9] = o.Outbox.Pending, o.Outbox.Parked, len(o.Missing)
	return n
}

func overviewWithoutTables[Tx any](b *bench[Tx]) {
	o, err := b.admin(b.One).Health.Overview(b.ctx)
	if b.ok(err); strings.Join(o.Missing, " ") != "dead_letters external_effects outbox_messages processed_messages" {
		b.t.Errorf("missing are %q", o.Missing)
	}
	o, err = b.admin(b.One).Health.Backlog(b.ctx)
	if b.ok(err); strings.Join(o.Missing, " ") != "dead_letters external_effects outbox_messages" {
		b.t.Errorf("of the backlog are missing %q", o.Missing)
	}
	f, err := b.admin(b.One).Health.Facts(b.ctx)
	if b.ok(err); len(f.Unfit) != 8 || !f.Unfit[0].Main || f.Unfit[1].Main || f.Unfit[1].Mend == "" {
		b.t.Errorf("unfit are %+v", f.Unfit)
	}
}

func healthyFacts[Tx any](b *bench[Tx]) {
	b.processed("stock", "k")
	f, err := b.admin(b.One).Health.Facts(b.ctx)
	b.ok(err)
	if f.Database == "" || f.Isolation == "" != (b.h.Database == SQLite) || f.SharedSession || f.Confused || f.ReadOnly != "" || f.Volatile+f.SomewhatVolatile != "" ||
		len(f.Unfit)+len(f.Wastes)+len(f.NoIndex) > 0 || (f.ClockAhead-f.ClockWithin).Abs() > slack {
		b.t.Errorf("%+v", f)
	}
	if server := b.h.Database != SQLite; server != (f.Connections > 0) || server != (f.InUse > 0) {
		b.t.Errorf("%d of %d connections", f.InUse, f.Connections)
	}
}

func unsafeSessions[Tx any](b *bench[Tx]) {
	for _, c := range map[Database][]struct {
		settings                   map[string]string
		volatile, somewhat, cannot string
	}{
		Postgres: {
			{map[string]string{"synchronous_commit": "off"}, "", "synchronous_commit = off", ""},
			{map[string]string{"default_transaction_read_only": "on"}, "", "", "default_transaction_read_only is on"},
		},
		MySQL: {{map[string]string{"tx_read_only": "1"}, "", "", "tx_read_only is ON"}},
		SQLite: {
			{map[string]string{"synchronous": "OFF"}, "synchronous = OFF", "", ""},
			{map[string]string{"synchronous": "NORMAL"}, "", "synchronous = NORMAL", ""},
			{map[string]string{"query_only": "1"}, "", "", "query_only is on"},
		},
	}[b.h.Database] {
		f, err := b.admin(b.with(c.settings)).Health.Facts(b.ctx)
		b.ok(err)
		if f.Volatile != c.volatile || f.SomewhatVolatile != c.somewhat || f.ReadOnly != c.cannot {
			b.t.Errorf("with %v: %q, %q, %q", c.settings, f.Volatile, f.SomewhatVolatile, f.ReadOnly)
		}
	}
}
