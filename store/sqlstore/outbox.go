package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
)

// Outbox returns the events that are to be published, in the table
// outbox_messages, which sekali migrate makes.
func (s *Store) Outbox() outbox.Adder[*sql.Tx] { return events{letters{s}} }

// events is the table outbox_messages, the same code for every database.
type events struct{ letters }

var _ outbox.Desk = events{}

// InsertEvents returns the statement that inserts events, which a store with
// another client library of the same database uses too.
func (t Texts) InsertEvents(rows []outbox.Row) (text string, args []any) {
	q := query{texts: t}
	q.add("INSERT INTO " + t.OutboxMessages + " (message_id, topic, ordering_key, headers, body, not_before) VALUES ")
	for i, r := range rows {
		if i > 0 {
			q.add(", ")
		}
		notBefore := int64(0)
		if !r.NotBefore.IsZero() {
			notBefore = r.NotBefore.UnixMilli()
		}
		var headers any // as text
		if r.Headers != nil {
			headers = string(r.Headers)
		}
		q.add("(?, ?, ?, ?, ?, ?)", r.MessageID, r.Topic, orNull(r.OrderingKey), headers, orNull(r.Body), notBefore)
	}
	return q.sql.String(), q.args
}

// orNull returns NULL for nil: a nil []byte is not that to every driver.
func orNull(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// EventsAtOnce is how many events go into one statement.
const EventsAtOnce = 1000

// OrderingKeys returns the ordering keys of events, each once, in an order that
// is the same in every process: so those who lock them do not deadlock.
func OrderingKeys(rows []outbox.Row) (keys []string) {
	for _, r := range rows {
		if r.OrderingKey != nil {
			keys = append(keys, string(r.OrderingKey))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Add implements outbox.Adder.
func (e events) Add(ctx context.Context, tx *sql.Tx, rows []outbox.Row, lock bool) error {
	const doing = "add to the outbox"
	if e.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, e.s.invalid)
	}
	if lock && e.s.texts.OutboxLock != "" {
		for _, key := range OrderingKeys(rows) {
			if _, err := tx.ExecContext(ctx, e.s.texts.OutboxLock, []byte(key)); err != nil {
				return fmt.Errorf("lock an ordering key of the outbox: %w", err)
			}
		}
	}
	for some := range slices.Chunk(rows, EventsAtOnce) {
		text, args := e.s.texts.InsertEvents(some)
		if _, err := tx.ExecContext(ctx, text, args...); err != nil {
			return e.failedIn(doing, err)
		}
	}
	return nil
}

// failedIn is failed inside a transaction of the user's, in which nothing more
// can be looked up after an error.
func (e events) failedIn(doing string, err error) error {
	if e.s.dialect.Kind(err) == KindSchema {
		return fmt.Errorf("%s: %w", doing, &store.SchemaError{
			Table: e.s.tables.In(e.s.tables.OutboxMessages), Cause: "it is missing or lacks a column", Err: err,
			Mend: "run `sekali migrate up`",
		})
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// OnCommit implements outbox.Adder.
func (e events) OnCommit(tx *sql.Tx, f func()) bool {
	found, ok := e.s.open.Load(tx)
	if ok {
		t := found.(*transaction)
		t.after = append(t.after, f) // one goroutine at a time uses a transaction
	}
	return ok
}

// Tend implements outbox.Rows.
func (e events) Tend(ctx context.Context, relay string, lease time.Duration, leave []int) (lanes []int, share int, err error) {
	const doing = "share the outbox's lanes"
	err = e.inTx(ctx, doing, func(tx *sql.Tx) error {
		lanes, share, err = e.tend(ctx, tx, relay, lease, leave)
		return err
	})
	return lanes, share, err
}

func (e events) tend(ctx context.Context, tx *sql.Tx, relay string, lease time.Duration, leave []int) (lanes []int, share int, err error) {
	texts, forLease := e.s.texts, lease.Milliseconds()
	until := texts.Millis + " + ?"
	for _, step := range []struct {
		text string
		args []any
		when bool
	}{
		{"DELETE FROM " + texts.OutboxRelays + " WHERE relay = ? OR lease_until <= " + texts.Millis, []any{relay}, true},
		{"INSERT INTO " + texts.OutboxRelays + " (relay, lease_until) VALUES (?, " + until + ")", []any{relay, forLease}, true},
		{"UPDATE " + texts.OutboxLanes + " SET lease_until = " + until + " WHERE owner = ?", []any{forLease, relay}, true},
		{"UPDATE " + texts.OutboxLanes + " SET owner = '', lease_until = 0 WHERE owner = ? AND lane IN (" + list(leave) + ")", []any{relay}, len(leave) > 0},
	} {
		if !step.when {
			continue
		}
		q := e.query()
		q.add(step.text, step.args...)
		if _, err := e.exec(ctx, tx, q); err != nil {
			return nil, 0, err
		}
	}
	relays, err := e.numbers(ctx, tx, "SELECT COUNT(*) FROM "+texts.OutboxRelays)
	if err == nil {
		share = (outbox.Lanes + relays[0] - 1) / relays[0]
		lanes, err = e.lanesOf(ctx, tx, relay)
	}
	if err != nil || len(lanes) >= share {
		return lanes, share, err
	}
	free, err := e.numbers(ctx, tx, "SELECT lane FROM "+texts.OutboxLanes+" WHERE lease_until <= "+texts.Millis+" ORDER BY lane LIMIT ?", share-len(lanes))
	if err != nil || len(free) == 0 {
		return lanes, share, err
	}
	q := e.query()
	q.add("UPDATE "+texts.OutboxLanes+" SET owner = ?, lease_until = "+until+" WHERE lease_until <= "+texts.Millis+" AND lane IN ("+list(free)+")", relay, forLease)
	if _, err = e.exec(ctx, tx, q); err == nil {
		lanes, err = e.lanesOf(ctx, tx, relay)
	}
	return lanes, share, err
}

func (e events) lanesOf(ctx context.Context, tx *sql.Tx, relay string) ([]int, error) {
	return e.numbers(ctx, tx, "SELECT lane FROM "+e.s.texts.OutboxLanes+" WHERE owner = ? ORDER BY lane", relay)
}

func (e events) numbers(ctx context.Context, from queryer, text string, args ...any) (all []int, err error) {
	q := e.query()
	q.add(text, args...)
	rows, err := from.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, rows.Err()
}

// list writes numbers as SQL wants them after IN.
func list[N int | int64](numbers []N) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(int64(n), 10))
	}
	return b.String()
}

// Leave implements outbox.Rows.
func (e events) Leave(ctx context.Context, relay string) error {
	return e.inTx(ctx, "give up the outbox's lanes", func(tx *sql.Tx) error {
		q := e.query()
		q.add("UPDATE "+q.texts.OutboxLanes+" SET owner = '', lease_until = 0 WHERE owner = ?", relay)
		if _, err := e.exec(ctx, tx, q); err != nil {
			return err
		}
		q = e.query()
		q.add("DELETE FROM "+q.texts.OutboxRelays+" WHERE relay = ?", relay)
		_, err := e.exec(ctx, tx, q)
		return err
	})
}

// inTx runs f in a transaction, and again when others get in its way.
func (e events) inTx(ctx context.Context, doing string, f func(*sql.Tx) error) error {
	if err := e.repeated(ctx, f); err != nil {
		return e.failed(ctx, doing, err)
	}
	return nil
}

// repeated runs f in a transaction, and again when others get in its way.
func (l letters) repeated(ctx context.Context, f func(*sql.Tx) error) error {
	for try := 1; ; try++ {
		err := l.once(ctx, f)
		if err != nil && l.s.Classify(err) == store.ClassConflict && try < maxDecide && pause(ctx, try) {
			continue
		}
		return err
	}
}

func (l letters) once(ctx context.Context, f func(*sql.Tx) error) error {
	if l.s.invalid != nil {
		return l.s.invalid
	}
	tx, err := l.s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Pending implements outbox.Rows.
func (e events) Pending(ctx context.Context, w outbox.Want) ([]outbox.Row, error) {
	q := e.query()
	q.add("SELECT id, lane, message_id, topic, ordering_key, headers, body, " + there + ", attempts FROM " + q.texts.OutboxMessages + " m WHERE status = 'pending'" +
		" AND not_before <= " + q.texts.Millis)
	if len(w.Lanes) < outbox.Lanes {
		q.add(" AND lane IN (" + list(w.Lanes) + ")")
	}
	if len(w.Except) > 0 {
		q.add(" AND (ordering_key IS NULL OR ordering_key NOT IN (")
		for i, key := range w.Except {
			q.add(", ?"[2*btoi(i == 0):], key)
		}
		q.add("))")
	}
	if w.HoldKeys {
		q.add(" AND NOT EXISTS (SELECT 1 FROM " + q.texts.OutboxMessages +
			" p WHERE p.status = 'parked' AND p.ordering_key = m.ordering_key AND p.id < m.id)")
	}
	q.add(" ORDER BY id LIMIT ?", w.Limit)
	var all []outbox.Row
	err := e.each(ctx, q, func(rows *sql.Rows) error {
		r := outbox.Row{Status: outbox.Pending}
		var is int
		err := rows.Scan(&r.ID, &r.Lane, &r.MessageID, &r.Topic, &r.OrderingKey, &r.Headers, &r.Body, &is, &r.Attempts)
		r.OrderingKey, r.Body = notNil(r.OrderingKey, is&1), notNil(r.Body, is&2)
		all = append(all, r)
		return err
	})
	if err != nil {
		return nil, e.failed(ctx, "read the outbox", err)
	}
	return all, nil
}

// there tells an empty ordering key (1) and body (2) from none: not every driver
// does.
const there = "CASE WHEN ordering_key IS NULL THEN 0 ELSE 1 END + CASE WHEN body IS NULL THEN 0 ELSE 2 END"

func notNil(b []byte, is int) []byte {
	if b == nil && is != 0 {
		return []byte{}
	}
	return b
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (l letters) each(ctx context.Context, q *query, f func(*sql.Rows) error) error {
	if l.s.invalid != nil {
		return l.s.invalid
	}
	rows, err := l.s.db.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// still is the condition that an event is pending, and its lane the relay's.
func (q *query) still(relay string) {
	q.add(" AND status = 'pending' AND lane IN (SELECT lane FROM "+q.texts.OutboxLanes+" WHERE owner = ?)", relay)
}

// Done implements outbox.Rows.
func (e events) Done(ctx context.Context, relay string, published []int64, failed []outbox.Failure) error {
	return e.inTx(ctx, "record what was published", func(tx *sql.Tx) error {
		for some := range slices.Chunk(published, EventsAtOnce) {
			q := e.query()
			q.add("UPDATE " + q.texts.OutboxMessages + " SET status = 'published', error = '', published_at = " + q.texts.Now +
				" WHERE id IN (" + list(some) + ")")
			q.still(relay)
			if _, err := e.exec(ctx, tx, q); err != nil {
				return err
			}
		}
		for _, f := range failed {
			if _, err := e.exec(ctx, tx, e.failure(relay, f)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e events) failure(relay string, f outbox.Failure) *query {
	status := outbox.Pending
	if f.Park {
		status = outbox.Parked
	}
	q := e.query()
	q.add("UPDATE "+q.texts.OutboxMessages+" SET status = ?, error = ?, attempts = attempts + ?, not_before = CASE WHEN ordering_key IS NULL THEN "+
		q.texts.Millis+" + ? ELSE not_before END WHERE id = ?",
		string(status), deadletter.CleanError(f.Error), btoi(f.Refused), f.Delay.Milliseconds(), f.ID)
	q.still(relay)
	return q
}

// Stats implements outbox.Rows. The oldest event is the one with the lowest
// number, or nearly so.
func (e events) Stats(ctx context.Context) (s outbox.Stats, err error) {
	const doing = "measure the outbox"
	if e.s.invalid != nil {
		return s, fmt.Errorf("%s: %w", doing, e.s.invalid)
	}
	for status, n := range map[outbox.Status]*int{outbox.Pending: &s.Pending, outbox.Parked: &s.Parked} {
		counts, err := e.numbers(ctx, e.s.db, "SELECT COUNT(*) FROM (SELECT 1 AS one FROM "+e.s.texts.OutboxMessages+" WHERE status = '"+
			string(status)+"' LIMIT ?) AS x", outbox.MaxCount)
		if err != nil {
			return s, e.failed(ctx, doing, err)
		}
		*n = counts[0]
	}
	q := e.query()
	q.add("SELECT " + q.texts.Millis + " - " + q.texts.MillisOf("created_at") + " FROM " + q.texts.OutboxMessages +
		" WHERE status = 'pending' AND not_before <= " + q.texts.Millis + " ORDER BY id LIMIT 1")
	err = e.each(ctx, q, func(rows *sql.Rows) error {
		var lag int64
		err := rows.Scan(&lag)
		s.Lag = max(0, time.Duration(lag)*time.Millisecond)
		return err
	})
	if err != nil {
		return s, e.failed(ctx, doing, err)
	}
	return s, nil
}

// Check implements outbox.Rows.
func (e events) Check(ctx context.Context) error {
	if _, err := e.Pending(ctx, outbox.Want{Lanes: []int{0}, Limit: 1}); err != nil {
		return err
	}
	if _, err := e.numbers(ctx, e.s.db, "SELECT lane FROM "+e.s.texts.OutboxLanes+" WHERE lane = -1"); err != nil {
		return e.failed(ctx, "look at the outbox's lanes", err)
	}
	return nil
}

func (e events) failed(ctx context.Context, doing string, err error) error {
	return e.s.failedOn(ctx, e.s.tables.OutboxMessages, e.s.texts.OutboxMessages, doing, err)
}
