package storetest

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

func effectTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "one of many that start an effect at once owns it", f: effectStartedOnce[Tx]},
		{name: "an effect that is owned is not taken, and one whose owner is late is", f: effectTaken[Tx]},
		{name: "a late owner changes nothing", f: effectLate[Tx]},
		{name: "an effect that ended is taken as its state says", f: effectEnded[Tx]},
		{name: "what is sent under a key is recorded once", f: effectBound[Tx]},
		{name: "an end whose answer was lost may be told again", f: effectEndTwice[Tx]},
		{name: "names, keys, results and errors come back with every byte", f: effectBytes[Tx]},
		{name: "effects are listed newest first, filtered and in pages", f: effectsListed[Tx]},
		{name: "a person resolves what nobody owns, and it is audited", f: effectResolved[Tx]},
		{name: "a person corrects what was said of an effect until its message is processed", f: effectCorrected[Tx]},
		{name: "a waiting message is taken when none of its effects is parked", f: effectWaiting[Tx]},
		{name: "a redrive with effects has them happen again under other keys", f: effectsAgain[Tx]},
		{name: "a missing table of effects is named", f: effectsWithoutTable[Tx], empty: true},
	}
}

func (b *bench[Tx]) effects(c Client[Tx]) effect.Rows {
	b.t.Helper()
	s, ok := store.As[interface{ Effects() effect.Rows }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Effects", c.Store)
	}
	return s.Effects()
}

func (b *bench[Tx]) effectDesk(c Client[Tx]) effect.Desk {
	b.t.Helper()
	d, ok := b.effects(c).(effect.Desk)
	if !ok {
		b.t.Fatalf("nothing can be decided about the effects of a %T", c.Store)
	}
	return d
}

func label(key string) effect.ID {
	return effect.ID{Consumer: consumer, MessageKey: key, Name: "label"}
}

func keyOf(id effect.ID) string { return effect.IdempotencyKey(id.Consumer, id.MessageKey, id.Name) }

// startEffect starts an effect, and wants it to be ours or not.
func (b *bench[Tx]) startEffect(c Client[Tx], id effect.ID, lease time.Duration, ours bool) effect.Row {
	b.t.Helper()
	r, got, err := b.effects(c).Start(b.ctx, id, keyOf(id), lease)
	b.ok(err)
	if got != ours {
		b.t.Fatalf("started %v: ours is %v, want %v", id, got, ours)
	}
	return r
}

func (b *bench[Tx]) takeEffect(c Client[Tx], r effect.Row, ours bool) effect.Row {
	b.t.Helper()
	taken, got, err := b.effects(c).Take(b.ctx, r, long)
	b.ok(err)
	if got != ours {
		b.t.Fatalf("taken %+v: ours is %v, want %v", r, got, ours)
	}
	return taken
}

func effectStartedOnce[Tx any](b *bench[Tx]) {
	var owners atomic.Int32
	var running sync.WaitGroup
	for i := range 8 {
		c := []Client[Tx]{b.One, b.Two}[i%2]
		running.Go(func() {
			for {
				_, ours, err := b.effects(c).Start(b.ctx, label("a"), "k", long)
				if c.Store.Classify(err) == store.ClassConflict {
					continue
				}
				if err != nil {
					b.t.Error(err)
				}
				if ours {
					owners.Add(1)
				}
				return
			}
		})
	}
	running.Wait()
	if n := owners.Load(); n != 1 {
		b.t.Errorf("%d own the effect", n)
	}
}

func effectTaken[Tx any](b *bench[Tx]) {
	mine := b.startEffect(b.One, label("a"), long, true)
	if mine.Attempt != 1 || mine.Token != 1 || mine.State != effect.Started || mine.IdempotencyKey != keyOf(label("a")) {
		b.t.Errorf("started: %+v", mine)
	}
	seen := b.startEffect(b.Two, label("a"), long, false)
	if seen.LeaseLeft < long-time.Minute || seen.LeaseLeft > long || seen.SinceFirst < 0 || seen.SinceFirst > time.Minute {
		b.t.Errorf("seen: %+v", seen)
	}
	b.takeEffect(b.Two, seen, false)
	b.startEffect(b.One, label("b"), 0, true)
	over := b.startEffect(b.Two, label("b"), long, false)
	if over.LeaseLeft != 0 {
		b.t.Errorf("a lease that is over: %+v", over)
	}
	var winners atomic.Int32
	var running sync.WaitGroup
	for i := range 6 {
		c := []Client[Tx]{b.One, b.Two}[i%2]
		running.Go(func() {
			for {
				r, ours, err := b.effects(c).Take(b.ctx, over, long)
				if c.Store.Classify(err) == store.ClassConflict {
					continue
				}
				if err != nil {
					b.t.Error(err)
				}
				if ours {
					winners.Add(1)
					if r.Attempt != 2 || r.Token != 2 || r.IdempotencyKey != keyOf(label("b")) {
						b.t.Errorf("taken: %+v", r)
					}
				}
				return
			}
		})
	}
	running.Wait()
	if n := winners.Load(); n != 1 {
		b.t.Errorf("%d took it", n)
	}
}

func effectLate[Tx any](b *bench[Tx]) {
	late := b.startEffect(b.One, label("a"), 0, true)
	b.takeEffect(b.Two, b.startEffect(b.Two, label("a"), long, false), true)
	rows := b.effects(b.One)
	b.wantError(rows.End(b.ctx, late, effect.Succeeded, []byte(`1`), ""), []error{effect.ErrStale})
	b.wantError(rows.Bind(b.ctx, late, []byte("x")), []error{effect.ErrStale})
	if ours, err := rows.Extend(b.ctx, late, long); err != nil || ours {
		b.t.Errorf("extended by the late owner: %v, %v", ours, err)
	}
	if now := b.startEffect(b.One, label("a"), long, false); now.State != effect.Started || now.Token != 2 || now.Result != nil {
		b.t.Errorf("the row is %+v", now)
	}
}

func effectEnded[Tx any](b *bench[Tx]) {
	for state, taken := range map[effect.State]bool{
		effect.Succeeded: false, effect.Parked: false, effect.Failed: true, effect.Unknown: true,
	} {
		id := label(string(state))
		r := b.startEffect(b.One, id, long, true)
		if ours, err := b.effects(b.One).Extend(b.ctx, r, long); err != nil || !ours {
			b.t.Errorf("extended: %v, %v", ours, err)
		}
		b.ok(b.effects(b.One).End(b.ctx, r, state, []byte(`{"no":7}`), "because"))
		now := b.startEffect(b.Two, id, long, false)
		if now.State != state || string(now.Result) != `{"no":7}` || now.Error != "because" || now.LeaseLeft != 0 {
			b.t.Errorf("ended as %s: %+v", state, now)
		}
		b.takeEffect(b.Two, now, taken)
	}
}

func effectBound[Tx any](b *bench[Tx]) {
	r := b.startEffect(b.One, label("a"), long, true)
	rows := b.effects(b.One)
	print := []byte("0123456789abcdef0123456789abcde\xff")
	b.ok(rows.Bind(b.ctx, r, print))
	b.ok(rows.Bind(b.ctx, r, print))
	b.wantError(rows.Bind(b.ctx, r, []byte("another")), []error{effect.ErrOtherRequest}, effect.ErrStale)
	b.ok(rows.End(b.ctx, r, effect.Unknown, nil, ""))
	again := b.takeEffect(b.Two, b.startEffect(b.Two, label("a"), long, false), true)
	b.wantError(b.effects(b.Two).Bind(b.ctx, again, []byte("another")), []error{effect.ErrOtherRequest})
	b.ok(b.effects(b.Two).Bind(b.ctx, again, print))
}

func effectEndTwice[Tx any](b *bench[Tx]) {
	r := b.startEffect(b.One, label("a"), long, true)
	b.ok(b.effects(b.One).End(b.ctx, r, effect.Succeeded, []byte(`1`), ""))
	b.ok(b.effects(b.One).End(b.ctx, r, effect.Succeeded, []byte(`1`), ""))
	b.wantError(b.effects(b.One).End(b.ctx, r, effect.Unknown, nil, ""), []error{effect.ErrStale})
}

func effectBytes[Tx any](b *bench[Tx]) {
	keys := []string{"k", "K", "k ", "k\x00", "\xff", strings.Repeat("k", 4096), "ключ"}
	for _, key := range keys {
		for _, name := range []string{"label", "Label", "label2"} {
			id := effect.ID{Consumer: consumer, MessageKey: key, Name: name}
			r := b.startEffect(b.One, id, long, true)
			b.ok(b.effects(b.One).End(b.ctx, r, effect.Unknown, []byte("\"\u2028\""), "bad\x00\xff"))
			now := b.startEffect(b.Two, id, long, false)
			if now.ID != id || string(now.Result) != "\"\u2028\"" || !strings.HasPrefix(now.Error, "bad") {
				b.t.Errorf("%v came back as %+v", id, now)
			}
		}
	}
	id := label("of another")
	id.Consumer = "another"
	b.startEffect(b.One, id, long, true)
	id.Consumer = ""
	if _, _, err := b.effects(b.One).Start(b.ctx, id, "k", long); err == nil {
		b.t.Error("an effect of no consumer was started")
	}
}

func effectsListed[Tx any](b *bench[Tx]) {
	for _, key := range []string{"a", "b", "c"} {
		r := b.startEffect(b.One, label(key), long, true)
		if key == "b" {
			b.ok(b.effects(b.One).End(b.ctx, r, effect.Parked, nil, "ask"))
		}
	}
	desk := b.effectDesk(b.Two)
	keys := func(f effect.Filter) string {
		rows, err := desk.List(b.ctx, f)
		b.ok(err)
		all := ""
		for _, r := range rows {
			all += r.MessageKey
		}
		return all
	}
	rows, err := desk.List(b.ctx, effect.Filter{Consumer: consumer, MessageKey: "c", Name: "label"})
	b.ok(err)
	for f, want := range map[effect.Filter]string{
		{}: "cba", {State: effect.Parked}: "b", {State: effect.Started, Limit: 1}: "c", {Consumer: "another"}: "",
		{MessageKey: "a"}: "a", {Name: "mail"}: "", {Before: rows[0].Number}: "ba", {State: effect.Started, Before: rows[0].Number}: "a",
	} {
		if got := keys(f); got != want {
			b.t.Errorf("%+v lets %q through, want %q", f, got, want)
		}
	}
	if got, err := desk.Get(b.ctx, rows[0].Number); err != nil || got.MessageKey != "c" || time.Since(got.UpdatedAt).Abs() > time.Minute {
		b.t.Errorf("got %+v, %v", got, err)
	}
	_, err = desk.Get(b.ctx, 1_000_000)
	b.wantError(err, []error{effect.ErrNotFound})
}

func effectResolved[Tx any](b *bench[Tx]) {
	desk := b.effectDesk(b.One)
	number := func(key string) int64 {
		return b.startEffect(b.One, label(key), long, false).Number
	}
	live := b.startEffect(b.One, label("live"), long, true)
	if err := desk.Resolve(b.ctx, number("live"), effect.Resolution{By: "ayu", To: effect.Succeeded}); err == nil {
		b.t.Error("an effect that is under way was resolved")
	}
	for key, r := range map[string]effect.Resolution{
		"happened": {To: effect.Succeeded, Result: []byte(`{"no":7}`)}, "no result": {To: effect.Succeeded},
		"again": {To: effect.Failed, Note: "they lost it"}, "given up": {To: effect.Failed, GiveUp: true},
	} {
		row := b.startEffect(b.One, label(key), long, true)
		b.ok(b.effects(b.One).End(b.ctx, row, effect.Parked, nil, "ask"))
		if err := desk.Resolve(b.ctx, number(key), r); err == nil {
			b.t.Error("a decision by nobody was taken")
		}
		r.By = "ayu"
		b.ok(desk.Resolve(b.ctx, number(key), r))
		now := b.startEffect(b.Two, label(key), long, false)
		if now.State != r.To || now.Final != r.GiveUp || now.Token != 2 {
			b.t.Errorf("%s is now %+v", key, now)
		}
		b.takeEffect(b.Two, now, key == "again")
		b.wantError(b.effects(b.One).End(b.ctx, row, effect.Unknown, nil, ""), []error{effect.ErrStale})
	}
	if now := b.startEffect(b.Two, label("happened"), long, false); string(now.Result) != `{"no":7}` {
		b.t.Errorf("its result is %s", now.Result)
	}
	b.ok(b.effects(b.One).End(b.ctx, live, effect.Unknown, nil, ""))
	for _, bad := range []effect.Resolution{
		{By: "ayu", To: effect.Parked}, {By: "ayu", To: effect.Succeeded, Result: []byte(`{`)},
	} {
		if err := desk.Resolve(b.ctx, number("live"), bad); err == nil {
			b.t.Errorf("%+v was taken", bad)
		}
	}
	b.wantError(desk.Resolve(b.ctx, 1_000_000, effect.Resolution{By: "ayu", To: effect.Failed}), []error{effect.ErrNotFound})
	trail, err := b.desk(b.Two).Trail(b.ctx, 0, 100)
	b.ok(err)
	if len(trail) != 4 || trail[0].By != "ayu" || trail[0].Action != "resolve effect" {
		b.t.Errorf("the trail: %+v", trail)
	}
}

func effectCorrected[Tx any](b *bench[Tx]) {
	desk := b.effectDesk(b.One)
	ended := func(key string, to effect.State, result string) int64 {
		row := b.startEffect(b.One, label(key), long, true)
		b.ok(b.effects(b.One).End(b.ctx, row, to, []byte(result), ""))
		return b.startEffect(b.One, label(key), long, false).Number
	}
	wantRow := func(number int64, state effect.State, result, decision string) {
		b.t.Helper()
		row, err := desk.Get(b.ctx, number)
		b.ok(err)
		if row.State != state || string(row.Result) != result || row.Decision() != decision {
			b.t.Errorf("the row is %+v (%s): want %s with %s, %s", row, row.Decision(), state, result, decision)
		}
	}
	said := ended("said", effect.Parked, "")
	wantRow(said, effect.Parked, "", "")
	for _, r := range []effect.Resolution{
		{To: effect.Succeeded, Result: []byte(`"wrong"`)},
		{To: effect.Succeeded, Result: []byte(`{"no":7}`), Note: "its shape"},
		{To: effect.Failed, GiveUp: true},
		{To: effect.Failed},
		{To: effect.Succeeded, Result: []byte(`{"no":8}`)},
	} {
		r.By = "ayu"
		b.ok(desk.Resolve(b.ctx, said, r))
	}
	wantRow(said, effect.Succeeded, `{"no":8}`, "by ayu")
	b.wantState("said", store.Fresh)
	trail, err := b.desk(b.Two).Trail(b.ctx, 0, 100)
	b.ok(err)
	if len(trail) != 5 || !strings.Contains(trail[1].Detail, `instead of succeeded with "wrong", its shape`) {
		b.t.Errorf("the trail: %+v", trail)
	}

	called := ended("called", effect.Succeeded, `1`)
	b.wantError(desk.Resolve(b.ctx, called, effect.Resolution{By: "ayu", To: effect.Failed}), []error{effect.ErrResolved})
	b.wantError(desk.Resolve(b.ctx, called, effect.Resolution{By: "ayu", To: effect.Succeeded}), []error{effect.ErrResolved})
	b.ok(desk.Resolve(b.ctx, called, effect.Resolution{By: "ayu", To: effect.Succeeded, Result: []byte(`{"no":1}`)}))
	wantRow(called, effect.Succeeded, `{"no":1}`, "")
	b.wantError(desk.Resolve(b.ctx, called, effect.Resolution{By: "ayu", To: effect.Failed}), []error{effect.ErrResolved})

	b.commit(b.One, b.begin(b.One, claimOf("said", "called"), store.Fresh, store.Fresh))
	for _, number := range []int64{said, called} {
		b.wantError(desk.Resolve(b.ctx, number, effect.Resolution{By: "ayu", To: effect.Succeeded, Result: []byte(`2`)}), []error{effect.ErrResolved})
	}
	wantRow(said, effect.Succeeded, `{"no":8}`, "by ayu")
	b.wantIdle()
}

func effectWaiting[Tx any](b *bench[Tx]) {
	parked := b.startEffect(b.One, label("a"), long, true)
	b.ok(b.effects(b.One).End(b.ctx, parked, effect.Parked, nil, "ask"))
	l := ordered("a", "1", "e")
	l.Status, l.Reason = deadletter.Waiting, deadletter.Parked
	b.put(b.queue(b.One), l)
	waiting := b.newest(b.queue(b.One))
	if waiting.Status != deadletter.Waiting {
		b.t.Fatalf("the letter is %+v", waiting)
	}
	b.wantBlocked(consumer, "e", true)
	b.take(b.One, long)
	b.ok(b.effectDesk(b.One).Resolve(b.ctx, b.startEffect(b.One, label("a"), long, false).Number, effect.Resolution{By: "ayu", To: effect.Succeeded}))
	one := b.take(b.One, long, "a")[0]
	why := l
	b.ok(b.redrives(b.One).Reopen(b.ctx, one, why)) // parked again
	b.wantStatus(waiting.ID, deadletter.Waiting)
	b.take(b.One, long) // not at once
	b.ok(b.desk(b.One).Discard(b.ctx, waiting.ID, byAyu))
	b.wantBlocked(consumer, "e", false)
}

func effectsAgain[Tx any](b *bench[Tx]) {
	r := b.startEffect(b.One, label("a"), long, true)
	b.put(b.queue(b.One), letterOf("a", "1"))
	id := b.newest(b.queue(b.One)).ID
	again := deadletter.Decision{By: "ayu", Effects: true}
	if err := b.desk(b.One).Redrive(b.ctx, id, again); err == nil {
		b.t.Error("an effect that is under way was to happen again")
	}
	b.ok(b.effects(b.One).Bind(b.ctx, r, []byte("print")))
	b.ok(b.effects(b.One).End(b.ctx, r, effect.Succeeded, []byte(`1`), ""))
	b.ok(b.desk(b.One).Redrive(b.ctx, id, byAyu))
	if now := b.startEffect(b.Two, label("a"), long, false); now.State != effect.Succeeded {
		b.t.Errorf("without --effects it is %+v", now)
	}
	b.ok(b.desk(b.One).Redrive(b.ctx, id, again))
	now := b.startEffect(b.Two, label("a"), long, false)
	if now.State != effect.Failed || now.IdempotencyKey == r.IdempotencyKey || now.Result != nil {
		b.t.Errorf("with --effects it is %+v", now)
	}
	taken := b.takeEffect(b.Two, now, true)
	b.ok(b.effects(b.Two).Bind(b.ctx, taken, []byte("another print")))
}

func effectsWithoutTable[Tx any](b *bench[Tx]) {
	_, _, err := b.effects(b.One).Start(b.ctx, label("a"), "k", long)
	b.wantClass(b.One, err, store.ClassMisconfigured)
	b.wantClass(b.One, b.effects(b.One).Check(b.ctx), store.ClassMisconfigured)
}
