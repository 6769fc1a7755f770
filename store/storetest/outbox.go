package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
)

func outboxTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an event is there after the commit, and never after a rollback", f: eventWithItsCommit[Tx]},
		{name: "an event that commits after a higher number is not skipped", f: eventAfterHigher[Tx], on: databases{Postgres, MySQL}},
		{name: "with a lock the numbers of a key follow the commits", f: eventsLocked[Tx], on: databases{Postgres, MySQL}},
		{name: "transactions that lock the same keys in other orders do not deadlock", f: eventsLockedInOrder[Tx]},
		{name: "events come back with every byte", f: eventBytes[Tx]},
		{name: "an event id is there once", f: eventOnce[Tx]},
		{name: "a plain INSERT of any language is an event", f: eventByHand[Tx]},
		{name: "an ordering key is in one lane, and keys spread over lanes", f: eventLanes[Tx]},
		{name: "relays share the lanes, and a dead one's are taken over", f: lanesShared[Tx]},
		{name: "relays that start at once own no lane twice", f: lanesAtOnce[Tx]},
		{name: "a relay that was late changes nothing", f: relayLate[Tx]},
		{name: "keys that wait, are held or are early are left out", f: eventsLeftOut[Tx]},
		{name: "a refusal counts, and parks", f: eventsRefused[Tx]},
		{name: "a commit by the store wakes, a rollback does not", f: eventWakes[Tx]},
		{name: "people list, retry and discard events, and it is audited", f: eventsDecided[Tx]},
		{name: "depth and lag are told", f: eventStats[Tx]},
		{name: "a missing outbox is named", f: outboxWithoutTable[Tx], empty: true},
	}
}

const relay = "relay-one"

func (b *bench[Tx]) outbox(c Client[Tx]) outbox.Adder[Tx] {
	b.t.Helper()
	s, ok := store.As[interface{ Outbox() outbox.Adder[Tx] }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Outbox", c.Store)
	}
	return s.Outbox()
}

func (b *bench[Tx]) outboxDesk() outbox.Desk {
	b.t.Helper()
	d, ok := b.outbox(b.One).(outbox.Desk)
	if !ok {
		b.t.Fatal("nothing can be decided about the events")
	}
	return d
}

func event(id, key string) outbox.Row {
	r := outbox.Row{MessageID: id, Topic: "orders", Body: []byte("body of " + id)}
	if key != "" {
		r.OrderingKey = []byte(key)
	}
	return r
}

// add adds events in a transaction of their own.
func (b *bench[Tx]) add(rows ...outbox.Row) {
	b.t.Helper()
	tx := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, tx, rows, false))
	b.ok(b.One.Commit(b.ctx, tx))
}

func (b *bench[Tx]) userTx(c Client[Tx]) Tx {
	b.t.Helper()
	tx, err := c.Begin(b.ctx)
	b.ok(err)
	b.t.Cleanup(func() { _ = c.Rollback(b.ctx, tx) })
	return tx
}

var allLanes = func() (all []int) {
	for i := range outbox.Lanes {
		all = append(all, i)
	}
	return all
}()

// pending returns the ids of what is to be published.
func (b *bench[Tx]) pending(w outbox.Want) string {
	b.t.Helper()
	if w.Lanes == nil {
		w.Lanes = allLanes
	}
	if w.Limit == 0 {
		w.Limit = 100
	}
	rows, err := b.outbox(b.Two).Pending(b.ctx, w)
	b.ok(err)
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.MessageID)
	}
	return strings.Join(ids, " ")
}

func (b *bench[Tx]) wantPending(want string, w outbox.Want) {
	b.t.Helper()
	if got := b.pending(w); got != want {
		b.t.Errorf("pending are %q, want %q", got, want)
	}
}

// number of an event by its id.
func (b *bench[Tx]) event(id string) outbox.Row {
	b.t.Helper()
	rows, err := b.outboxDesk().List(b.ctx, outbox.Filter{MessageID: id})
	b.ok(err)
	if len(rows) != 1 {
		b.t.Fatalf("%d events have the id %q", len(rows), id)
	}
	return rows[0]
}

func (b *bench[Tx]) tend(c Client[Tx], name string, lease time.Duration, leave []int, wantLanes, wantShare int) []int {
	b.t.Helper()
	lanes, share, err := b.outbox(c).Tend(b.ctx, name, lease, leave)
	b.ok(err)
	if len(lanes) != wantLanes || share != wantShare {
		b.t.Errorf("%s has %d lanes of a share of %d, want %d of %d", name, len(lanes), share, wantLanes, wantShare)
	}
	return lanes
}

func eventWithItsCommit[Tx any](b *bench[Tx]) {
	tx := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, tx, []outbox.Row{event("gone", "k")}, true))
	b.ok(b.One.Rollback(b.ctx, tx))
	tx = b.begin(b.One, claimOf("m"), store.Fresh)
	b.ok(b.outbox(b.One).Add(b.ctx, tx, []outbox.Row{event("a", "k"), event("b", "")}, true))
	b.wantPending("", outbox.Want{})
	b.commit(b.One, tx)
	b.wantPending("a b", outbox.Want{})
}

func eventAfterHigher[Tx any](b *bench[Tx]) {
	late := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, late, []outbox.Row{event("late", "k")}, false))
	gap := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, gap, []outbox.Row{event("gap", "k")}, false))
	b.ok(b.One.Rollback(b.ctx, gap))
	b.add(event("early", "k"))
	b.wantPending("early", outbox.Want{})
	b.tend(b.One, relay, long, nil, outbox.Lanes, outbox.Lanes)
	b.ok(b.outbox(b.One).Done(b.ctx, relay, []int64{b.event("early").ID}, nil))
	b.ok(b.One.Commit(b.ctx, late))
	b.wantPending("late", outbox.Want{})
}

func eventsLocked[Tx any](b *bench[Tx]) {
	first := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, first, []outbox.Row{event("first", "k")}, true))
	done := make(chan error, 1)
	go func() {
		second, err := b.Two.Begin(b.ctx)
		if err == nil {
			if err = b.outbox(b.Two).Add(b.ctx, second, []outbox.Row{event("second", "k")}, true); err == nil {
				err = b.Two.Commit(b.ctx, second)
			}
		}
		done <- err
	}()
	// Another key's is not kept waiting, and comes after the second has asked
	// for its lock, or before: either way the second is not there yet.
	other := b.userTx(b.One)
	b.ok(b.outbox(b.One).Add(b.ctx, other, []outbox.Row{event("other", "another key")}, true))
	b.ok(b.One.Commit(b.ctx, other))
	select {
	case err := <-done:
		b.t.Fatalf("it did not wait for the first: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	b.ok(b.One.Commit(b.ctx, first))
	b.ok(<-done)
	if a, z := b.event("first").ID, b.event("second").ID; a > z {
		b.t.Errorf("the first has the number %d, the second %d", a, z)
	}
}

func eventsLockedInOrder[Tx any](b *bench[Tx]) {
	var running sync.WaitGroup
	for i := range 8 {
		c := []Client[Tx]{b.One, b.Two}[i%2]
		running.Go(func() {
			for n := range 10 {
				rows := []outbox.Row{event(fmt.Sprintf("%d-%d-a", i, n), "a"), event(fmt.Sprintf("%d-%d-b", i, n), "b")}
				if i%2 == 0 {
					slices.Reverse(rows)
				}
				err := b.addLocked(c, rows)
				for b.h.Database == SQLite && c.Store.Classify(err) == store.ClassConflict {
					err = b.addLocked(c, rows)
				}
				if err != nil {
					b.t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
}

func (b *bench[Tx]) addLocked(c Client[Tx], rows []outbox.Row) error {
	tx, err := c.Begin(b.ctx)
	if err != nil {
		return err
	}
	if err := b.outbox(c).Add(b.ctx, tx, rows, true); err != nil {
		_ = c.Rollback(b.ctx, tx)
		return err
	}
	return c.Commit(b.ctx, tx)
}

func eventBytes[Tx any](b *bench[Tx]) {
	headers, err := outbox.MarshalHeaders(broker.Headers{{Name: "a", Value: []byte("\x00\xff")}, {Name: "a", Value: nil}, {Name: "ü", Value: []byte("✓")}})
	b.ok(err)
	long := strings.Repeat("k", 5000)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond).UTC()
	rows := []outbox.Row{
		{MessageID: "nil", Topic: "t"},
		{MessageID: "empty", Topic: "t", OrderingKey: []byte{}, Body: []byte{}},
		{MessageID: "bytes", Topic: "t ✓", OrderingKey: []byte("\x00\xff?$1"), Body: []byte("\x00\xff'?"), Headers: headers, NotBefore: at},
		{MessageID: "long ✓", Topic: strings.Repeat("t", outbox.MaxTopic), OrderingKey: []byte(long), Body: []byte(strings.Repeat("b", 1<<20))},
	}
	b.add(rows...)
	found, err := b.outbox(b.Two).Pending(b.ctx, outbox.Want{Lanes: allLanes, Limit: 10})
	b.ok(err)
	if len(found) != len(rows) {
		b.t.Fatalf("%d came back", len(found))
	}
	for i, want := range rows {
		got, err := b.outboxDesk().Get(b.ctx, found[i].ID)
		b.ok(err)
		if got.Lane != found[i].Lane || got.CreatedAt.IsZero() || time.Since(got.CreatedAt).Abs() > time.Minute || !got.PublishedAt.IsZero() {
			b.t.Errorf("event %q: %+v", want.MessageID, got)
		}
		for _, x := range []outbox.Row{got, found[i]} {
			x.NotBefore = got.NotBefore
			if fmt.Sprint(x.MessageID, x.Topic, x.OrderingKey, x.OrderingKey == nil, string(x.Headers), x.Body, x.Body == nil, x.NotBefore) !=
				fmt.Sprint(want.MessageID, want.Topic, want.OrderingKey, want.OrderingKey == nil, string(want.Headers), want.Body, want.Body == nil, want.NotBefore) {
				b.t.Errorf("event %q came back otherwise", want.MessageID)
			}
		}
	}
}

func eventOnce[Tx any](b *bench[Tx]) {
	b.add(event("a", ""))
	tx := b.userTx(b.One)
	if err := b.outbox(b.One).Add(b.ctx, tx, []outbox.Row{event("a", "")}, false); err == nil {
		b.t.Error("the same id was taken twice")
	}
}

func eventByHand[Tx any](b *bench[Tx]) {
	b.run(`INSERT INTO outbox_messages (message_id, topic, ordering_key, headers, body) VALUES ('0198c0de', 'orders', 'order-42', '{"type": "paid"}', '{}')`)
	rows, err := b.outbox(b.One).Pending(b.ctx, outbox.Want{Lanes: allLanes, Limit: 10})
	b.ok(err)
	if len(rows) != 1 || string(rows[0].OrderingKey) != "order-42" || string(rows[0].Body) != "{}" {
		b.t.Fatalf("it is %+v", rows)
	}
	h, err := outbox.UnmarshalHeaders(rows[0].Headers)
	if err != nil || len(h) != 1 || string(h[0].Value) != "paid" {
		b.t.Errorf("its headers are %v, %v", h, err)
	}
}

func eventLanes[Tx any](b *bench[Tx]) {
	var rows []outbox.Row
	for i := range 300 {
		rows = append(rows, event(fmt.Sprintf("a%d", i), fmt.Sprintf("order-%d", i)), event(fmt.Sprintf("b%d", i), fmt.Sprintf("order-%d", i)), event(fmt.Sprintf("c%d", i), ""))
	}
	b.add(rows...)
	found, err := b.outbox(b.One).Pending(b.ctx, outbox.Want{Lanes: allLanes, Limit: 1000})
	b.ok(err)
	of, keyed, unkeyed := map[string]int{}, map[int]bool{}, map[int]bool{}
	for _, r := range found {
		if r.Lane < 0 || r.Lane >= outbox.Lanes {
			b.t.Fatalf("lane %d", r.Lane)
		}
		if r.OrderingKey == nil {
			unkeyed[r.Lane] = true
			continue
		}
		keyed[r.Lane] = true
		if lane, there := of[string(r.OrderingKey)]; there && lane != r.Lane {
			b.t.Errorf("the key %s is in the lanes %d and %d", r.OrderingKey, lane, r.Lane)
		}
		of[string(r.OrderingKey)] = r.Lane
	}
	if len(found) != 900 || len(keyed) < outbox.Lanes/4 || len(unkeyed) < outbox.Lanes/4 {
		b.t.Errorf("%d events in %d and %d lanes", len(found), len(keyed), len(unkeyed))
	}
	some, err := b.outbox(b.One).Pending(b.ctx, outbox.Want{Lanes: []int{of["order-1"]}, Limit: 1000})
	b.ok(err)
	for _, r := range some {
		if r.Lane != of["order-1"] {
			b.t.Errorf("lane %d was not asked for", r.Lane)
		}
	}
}

func lanesShared[Tx any](b *bench[Tx]) {
	mine := b.tend(b.One, "one", long, nil, 64, 64)
	b.tend(b.Two, "two", long, nil, 0, 32)
	b.tend(b.One, "one", long, nil, 64, 32)
	b.tend(b.One, "one", long, mine[32:], 32, 32)
	theirs := b.tend(b.Two, "two", 0, nil, 32, 32) // a lease that is over at once
	for _, lane := range theirs {
		if slices.Contains(mine[:32], lane) {
			b.t.Errorf("lane %d has two owners", lane)
		}
	}
	b.tend(b.One, "one", long, nil, 64, 64) // two is dead
	b.tend(b.Two, "two", long, nil, 0, 32)
	b.ok(b.outbox(b.One).Leave(b.ctx, "one"))
	b.tend(b.Two, "two", long, nil, 64, 64)
}

func lanesAtOnce[Tx any](b *bench[Tx]) {
	var running sync.WaitGroup
	owners, twice := map[int]string{}, 0
	var mu sync.Mutex
	for i := range 6 {
		c, name := []Client[Tx]{b.One, b.Two}[i%2], fmt.Sprintf("relay-%d", i)
		running.Go(func() {
			var lanes []int
			var err error
			for {
				if lanes, _, err = b.outbox(c).Tend(b.ctx, name, long, nil); c.Store.Classify(err) != store.ClassConflict || err == nil {
					break
				}
			}
			if err != nil {
				b.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, lane := range lanes {
				if owners[lane] != "" {
					twice++
				}
				owners[lane] = name
			}
		})
	}
	running.Wait()
	if twice > 0 {
		b.t.Errorf("%d lanes have two owners", twice)
	}
}

func relayLate[Tx any](b *bench[Tx]) {
	b.add(event("a", "k"), event("b", ""))
	b.tend(b.One, relay, 0, nil, 64, 64)
	b.tend(b.Two, "two", long, nil, 64, 64)
	a, other := b.event("a").ID, b.event("b").ID
	b.ok(b.outbox(b.One).Done(b.ctx, relay, []int64{a}, []outbox.Failure{{ID: other, Error: "no", Refused: true, Park: true}}))
	b.wantPending("a b", outbox.Want{})
	b.ok(b.outbox(b.Two).Done(b.ctx, "two", []int64{a}, nil))
	b.wantPending("b", outbox.Want{})
	if got := b.event("a"); got.Status != outbox.Published || got.PublishedAt.IsZero() || b.event("b").Attempts != 0 {
		b.t.Errorf("the event is %+v", got)
	}
	// What is published stays so.
	b.ok(b.outbox(b.Two).Done(b.ctx, "two", nil, []outbox.Failure{{ID: a, Error: "no", Refused: true, Park: true}}))
	if got := b.event("a"); got.Status != outbox.Published || got.Attempts != 0 {
		b.t.Errorf("the event is %+v", got)
	}
}

func eventsLeftOut[Tx any](b *bench[Tx]) {
	early := event("early", "e")
	early.NotBefore = time.Now().Add(time.Hour)
	b.add(event("a1", "a"), early, event("b1", "b"), event("n1", ""), event("a2", "a"), event("e2", "e"))
	b.wantPending("a1 b1 n1 a2 e2", outbox.Want{})
	b.wantPending("b1 n1 e2", outbox.Want{Except: [][]byte{[]byte("a"), []byte("z")}})
	b.wantPending("a1 b1", outbox.Want{Limit: 2})
	b.tend(b.One, relay, long, nil, 64, 64)
	b.ok(b.outbox(b.One).Done(b.ctx, relay, nil, []outbox.Failure{{ID: b.event("a1").ID, Refused: true, Park: true, Error: "no"}}))
	b.wantPending("b1 n1 a2 e2", outbox.Want{})
	b.wantPending("b1 n1 e2", outbox.Want{HoldKeys: true})
	b.ok(b.outboxDesk().Discard(b.ctx, b.event("a1").ID, outbox.Decision{By: "Ayu"}))
	b.wantPending("b1 n1 a2 e2", outbox.Want{HoldKeys: true})
	b.run("UPDATE outbox_messages SET not_before = 1 WHERE message_id = 'early'")
	b.wantPending("early b1 n1 a2 e2", outbox.Want{})
}

func eventsRefused[Tx any](b *bench[Tx]) {
	b.add(event("k", "k"), event("n", ""))
	b.tend(b.One, relay, long, nil, 64, 64)
	done := func(f ...outbox.Failure) { b.ok(b.outbox(b.One).Done(b.ctx, relay, nil, f)) }
	keyed, single := b.event("k").ID, b.event("n").ID
	done(outbox.Failure{ID: keyed, Error: "first\x00\xff", Refused: true, Delay: time.Hour}, outbox.Failure{ID: single, Error: "away", Delay: time.Hour})
	b.wantPending("k", outbox.Want{}) // the Relay has it wait
	if got := b.event("k"); got.Attempts != 1 || got.Status != outbox.Pending || !strings.HasPrefix(got.Error, "first") {
		b.t.Errorf("refused: %+v", got)
	}
	if got := b.event("n"); got.Attempts != 0 || got.Error != "away" || time.Until(got.NotBefore) < 50*time.Minute {
		b.t.Errorf("not confirmed: %+v", got)
	}
	done(outbox.Failure{ID: keyed, Error: "second", Refused: true, Park: true})
	if got := b.event("k"); got.Attempts != 2 || got.Status != outbox.Parked || got.Error != "second" {
		b.t.Errorf("parked: %+v", got)
	}
}

func eventWakes[Tx any](b *bench[Tx]) {
	woken := 0
	wake := func() { woken++ }
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	if !b.outbox(b.One).OnCommit(tx, wake) {
		b.t.Error("a transaction of the store's is not known")
	}
	b.rollback(b.One, tx)
	tx = b.begin(b.One, claimOf("a"), store.Fresh)
	b.outbox(b.One).OnCommit(tx, wake)
	if woken != 0 {
		b.t.Errorf("woken %d times before the commit", woken)
	}
	b.commit(b.One, tx)
	if woken != 1 {
		b.t.Errorf("woken %d times", woken)
	}
	if b.outbox(b.One).OnCommit(b.userTx(b.One), wake) {
		b.t.Error("the commit of a transaction of the user's is promised")
	}
}

func eventsDecided[Tx any](b *bench[Tx]) {
	b.add(event("a", "k"), event("b", "k"), event("c", ""))
	b.tend(b.One, relay, long, nil, 64, 64)
	desk, by := b.outboxDesk(), outbox.Decision{By: "Ayu", Note: "the topic is there now"}
	a, other, c := b.event("a").ID, b.event("b").ID, b.event("c").ID
	b.ok(b.outbox(b.One).Done(b.ctx, relay, []int64{c}, []outbox.Failure{{ID: a, Refused: true, Park: true, Error: "no"}}))
	for _, f := range []struct {
		filter outbox.Filter
		want   int
	}{
		{outbox.Filter{}, 3},
		{outbox.Filter{Status: outbox.Parked}, 1},
		{outbox.Filter{OrderingKey: []byte("k")}, 2},
		{outbox.Filter{Topic: "none"}, 0},
		{outbox.Filter{Before: other}, 1},
		{outbox.Filter{Limit: 2}, 2},
	} {
		rows, err := desk.List(b.ctx, f.filter)
		b.ok(err)
		if len(rows) != f.want {
			b.t.Errorf("%+v lets %d through, want %d", f.filter, len(rows), f.want)
		}
	}
	if err := desk.Retry(b.ctx, a, outbox.Decision{}); err == nil {
		b.t.Error("nobody decided")
	}
	b.wantError(desk.Retry(b.ctx, other, by), []error{outbox.ErrNotParked})
	b.wantError(desk.Retry(b.ctx, 999, by), []error{outbox.ErrNotFound})
	b.ok(desk.Retry(b.ctx, a, by))
	if got := b.event("a"); got.Status != outbox.Pending || got.Attempts != 0 {
		b.t.Errorf("retried: %+v", got)
	}
	b.ok(desk.Discard(b.ctx, other, by))
	b.wantError(desk.Discard(b.ctx, other, by), []error{outbox.ErrNotParked})
	b.wantError(desk.Discard(b.ctx, c, by), []error{outbox.ErrNotParked})
	b.wantPending("a", outbox.Want{})
	if n := b.number("SELECT COUNT(*) FROM audit_trail WHERE actor = 'Ayu' AND detail = 'the topic is there now' AND action IN ('outbox retry', 'outbox discard')"); n != 2 {
		b.t.Errorf("%d decisions are audited", n)
	}
}

func eventStats[Tx any](b *bench[Tx]) {
	stats := func() outbox.Stats {
		s, err := b.outbox(b.Two).Stats(b.ctx)
		b.ok(err)
		return s
	}
	if got := stats(); got != (outbox.Stats{}) {
		b.t.Errorf("an empty outbox: %+v", got)
	}
	b.add(event("a", ""), event("b", ""), event("c", ""))
	b.tend(b.One, relay, long, nil, 64, 64)
	b.ok(b.outbox(b.One).Done(b.ctx, relay, nil, []outbox.Failure{{ID: b.event("a").ID, Refused: true, Park: true}}))
	b.run("UPDATE outbox_messages SET created_at = " + map[Database]string{
		Postgres: "created_at - interval '1 hour'", MySQL: "created_at - INTERVAL 1 HOUR", SQLite: "datetime(created_at, '-1 hour')",
	}[b.h.Database] + " WHERE message_id = 'b'")
	if got := stats(); got.Pending != 2 || got.Parked != 1 || got.Lag < 59*time.Minute || got.Lag > 62*time.Minute {
		b.t.Errorf("the stats are %+v", got)
	}
}

func outboxWithoutTable[Tx any](b *bench[Tx]) {
	b.wantClass(b.One, b.outbox(b.One).Check(b.ctx), store.ClassMisconfigured)
	tx := b.userTx(b.One)
	if b.h.Database != SQLite { // which says "something is wrong" and no more
		b.wantClass(b.One, b.outbox(b.One).Add(b.ctx, tx, []outbox.Row{event("a", "")}, false), store.ClassMisconfigured)
	}
}
