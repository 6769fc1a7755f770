package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

func redriveTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "a requested letter is taken by one instance at a time", f: takenOnce[Tx]},
		{name: "instances that take at once share the letters", f: takenAtOnce[Tx]},
		{name: "a lease that is over is taken over, and its late owner changes nothing", f: leaseOver[Tx]},
		{name: "a lease is extended and given back", f: leaseExtended[Tx]},
		{name: "a letter is resolved in the transaction of its claim, and not without it", f: resolvedIn[Tx]},
		{name: "a letter that could not be processed is open again", f: reopened[Tx]},
		{name: "held messages are taken one after another, when nothing is before them", f: heldTaken[Tx]},
		{name: "letters that are requested keep the order of their ordering key", f: requestedOrder[Tx]},
		{name: "a copy does not take a request back", f: requestedCopy[Tx]},
		{name: "how a redrive was decided comes back with every byte", f: decisions[Tx]},
		{name: "decisions that make no sense are refused", f: refusedDecisions[Tx]},
		{name: "a discarded letter has its key recorded and is resolved for good", f: discarded[Tx]},
		{name: "a discard waits for a redrive that is under way, and finds it", f: discardBehindRedrive[Tx]},
		{name: "a redrive waits for a discard that is under way, and finds it", f: redriveBehindDiscard[Tx]},
		{name: "each decision is in the audit trail", f: audited[Tx]},
		{name: "letters are counted by reason", f: counted[Tx]},
		{name: "a forced claim replaces the key's row when it commits, and not before", f: forced[Tx]},
		{name: "forced claims at once both come to run", f: forcedAtOnce[Tx]},
		{name: "a forced claim that fails is not taken for one that survived", f: forcedFails[Tx]},
	}
}

func (b *bench[Tx]) redrives(c Client[Tx]) deadletter.Source[Tx] {
	b.t.Helper()
	s, ok := store.As[interface{ Redrives() deadletter.Source[Tx] }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Redrives", c.Store)
	}
	return s.Redrives()
}

func (b *bench[Tx]) desk(c Client[Tx]) deadletter.Desk {
	b.t.Helper()
	d, ok := b.queue(c).(deadletter.Desk)
	if !ok {
		b.t.Fatalf("nothing can be decided about the dead letters of a %T", c.Store)
	}
	return d
}

var byAyu = deadletter.Decision{By: "ayu"}

// requested writes a letter and requests its redrive.
func (b *bench[Tx]) requested(l deadletter.Letter, d deadletter.Decision) int64 {
	b.t.Helper()
	b.put(b.queue(b.One), l)
	id := b.newest(b.queue(b.One)).ID
	b.ok(b.desk(b.One).Redrive(b.ctx, id, d))
	return id
}

// take takes what is due, and wants these keys.
func (b *bench[Tx]) take(c Client[Tx], lease time.Duration, want ...string) []deadletter.Redrive {
	b.t.Helper()
	taken, err := b.redrives(c).Take(b.ctx, consumer, 100, lease)
	b.ok(err)
	var keys []string
	for _, r := range taken {
		keys = append(keys, r.Letter.Key)
	}
	if !slices.Equal(keys, want) {
		b.t.Fatalf("taken: %q, want %q", keys, want)
	}
	return taken
}

func (b *bench[Tx]) wantStatus(id int64, want deadletter.Status) {
	b.t.Helper()
	l, err := b.queue(b.Two).Get(b.ctx, id)
	b.ok(err)
	if l.Status != want {
		b.t.Errorf("letter %d (%s) is %s, want %s", id, l.Key, l.Status, want)
	}
}

const long = time.Hour

func takenOnce[Tx any](b *bench[Tx]) {
	b.put(b.queue(b.One), letterOf("open", "1"))
	b.requested(letterOf("a", "1"), byAyu)
	b.requested(letterOf("b", "1"), byAyu)
	other := letterOf("other", "1")
	other.Consumer = "another"
	b.requested(other, byAyu)
	first := b.take(b.One, long, "a", "b")
	if first[0].Takes != 1 || first[0].Force || first[0].Key != "" || first[0].Letter.Status != deadletter.Requested {
		b.t.Errorf("taken: %+v", first[0])
	}
	b.take(b.Two, long)
	if most, err := b.redrives(b.Two).Take(b.ctx, "another", 0, long); err != nil || len(most) > 0 {
		b.t.Errorf("none was asked for, and there came %d, %v", len(most), err)
	}
}

func takenAtOnce[Tx any](b *bench[Tx]) {
	var want []string
	for _, key := range strings.Split("abcdefghijklmnopqrst", "") {
		b.requested(letterOf(key, "1"), byAyu)
		want = append(want, key)
	}
	var mu sync.Mutex
	var got []string
	var running sync.WaitGroup
	for i := range 6 {
		c := []Client[Tx]{b.One, b.Two}[i%2]
		running.Go(func() {
			for b.ctx.Err() == nil {
				taken, err := b.redrives(c).Take(b.ctx, consumer, 3, long)
				if c.Store.Classify(err) == store.ClassConflict {
					continue
				}
				mu.Lock()
				if err != nil {
					b.t.Error(err)
				}
				for _, r := range taken {
					got = append(got, r.Letter.Key)
				}
				n := len(got)
				mu.Unlock()
				if err != nil || n >= len(want) {
					return
				}
			}
		})
	}
	running.Wait()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Errorf("taken: %q, want each once", got)
	}
}

func leaseOver[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), byAyu)
	late := b.take(b.One, 0, "a")[0]
	var again []deadletter.Redrive
	if !b.eventually(func() bool {
		var err error
		again, err = b.redrives(b.Two).Take(b.ctx, consumer, 10, long)
		b.ok(err)
		return len(again) > 0
	}) {
		b.t.Fatal("a letter whose lease is over is not taken again")
	}
	if again[0].Takes != 2 || again[0].Token == late.Token {
		b.t.Errorf("taken over: %+v", again[0])
	}
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	b.wantError(b.redrives(b.One).ResolveIn(b.ctx, tx, late, deadletter.Processed), []error{deadletter.ErrNotOurs})
	b.rollback(b.One, tx)
	b.wantError(b.redrives(b.One).Resolve(b.ctx, late, deadletter.Duplicate), []error{deadletter.ErrNotOurs})
	b.wantError(b.redrives(b.One).Reopen(b.ctx, late, letterOf("a", "1")), []error{deadletter.ErrNotOurs})
	b.ok(b.redrives(b.One).Release(b.ctx, []deadletter.Redrive{late}))
	kept, err := b.redrives(b.One).Extend(b.ctx, []deadletter.Redrive{late}, long)
	b.ok(err)
	if len(kept) > 0 {
		b.t.Error("the late owner extended the lease of another")
	}
	b.wantStatus(id, deadletter.Requested)
	b.take(b.One, long)
}

func leaseExtended[Tx any](b *bench[Tx]) {
	b.requested(letterOf("a", "1"), byAyu)
	one := b.take(b.One, 0, "a")
	kept, err := b.redrives(b.One).Extend(b.ctx, one, long)
	b.ok(err)
	if !slices.Equal(kept, []int64{one[0].Letter.ID}) {
		b.t.Fatalf("extended: %v", kept)
	}
	b.take(b.Two, long)
	b.ok(b.redrives(b.One).Release(b.ctx, one))
	if again := b.take(b.Two, long, "a"); again[0].Takes != 1 {
		b.t.Errorf("a take that came to nothing counts: %d", again[0].Takes)
	}
}

func resolvedIn[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), byAyu)
	one := b.take(b.One, long, "a")[0]
	for _, commit := range []bool{false, true} {
		tx := b.begin(b.One, claimOf("a"), store.Fresh)
		b.ok(b.redrives(b.One).ResolveIn(b.ctx, tx, one, deadletter.Processed))
		b.exec(tx, sell(coffee))
		if !commit {
			b.rollback(b.One, tx)
			b.wantStatus(id, deadletter.Requested)
			continue
		}
		b.commit(b.One, tx)
		b.wantStatus(id, deadletter.Processed)
	}
	b.wantSold(coffee, 1)
	b.take(b.Two, long)
	b.wantError(b.desk(b.Two).Redrive(b.ctx, id, byAyu), []error{deadletter.ErrResolved})
	// The same message may become a dead letter once more.
	b.put(b.queue(b.One), letterOf("a", "1"))
	if again := b.newest(b.queue(b.One)); again.ID == id || again.Status != deadletter.Open || again.Copies != 1 {
		b.t.Errorf("the new letter is %+v", again)
	}
}

func reopened[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), deadletter.Decision{By: "ayu", Force: true, Key: "b"})
	one := b.take(b.One, long, "a")[0]
	why := letterOf("a", "1")
	why.Reason, why.Error, why.Attempts = deadletter.Crashed, "died\x00 again", 3
	b.ok(b.redrives(b.One).Reopen(b.ctx, one, why))
	got := b.newest(b.queue(b.Two))
	if got.ID != id || got.Status != deadletter.Open || got.Reason != deadletter.Crashed || got.Attempts != 3 || !strings.HasPrefix(got.Error, "died") {
		b.t.Errorf("the letter is %+v", got)
	}
	b.take(b.Two, long)
	b.ok(b.desk(b.Two).Redrive(b.ctx, id, byAyu))
	if again := b.take(b.Two, long, "a")[0]; again.Force || again.Key != "" || again.Takes != 1 {
		b.t.Errorf("an old decision came back: %+v", again)
	}
}

// process resolves what was taken.
func (b *bench[Tx]) resolve(r deadletter.Redrive) {
	b.t.Helper()
	tx := b.begin(b.One, claimOf(r.Letter.Key), store.Fresh)
	b.ok(b.redrives(b.One).ResolveIn(b.ctx, tx, r, deadletter.Processed))
	b.commit(b.One, tx)
}

func heldTaken[Tx any](b *bench[Tx]) {
	h := b.holder(b.One)
	b.put(b.queue(b.One), ordered("e1", "1", "e"))
	open := b.newest(b.queue(b.One))
	for _, key := range []string{"e2", "e3"} {
		b.ok(h.Hold(b.ctx, ordered(key, "1", "e")))
	}
	b.ok(h.Hold(b.ctx, ordered("f1", "1", "f"))) // what was before it is resolved
	b.ok(h.Hold(b.ctx, ordered("f2", "1", "f")))
	f1 := b.take(b.One, long, "f1")
	b.take(b.Two, long)
	b.resolve(f1[0])
	f2 := b.take(b.Two, long, "f2")
	b.ok(b.redrives(b.Two).Release(b.ctx, f2))
	b.ok(b.desk(b.Two).Redrive(b.ctx, open.ID, byAyu))
	taken := b.take(b.One, long, "e1", "f2")
	b.wantBlocked(consumer, "e", true)
	b.take(b.Two, long)
	b.resolve(taken[0])
	e2 := b.take(b.Two, long, "e2")
	b.take(b.One, long)
	b.wantBlocked(consumer, "e", true)
	b.ok(b.redrives(b.Two).Resolve(b.ctx, e2[0], deadletter.Duplicate))
	e3 := b.take(b.Two, long, "e3")
	b.resolve(e3[0])
	b.wantBlocked(consumer, "e", false)
	b.take(b.Two, long)
}

func requestedOrder[Tx any](b *bench[Tx]) {
	for _, l := range []deadletter.Letter{ordered("e1", "1", "e"), ordered("e2", "1", "e"), ordered("n1", "1", ""), ordered("n2", "1", "")} {
		b.requested(l, byAyu)
	}
	taken := b.take(b.One, long, "e1", "n1", "n2")
	b.ok(b.redrives(b.One).Reopen(b.ctx, taken[0], taken[0].Letter))
	// That e1 is open again is no reason to wait: nobody asked for it.
	b.take(b.One, long, "e2")
}

func requestedCopy[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), byAyu)
	b.put(b.queue(b.Two), letterOf("a", "1"))
	if got := b.newest(b.queue(b.One)); got.ID != id || got.Copies != 2 || got.Status != deadletter.Requested {
		b.t.Errorf("the letter is %+v", got)
	}
	b.take(b.One, long, "a")
}

func decisions[Tx any](b *bench[Tx]) {
	b.requested(letterOf("a", "1"), deadletter.Decision{By: "ayu", Force: true, Effects: true, Key: "n\x00\xff" + strings.Repeat("k", 4000)})
	got := b.take(b.Two, long, "a")[0]
	if !got.Force || got.Key != "n\x00\xff"+strings.Repeat("k", 4000) || string(got.Letter.Message.Body) != "1" {
		b.t.Errorf("taken: %+v", got)
	}
}

func refusedDecisions[Tx any](b *bench[Tx]) {
	desk := b.desk(b.One)
	conflict, survived, held := letterOf("conflict", "1"), letterOf("survived", "1"), ordered("held", "1", "e")
	conflict.Reason, survived.Reason = deadletter.Conflict, deadletter.Survived
	b.put(b.queue(b.One), conflict)
	b.put(b.queue(b.One), survived)
	old := letterOf("too old", "1")
	old.Reason = deadletter.TooOld
	b.put(b.queue(b.One), old)
	b.ok(b.holder(b.One).Hold(b.ctx, held))
	for _, l := range b.list(b.queue(b.One), deadletter.Filter{}) {
		if err := desk.Redrive(b.ctx, l.ID, byAyu); err == nil {
			b.t.Errorf("a redrive of %s was taken", l.Key)
		}
		if err := desk.Redrive(b.ctx, l.ID, deadletter.Decision{Force: true}); err == nil {
			b.t.Errorf("a decision about %s by nobody was taken", l.Key)
		}
	}
	b.wantError(desk.Redrive(b.ctx, 1_000_000, byAyu), []error{deadletter.ErrNotFound})
	b.wantError(desk.Discard(b.ctx, 1_000_000, byAyu), []error{deadletter.ErrNotFound})
	id := b.requested(letterOf("taken", "1"), byAyu)
	taken := b.take(b.One, long, "held", "taken")
	if err := desk.Redrive(b.ctx, id, deadletter.Decision{By: "ayu", Force: true}); err == nil {
		b.t.Error("a decision about a letter that is being processed was changed")
	}
	b.ok(b.redrives(b.One).Release(b.ctx, taken))
	b.ok(desk.Redrive(b.ctx, id, deadletter.Decision{By: "ayu", Force: true}))
	if again := b.take(b.Two, long, "held", "taken")[1]; !again.Force {
		b.t.Errorf("the later decision does not count: %+v", again)
	}
}

func discarded[Tx any](b *bench[Tx]) {
	b.put(b.queue(b.One), letterOf("a", "1"))
	id := b.newest(b.queue(b.One)).ID
	b.ok(b.desk(b.One).Discard(b.ctx, id, byAyu))
	b.wantStatus(id, deadletter.Discarded)
	b.wantState("a", store.Duplicate)
	b.wantError(b.desk(b.One).Discard(b.ctx, id, byAyu), []error{deadletter.ErrResolved})
	b.wantError(b.desk(b.One).Sent(b.ctx, id, byAyu), []error{deadletter.ErrResolved})
	b.take(b.One, long)

	noKey, conflict := letterOf("", "1"), letterOf("c", "1")
	conflict.Reason = deadletter.Conflict
	for _, l := range []deadletter.Letter{noKey, conflict} {
		b.put(b.queue(b.One), l)
		b.ok(b.desk(b.One).Discard(b.ctx, b.newest(b.queue(b.One)).ID, byAyu))
	}
	b.put(b.queue(b.One), letterOf("sent", "1"))
	sent := b.newest(b.queue(b.One)).ID
	b.ok(b.desk(b.One).Sent(b.ctx, sent, byAyu))
	b.wantStatus(sent, deadletter.Sent)
	b.wantError(b.desk(b.One).Sent(b.ctx, sent, byAyu), []error{deadletter.ErrResolved})
	b.ok(b.desk(b.One).Sent(b.ctx, sent, deadletter.Decision{By: "ayu", Note: "it was the wrong broker", Force: true}))
	b.wantStatus(sent, deadletter.Sent)
	b.wantError(b.desk(b.One).Sent(b.ctx, id, deadletter.Decision{By: "ayu", Force: true}), []error{deadletter.ErrResolved}) // discarded
	trail, err := b.desk(b.Two).Trail(b.ctx, sent, 0)
	b.ok(err)
	if len(trail) != 2 || trail[1].Action != "send" || trail[1].Detail != "force, it was the wrong broker" {
		b.t.Errorf("the trail of what was sent twice is %+v", trail)
	}
	b.wantRows(1)
}

func discardBehindRedrive[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), byAyu)
	one := b.take(b.One, long, "a")[0]
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	b.ok(b.redrives(b.One).ResolveIn(b.ctx, tx, one, deadletter.Processed))
	var err error
	done := b.later(func() { err = b.desk(b.Two).Discard(b.ctx, id, byAyu) })
	b.wantWaiting(1, done)
	b.commit(b.One, tx)
	b.wait(done)
	b.wantError(err, []error{deadletter.ErrResolved})
	b.wantStatus(id, deadletter.Processed)
	if trail, err := b.desk(b.Two).Trail(b.ctx, id, 0); err != nil || len(trail) != 1 {
		b.t.Errorf("the trail has %v, %v: want the redrive alone", trail, err)
	}
}

// later runs f in the background.
func (b *bench[Tx]) later(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	b.t.Cleanup(func() {
		b.cancel()
		<-done
	})
	return done
}

func redriveBehindDiscard[Tx any](b *bench[Tx]) {
	id := b.requested(letterOf("a", "1"), byAyu)
	one := b.take(b.One, long, "a")[0]
	// What a discard does first.
	rival, err := b.Two.Begin(b.ctx)
	b.ok(err)
	if _, err := b.Two.Store.Claim(b.ctx, rival, claimOf("a")); err != nil {
		b.t.Fatal(err)
	}
	claim, done := b.beginLater(b.ctx, b.One, claimOf("a"))
	b.wantWaiting(1, done)
	b.ok(b.Two.Commit(b.ctx, rival))
	b.wait(done)
	b.ok(claim.err)
	if claim.states[0] != store.Duplicate {
		b.t.Errorf("behind a discard the key is %v", claim.states)
	}
	b.rollback(b.One, claim.tx)
	b.ok(b.desk(b.Two).Discard(b.ctx, id, byAyu))
	b.wantError(b.redrives(b.One).Resolve(b.ctx, one, deadletter.Duplicate), []error{deadletter.ErrNotOurs})
	b.wantStatus(id, deadletter.Discarded)
}

func audited[Tx any](b *bench[Tx]) {
	b.put(b.queue(b.One), letterOf("a\x00\xff", "1"))
	id := b.newest(b.queue(b.One)).ID
	desk := b.desk(b.One)
	b.ok(desk.Redrive(b.ctx, id, deadletter.Decision{By: "ayu\x00\xff", Note: "try 'again'", Force: true, Key: "n"}))
	b.ok(desk.Discard(b.ctx, id, deadletter.Decision{By: "budi", Note: "a test\xfe"}))
	trail, err := b.desk(b.Two).Trail(b.ctx, id, 10)
	b.ok(err)
	if len(trail) != 2 {
		b.t.Fatalf("the trail has %d entries: %+v", len(trail), trail)
	}
	first, second := trail[0], trail[1]
	if !strings.HasPrefix(first.By, "ayu") || first.Action != "redrive" || first.Key != "a\x00\xff" || first.Consumer != consumer ||
		first.Letter != id || !strings.Contains(first.Detail, "force") || !strings.Contains(first.Detail, "try 'again'") {
		b.t.Errorf("the first entry is %+v", first)
	}
	if second.By != "budi" || second.Action != "discard" || time.Since(second.At).Abs() > time.Minute {
		b.t.Errorf("the second entry is %+v", second)
	}
	all, err := desk.Trail(b.ctx, 0, 1)
	b.ok(err)
	if len(all) != 1 || all[0].Action != "discard" {
		b.t.Errorf("the newest entry is %+v", all)
	}
}

func counted[Tx any](b *bench[Tx]) {
	for i, reason := range []deadletter.Reason{deadletter.Exhausted, deadletter.Exhausted, deadletter.Crashed} {
		l := letterOf("k", string(rune('a'+i)))
		l.Reason = reason
		b.put(b.queue(b.One), l)
	}
	b.ok(b.desk(b.One).Discard(b.ctx, b.list(b.queue(b.One), deadletter.Filter{})[2].ID, byAyu))
	counts, err := b.desk(b.Two).Count(b.ctx, deadletter.Filter{Consumer: consumer, Unresolved: true, Topic: "orders", Limit: 1})
	b.ok(err)
	if len(counts) != 2 || counts[deadletter.Exhausted] != 1 || counts[deadletter.Crashed] != 1 {
		b.t.Errorf("counted: %v", counts)
	}
	if n := len(b.list(b.queue(b.Two), deadletter.Filter{Unresolved: true})); n != 2 {
		b.t.Errorf("%d unresolved letters, want 2", n)
	}
	if counts, err = b.desk(b.Two).Count(b.ctx, deadletter.Filter{Topic: "elsewhere"}); err != nil || len(counts) != 0 {
		b.t.Errorf("counted elsewhere: %v, %v", counts, err)
	}
}

func force(keys ...string) store.Claim {
	c := claimOf(keys...)
	c.Force = true
	return c
}

func forced[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, claimOf("a"), store.Fresh))
	tx := b.begin(b.One, force("a", "b"), store.Fresh, store.Fresh)
	b.exec(tx, sell(coffee))
	b.rollback(b.One, tx)
	b.wantState("a", store.Duplicate)
	b.wantState("b", store.Fresh)
	tx = b.begin(b.One, force("a", "b"), store.Fresh, store.Fresh)
	b.exec(tx, sell(coffee))
	if seen, err := b.Two.Store.Seen(b.ctx, claimOf("a")); b.h.Database != SQLite && (err != nil || seen[0] != store.Duplicate) {
		b.t.Errorf("before the commit others see %v, %v", seen, err)
	}
	b.commit(b.One, tx)
	b.wantState("a", store.Duplicate)
	b.wantSold(coffee, 1)
	b.wantRows(2)
}

func forcedAtOnce[Tx any](b *bench[Tx]) {
	var running sync.WaitGroup
	for _, c := range []Client[Tx]{b.One, b.Two} {
		running.Go(func() {
			if state, err := b.process(c, force("a"), b.sellOne); err != nil || state != store.Fresh {
				b.t.Errorf("forced: %v, %v", state, err)
			}
		})
	}
	running.Wait()
	b.wantSold(coffee, 2)
	b.wantRows(1)
}

var errWork = errors.New("it does not work")

func forcedFails[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, claimOf("a"), store.Fresh))
	_, err := b.process(b.One, force("a"), func(tx Tx) error { return errors.Join(b.sellOne(tx), errWork) })
	b.wantError(err, []error{errWork}, store.ErrKeySurvived, store.ErrTransactionLost)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	_, _, err = b.One.Store.Begin(ctx, force("a"))
	b.wantError(err, []error{context.Canceled})
	b.wantState("a", store.Duplicate)
	b.wantSold(coffee, 0)
	b.wantIdle()
}
