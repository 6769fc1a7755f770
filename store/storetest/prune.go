package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

func pruneTests[Tx any]() []test[Tx] {
	tests := []test[Tx]{
		{name: "keys are kept while somebody has to decide about them", f: prunedUnlessProtected[Tx]},
		{name: "a batch is no larger than it may be, and marks what it removes", f: pruneBatches[Tx]},
		{name: "the mark is that of the youngest key that was removed, per consumer", f: pruneMarks[Tx]},
		{name: "one pruner at a time", f: onePruner[Tx]},
		{name: "each kind of rows goes by its own age", f: pruneOthers[Tx]},
		{name: "a row that somebody has locked is not waited for", f: pruneLocked[Tx], on: databases{Postgres, MySQL}},
		{name: "nothing is pruned within an hour", f: pruneTooSoon[Tx]},
		{name: "without the table of marks there is no mark, and no pruner", f: noPruningTable[Tx]},
	}
	for database, columns := range timeColumns {
		for _, column := range columns {
			tests = append(tests, test[Tx]{
				name: "of an hour's retention 59 minutes stay and 61 go: " + column.definition,
				f:    func(b *bench[Tx]) { prunedByAge(b, column) },
				on:   databases{database},
			})
		}
	}
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for _, first := range []bool{true, false} {
			name := level + ": a claim that waited for a removal sees a mark that moved"
			if first {
				name = level + ": a claim that waited for a removal sees the first mark"
			}
			tests = append(tests, test[Tx]{
				name: name, f: func(b *bench[Tx]) { markAfterWait(b, level, first) }, on: databases{Postgres, MySQL},
			})
		}
	}
	return tests
}

func (b *bench[Tx]) pruner(c Client[Tx]) store.Pruner {
	b.t.Helper()
	s, ok := store.As[interface{ Pruner() store.Pruner }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Pruner", c.Store)
	}
	return s.Pruner()
}

func (b *bench[Tx]) marks(c Client[Tx]) store.Marks[Tx] {
	b.t.Helper()
	s, ok := store.As[interface{ Marks() store.Marks[Tx] }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Marks", c.Store)
	}
	return s.Marks()
}

// prune removes what is older than keep, in batches, and returns how many rows
// went and in how many batches.
func (b *bench[Tx]) prune(c Client[Tx], rows store.Prunable, keep time.Duration, size int) (removed, batches int) {
	b.t.Helper()
	p := b.pruner(c)
	b.ok(p.Check(b.ctx))
	b.ok(p.Lease(b.ctx, "ours", time.Minute))
	expired, err := p.Expired(b.ctx, rows, keep)
	b.ok(err)
	batch := store.PruneBatch{Rows: rows, Keep: keep, Token: "ours", Lease: time.Minute, Size: size}
	for {
		done, err := p.Prune(b.ctx, batch)
		b.ok(err)
		if done.Removed > size {
			b.t.Errorf("a batch of %d removed %d rows", size, done.Removed)
		}
		removed, batches = removed+done.Removed, batches+1
		if !done.More {
			break
		}
		batch.From = done.Next
	}
	b.ok(p.Release(b.ctx, "ours"))
	if int(expired) != removed {
		b.t.Errorf("%d %s were removed, and %d counted before", removed, rows, expired)
	}
	return removed, batches
}

// age makes rows older by minutes.
func (b *bench[Tx]) age(table, column string, minutes int, condition string) {
	b.t.Helper()
	older := map[Database]string{
		Postgres: fmt.Sprintf("%s - interval '%d minutes'", column, minutes),
		MySQL:    fmt.Sprintf("%s - INTERVAL %d MINUTE", column, minutes),
		SQLite:   fmt.Sprintf("strftime('%%Y-%%m-%%d %%H:%%M:%%f', %s, '-%d minutes')", column, minutes),
	}[b.h.Database]
	b.run("UPDATE " + table + " SET " + column + " = " + older + " WHERE " + condition)
}

// processedAgo commits keys that are so many minutes old.
func (b *bench[Tx]) processedAgo(claim store.Claim, minutes int) {
	b.t.Helper()
	b.commit(b.One, b.begin(b.One, claim, make([]store.State, len(claim.Keys))...))
	for _, k := range claim.Keys {
		b.age("processed_messages", "processed_at", minutes,
			"consumer_name = '"+claim.Consumer+"' AND message_key = '"+store.StoredKey(k.Raw)+"'")
	}
}

func prunedByAge[Tx any](b *bench[Tx], column timeColumn) {
	b.run("DROP TABLE processed_messages")
	b.makeTable("consumer_name VARCHAR(100)", "message_key VARCHAR(200)", "processed_at "+column.definition)
	other := claimOf("old", "young")
	other.Consumer = "another"
	for round, zone := range append(b.zones(), b.zones()...) {
		if round == len(b.zones()) {
			b.run("CREATE INDEX by_age ON processed_messages (processed_at)")
		}
		c := b.with(zone)
		b.processedAgo(claimOf("a61", "b61"), 61)
		b.processedAgo(claimOf("a59", "b59"), 59)
		b.processedAgo(claimOf("now"), 0)
		b.processedAgo(other, 61)
		if n, _ := b.prune(c, store.PruneKeys, time.Hour, 2); n != 4 {
			b.t.Errorf("round %d, %v: %d rows went, want 4", round, zone, n)
		}
		if n := b.number("SELECT COUNT(*) FROM processed_messages WHERE message_key IN ('a59', 'b59', 'now')"); n != 3 {
			b.t.Errorf("round %d, %v: %d of the 3 young ones are left", round, zone, n)
		}
		mark, err := b.marks(c).Mark(b.ctx, consumer)
		b.ok(err)
		if age := time.Since(mark); age < 60*time.Minute || age > 63*time.Minute {
			b.t.Errorf("round %d, %v: the mark is %v old", round, zone, age)
		}
		b.run("DELETE FROM processed_messages")
	}
}

func prunedUnlessProtected[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	letter := func(key string) deadletter.Letter {
		return deadletter.Letter{Consumer: consumer, Key: key, Message: broker.Message{ID: key}}
	}
	keys := []string{"free", "open", "held", "waiting", "requested", "discarded", "sent", "unknown", "parked", "running", "succeeded"}
	long := "long" + string(make([]byte, 300))
	b.processedAgo(claimOf(append(keys, long)...), 120)
	for _, key := range []string{"open", "requested", "discarded", "sent", long} {
		b.put(q, letter(key))
	}
	b.ok(q.(deadletter.Holder).Hold(b.ctx, func() deadletter.Letter { l := letter("held"); l.OrderingKey = "o"; return l }()))
	waiting := letter("waiting")
	waiting.Status = deadletter.Waiting
	b.put(q, waiting)
	desk, by := q.(deadletter.Desk), deadletter.Decision{By: "ayu"}
	for _, l := range b.list(q, deadletter.Filter{}) {
		switch l.Key {
		case "requested":
			b.ok(desk.Redrive(b.ctx, l.ID, by))
		case "discarded":
			b.ok(desk.Discard(b.ctx, l.ID, by))
		case "sent":
			b.ok(desk.Sent(b.ctx, l.ID, by))
		}
	}
	// Another consumer's letter says nothing.
	theirs := letter("free")
	theirs.Consumer = "another"
	b.put(q, theirs)
	for key, state := range map[string]effect.State{"unknown": effect.Unknown, "parked": effect.Parked, "succeeded": effect.Succeeded, "running": ""} {
		r := b.startEffect(b.One, label(key), time.Hour, true)
		if state != "" {
			b.ok(b.effects(b.One).End(b.ctx, r, state, nil, ""))
		}
	}
	if n, _ := b.prune(b.Two, store.PruneKeys, time.Hour, 100); n != 3 {
		b.t.Errorf("%d rows went, want 3", n)
	}
	for _, key := range append(keys, long) {
		gone := key == "free" || key == "discarded" || key == "succeeded"
		want := store.Duplicate
		if gone {
			want = store.Fresh
		}
		b.wantState(key, want)
	}
}

func pruneBatches[Tx any](b *bench[Tx]) {
	for _, index := range []bool{true, false} {
		if !index {
			b.run(map[Database]string{MySQL: "DROP INDEX processed_messages_processed_at ON processed_messages"}[b.h.Database])
			if b.h.Database != MySQL {
				b.run("DROP INDEX processed_messages_processed_at")
			}
		}
		for c := range 3 {
			claim := store.Claim{Consumer: fmt.Sprint("consumer-", c)}
			for i := range 25 {
				claim.Keys = append(claim.Keys, store.Key{Raw: fmt.Sprintf("old-%02d", i)})
			}
			b.commit(b.One, b.begin(b.One, claim, make([]store.State, 25)...))
		}
		b.age("processed_messages", "processed_at", 90, "1 = 1")
		b.processedAgo(claimOf("young"), 30)
		removed, batches := b.prune(b.One, store.PruneKeys, time.Hour, 10)
		if removed != 75 || batches < 8 {
			b.t.Errorf("index %v: %d rows went in %d batches", index, removed, batches)
		}
		b.wantRows(1)
		b.run("DELETE FROM processed_messages")
	}
}

func pruneMarks[Tx any](b *bench[Tx]) {
	one, two := claimOf("k"), claimOf("k")
	one.Consumer, two.Consumer = "one", "two"
	b.processedAgo(one, 300)
	b.processedAgo(two, 200)
	b.prune(b.One, store.PruneKeys, time.Hour, 10)
	want := func(consumer string, minutes int) {
		b.t.Helper()
		mark, err := b.marks(b.Two).Mark(b.ctx, consumer)
		b.ok(err)
		if off := time.Since(mark) - time.Duration(minutes)*time.Minute; off < -time.Minute || off > time.Minute {
			b.t.Errorf("the mark of %s is %v, want %d minutes ago", consumer, mark, minutes)
		}
	}
	want("one", 300)
	want("two", 200)
	if mark, err := b.marks(b.Two).Mark(b.ctx, "three"); err != nil || !mark.IsZero() {
		b.t.Errorf("of a consumer without rows the mark is %v, %v", mark, err)
	}
	// It never goes back.
	b.processedAgo(two, 250)
	b.prune(b.One, store.PruneKeys, time.Hour, 10)
	want("two", 200)
	b.processedAgo(two, 100)
	b.prune(b.One, store.PruneKeys, time.Hour, 10)
	want("two", 100)
}

func onePruner[Tx any](b *bench[Tx]) {
	one, two := b.pruner(b.One), b.pruner(b.Two)
	b.processedAgo(claimOf("old"), 90)
	b.ok(one.Lease(b.ctx, "one", time.Minute))
	if err := two.Lease(b.ctx, "two", time.Minute); !errors.Is(err, store.ErrPruning) {
		b.t.Errorf("a second pruner was let in: %v", err)
	}
	batch := store.PruneBatch{Rows: store.PruneKeys, Keep: time.Hour, Token: "two", Lease: time.Minute, Size: 10}
	if _, err := two.Prune(b.ctx, batch); !errors.Is(err, store.ErrPruning) {
		b.t.Errorf("it pruned without the right to: %v", err)
	}
	b.ok(two.Release(b.ctx, "two")) // which is not its to release
	if err := two.Lease(b.ctx, "two", time.Minute); !errors.Is(err, store.ErrPruning) {
		b.t.Errorf("it released another's right: %v", err)
	}
	// The first gives no sign of life; the second takes over.
	b.ok(one.Lease(b.ctx, "one", -time.Minute))
	b.ok(two.Lease(b.ctx, "two", time.Minute))
	batch.Token = "one"
	if _, err := one.Prune(b.ctx, batch); !errors.Is(err, store.ErrPruning) {
		b.t.Errorf("a pruner that lost its right went on: %v", err)
	}
	b.wantRows(1)
	b.ok(two.Release(b.ctx, "two"))
	b.ok(one.Lease(b.ctx, "one", time.Minute))
}

func pruneOthers[Tx any](b *bench[Tx]) {
	q := b.queue(b.One)
	desk := q.(deadletter.Desk)
	for _, key := range []string{"old", "young", "open"} {
		b.put(q, deadletter.Letter{Consumer: consumer, Key: key, Message: broker.Message{ID: key}})
	}
	for _, l := range b.list(q, deadletter.Filter{}) {
		if l.Key != "open" {
			b.ok(desk.Discard(b.ctx, l.ID, deadletter.Decision{By: "ayu"}))
		}
	}
	for key, state := range map[string]effect.State{
		"old": effect.Succeeded, "old-failed": effect.Failed, "young": effect.Succeeded, "old-parked": effect.Parked, "open": effect.Succeeded,
	} {
		b.ok(b.effects(b.One).End(b.ctx, b.startEffect(b.One, label(key), time.Hour, true), state, nil, ""))
	}
	for _, entity := range []string{"old", "young"} {
		tx := b.begin(b.One, claimOf("v-"+entity), store.Fresh)
		b.advance(b.One, tx, entity, 7, false)
		b.commit(b.One, tx)
		_, err := b.starts(b.One).Start(b.ctx, consumer, entity, true)
		b.ok(err)
	}
	b.add(event("old", ""), event("young", ""), event("old-pending", ""), event("old-parked", "k"))
	for id, status := range map[string]string{"old": "published", "young": "published", "old-parked": "parked"} {
		b.run("UPDATE outbox_messages SET status = '" + status + "', published_at = created_at WHERE message_id = '" + id + "'")
	}
	b.age("outbox_messages", "published_at", 90, "message_id <> 'young'")
	for _, who := range []string{"old", "young"} {
		b.ok(b.addStats(b.One, who))
	}
	b.run("UPDATE consumer_stats SET at_minute = at_minute - 62 WHERE consumer_name = 'old'",
		"UPDATE consumer_stats SET at_minute = at_minute - 58 WHERE consumer_name = 'young'")
	b.age("dead_letters", "last_at", 90, "raw_key <> "+b.binary("young"))
	b.age("external_effects", "updated_at", 90, "message_key <> 'young'")
	b.age("entity_versions", "updated_at", 90, "entity = 'old'")
	b.age("message_starts", "started_at", 90, "message_key = 'old'")
	b.age("audit_trail", "at", 90, "message_key = 'old'")
	for rows, want := range map[store.Prunable]int{
		store.PruneDeadLetters: 1, store.PruneEffects: 2, store.PruneVersions: 1, store.PruneStarts: 1, store.PruneAudit: 1,
		store.PruneOutbox: 1, store.PruneStats: 1,
	} {
		if n, _ := b.prune(b.Two, rows, time.Hour, 2); n != want {
			b.t.Errorf("%d %s went, want %d", n, rows, want)
		}
		if n, _ := b.prune(b.Two, rows, time.Hour, 2); n != 0 {
			b.t.Errorf("the second time %d %s went", n, rows)
		}
	}
	for table, want := range map[string]int{"dead_letters": 2, "external_effects": 3, "entity_versions": 1, "message_starts": 1, "audit_trail": 1, "outbox_messages": 3, "consumer_stats": 1} {
		if n := b.number("SELECT COUNT(*) FROM " + table); n != want {
			b.t.Errorf("%d rows of %s are left, want %d", n, table, want)
		}
	}
	if mark, err := b.marks(b.Two).Mark(b.ctx, consumer); err != nil || !mark.IsZero() {
		b.t.Errorf("though no key was removed there is a mark, %v, %v", mark, err)
	}
}

// binary is a literal of bytes.
func (b *bench[Tx]) binary(text string) string {
	if b.h.Database == Postgres {
		return fmt.Sprintf(`'\x%x'::bytea`, text)
	}
	return fmt.Sprintf("x'%x'", text)
}

func pruneLocked[Tx any](b *bench[Tx]) {
	b.processedAgo(claimOf("old"), 90)
	tx, err := b.DB.BeginTx(b.ctx, nil)
	b.ok(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(b.ctx, "UPDATE processed_messages SET processed_at = processed_at")
	b.ok(err)
	_, err = tx.ExecContext(b.ctx, "SELECT message_key FROM processed_messages FOR UPDATE")
	b.ok(err)
	p := b.pruner(b.One)
	b.ok(p.Lease(b.ctx, "ours", time.Minute))
	_, err = p.Prune(b.ctx, store.PruneBatch{Rows: store.PruneKeys, Keep: time.Hour, Token: "ours", Lease: time.Minute, Size: 10})
	if err == nil || p.Classify(err) != store.ClassConflict {
		b.t.Errorf("a pruner that met a lock says %v", err)
	}
	b.ok(tx.Rollback())
	b.ok(p.Release(b.ctx, "ours"))
	if mark, err := b.marks(b.Two).Mark(b.ctx, consumer); err != nil || !mark.IsZero() {
		b.t.Errorf("though nothing was removed there is a mark, %v, %v", mark, err)
	}
	if n, _ := b.prune(b.One, store.PruneKeys, time.Hour, 10); n != 1 {
		b.t.Errorf("afterwards %d rows went", n)
	}
}

func pruneTooSoon[Tx any](b *bench[Tx]) {
	p := b.pruner(b.One)
	b.processedAgo(claimOf("old"), 90)
	b.ok(p.Lease(b.ctx, "ours", time.Minute))
	batch := store.PruneBatch{Rows: store.PruneKeys, Keep: store.MinKeep - 1, Token: "ours", Lease: time.Minute, Size: 10}
	if _, err := p.Prune(b.ctx, batch); err == nil {
		b.t.Error("rows were kept for less than an hour")
	}
	batch.Keep, batch.Rows = time.Hour, "everything"
	if _, err := p.Prune(b.ctx, batch); err == nil {
		b.t.Error("rows of no kind were pruned")
	}
	batch.Rows, batch.Size = store.PruneKeys, 0
	if _, err := p.Prune(b.ctx, batch); err == nil {
		b.t.Error("a batch had no size")
	}
	b.wantRows(1)
}

func noPruningTable[Tx any](b *bench[Tx]) {
	b.run("DROP TABLE pruning_marks")
	tx := b.begin(b.One, claimOf("order-42"), store.Fresh)
	if mark, err := b.marks(b.One).MarkIn(b.ctx, tx, consumer); err != nil || !mark.IsZero() {
		b.t.Errorf("the mark is %v, %v", mark, err)
	}
	b.commit(b.One, tx)
	if mark, err := b.marks(b.Two).Mark(b.ctx, consumer); err != nil || !mark.IsZero() {
		b.t.Errorf("the mark is %v, %v", mark, err)
	}
	b.wantSchemaError("check", b.pruner(b.One).Check(b.ctx))
	// It is made while a consumer runs.
	b.run("CREATE TABLE pruning_marks (consumer_name VARCHAR(100) NOT NULL PRIMARY KEY, pruned_until BIGINT NOT NULL DEFAULT 0,"+
		" lease_token VARCHAR(64), leased_until BIGINT NOT NULL DEFAULT 0)", "INSERT INTO pruning_marks (consumer_name, pruned_until) VALUES ('stock-service', 5000000)")
	tx = b.begin(b.One, claimOf("order-43"), store.Fresh)
	if mark, err := b.marks(b.One).MarkIn(b.ctx, tx, consumer); err != nil || !mark.Equal(time.Unix(5, 0)) {
		b.t.Errorf("the mark is %v, %v", mark, err)
	}
	b.rollback(b.One, tx)
}

// markAfterWait: a claim waits for the pruner's transaction and then finds its
// key fresh. If it does not see the mark, the message is processed twice.
func markAfterWait[Tx any](b *bench[Tx], level string, first bool) {
	c := b.isolated(level)
	b.processedAgo(claimOf("order-42"), 90)
	if !first {
		b.run("INSERT INTO pruning_marks (consumer_name, pruned_until) VALUES ('stock-service', 1000000)")
	}
	if _, err := b.marks(c).Mark(b.ctx, consumer); err != nil { // the table's there: known beforehand
		b.t.Fatal(err)
	}
	pruning, err := b.DB.BeginTx(b.ctx, nil)
	b.ok(err)
	defer func() { _ = pruning.Rollback() }()
	mark := "INSERT INTO pruning_marks (consumer_name, pruned_until) VALUES ('stock-service', 5000000)"
	if !first {
		mark = "UPDATE pruning_marks SET pruned_until = 5000000 WHERE consumer_name = 'stock-service'"
	}
	for _, s := range []string{mark, "DELETE FROM processed_messages WHERE message_key = 'order-42'"} {
		_, err := pruning.ExecContext(b.ctx, s)
		b.ok(err)
	}
	// The key before it makes the claim's snapshot older than the removal.
	o, done := b.beginLater(b.ctx, c, claimOf("order-41", "order-42"))
	b.wantWaiting(1, done)
	b.ok(pruning.Commit())
	b.wait(done)
	for try := 1; ; try++ {
		if o.err == nil {
			if o.states[1] != store.Fresh {
				b.t.Fatalf("the states are %v", o.states)
			}
			at, err := b.marks(c).MarkIn(b.ctx, o.tx, consumer)
			if err == nil {
				if !at.Equal(time.Unix(5, 0)) {
					b.t.Errorf("the mark is %v: the message would be processed twice", at)
				}
				b.ok(c.Store.Rollback(b.ctx, o.tx))
				return
			}
			b.wantClass(c, err, store.ClassConflict)
			b.rollback(c, o.tx)
		} else {
			b.wantClass(c, o.err, store.ClassConflict)
		}
		if try == 10 {
			b.t.Fatalf("it goes on failing: %v", o.err)
		}
		o.tx, o.states, o.err = c.Store.Begin(b.ctx, claimOf("order-41", "order-42"))
	}
}
