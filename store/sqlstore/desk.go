package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

var _ deadletter.Desk = letters{}

// Count implements deadletter.Desk.
func (l letters) Count(ctx context.Context, f deadletter.Filter) (map[deadletter.Reason]int, error) {
	const doing = "count dead letters"
	if l.s.invalid != nil {
		return nil, fmt.Errorf("%s: %w", doing, l.s.invalid)
	}
	q := l.query()
	q.add("SELECT reason, COUNT(*) FROM " + q.texts.DeadLetters)
	q.filter(f)
	q.add(" GROUP BY reason")
	rows, err := l.s.db.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, l.failed(ctx, doing, err)
	}
	defer rows.Close()
	counts := map[deadletter.Reason]int{}
	for rows.Next() {
		var reason deadletter.Reason
		var n int
		if err := rows.Scan(&reason, &n); err != nil {
			return nil, l.failed(ctx, doing, err)
		}
		counts[reason] = n
	}
	if err := rows.Err(); err != nil {
		return nil, l.failed(ctx, doing, err)
	}
	return counts, nil
}

// Redrive implements deadletter.Desk.
func (l letters) Redrive(ctx context.Context, id int64, d deadletter.Decision) error {
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	var details []string
	note := func(is bool, text string) {
		if is {
			details = append(details, text)
		}
	}
	note(d.Force, "force")
	note(d.Effects, "effects")
	note(d.Key != "", fmt.Sprintf("as key %q", d.Key))
	note(d.Note != "", d.Note)
	d.Note = strings.Join(details, ", ")
	return l.decide(ctx, "redrive", id, d, func(ctx context.Context, tx *sql.Tx, letter deadletter.Letter) error {
		switch {
		case letter.Status == deadletter.Held:
			return errors.New("it is held: it goes on by itself when what is before it in its ordering key is resolved")
		case letter.Reason == deadletter.Survived && !d.Force && d.Key == "":
			return errors.New("its key was recorded by a handler that committed by itself: look at the business data, then discard it or force it")
		case letter.Reason == deadletter.TooOld && !d.Force && d.Key == "":
			return errors.New("it is older than the keys that are kept, and may have been processed: look at the business data, then discard it or force it")
		case letter.Reason == deadletter.Conflict && !d.Force && d.Key == "":
			return errors.New("another message was processed under its key: discard it, or redrive it under another key")
		}
		var key any
		if d.Key != "" {
			key = []byte(d.Key)
		}
		if d.Effects {
			if err := (effects{l}).again(ctx, tx, letter.Consumer, letter.Key); err != nil {
				return err
			}
		}
		// A token that nobody has: MySQL counts only rows that change.
		q := l.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET status = 'requested', redrive_force = ?, redrive_key = ?, lease_token = ?,"+
			" takes = 0 WHERE id = ? AND (status = 'open' OR status IN ('requested', 'waiting') AND leased_until < "+q.texts.Millis+")",
			flag(d.Force), key, rand.Text(), id)
		return l.decided(ctx, tx, q, "a consumer is processing it at this moment")
	})
}

// Discard implements deadletter.Desk. The claim comes first, as it does when
// the message is processed: whoever is second waits for the first, and finds
// what the first did.
func (l letters) Discard(ctx context.Context, id int64, d deadletter.Decision) error {
	letter, err := l.Get(ctx, id)
	if err != nil {
		return err
	}
	return l.decide(ctx, "discard", id, d, func(ctx context.Context, tx *sql.Tx, now deadletter.Letter) error {
		q := l.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET status = 'discarded', open_identity = NULL, last_at = "+q.texts.Now+free+
			" WHERE id = ? AND status IN ("+unresolved+")", id)
		return l.decided(ctx, tx, q, "it was resolved at this moment")
	}, func(ctx context.Context, tx *sql.Tx) error {
		// A conflict's key is there, and stays the other message's.
		if letter.Key == "" || letter.Reason == deadletter.Conflict {
			return nil
		}
		_, err := l.s.Claim(ctx, tx, store.Claim{Consumer: letter.Consumer, Keys: []store.Key{{Raw: letter.Key}}})
		return err
	})
}

const send = "send"

// Sent implements deadletter.Desk.
func (l letters) Sent(ctx context.Context, id int64, d deadletter.Decision) error {
	among := unresolved
	if d.Force {
		among += ", 'sent'"
		d.Note = joinNote("force", d.Note)
	}
	return l.decide(ctx, send, id, d, func(ctx context.Context, tx *sql.Tx, _ deadletter.Letter) error {
		q := l.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET status = 'sent', open_identity = NULL, last_at = "+q.texts.Now+
			", lease_token = ?, leased_until = 0 WHERE id = ? AND status IN ("+among+")", rand.Text(), id) // MySQL counts only rows that change
		return l.decided(ctx, tx, q, "it was resolved at this moment")
	})
}

// decided runs the statement of a decision, which must change the letter.
func (l letters) decided(ctx context.Context, tx *sql.Tx, q *query, otherwise string) error {
	n, err := l.exec(ctx, tx, q)
	if err == nil && n == 0 {
		err = errors.New(otherwise + ": look at it again")
	}
	return err
}

// maxDecide is how often a decision is tried that others get in the way of.
const maxDecide = 10

// decide carries out a decision about an unresolved letter, with its entry in
// the audit trail, in one transaction. What comes before the look at the
// letter is before.
func (l letters) decide(ctx context.Context, action string, id int64, d deadletter.Decision,
	change func(context.Context, *sql.Tx, deadletter.Letter) error, before ...func(context.Context, *sql.Tx) error,
) error {
	doing := fmt.Sprintf("%s dead letter %d", action, id)
	if d.By == "" {
		return fmt.Errorf("%s: say who decides (Decision.By)", doing)
	}
	for try := 1; ; try++ {
		err := l.tryDecide(ctx, action, id, d, change, before)
		if err == nil {
			return nil
		}
		if l.s.Classify(err) == store.ClassConflict && try < maxDecide && pause(ctx, try) {
			continue
		}
		return l.failed(ctx, doing, err)
	}
}

// pause waits before a further try, longer from try to try.
func pause(ctx context.Context, try int) bool {
	select {
	case <-time.After(mathrand.N(time.Duration(try) * 10 * time.Millisecond)):
		return true
	case <-ctx.Done():
		return false
	}
}

func (l letters) tryDecide(ctx context.Context, action string, id int64, d deadletter.Decision,
	change func(context.Context, *sql.Tx, deadletter.Letter) error, before []func(context.Context, *sql.Tx) error,
) error {
	if l.s.invalid != nil {
		return l.s.invalid
	}
	tx, err := l.s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	for _, f := range before {
		if err := f(ctx, tx); err != nil {
			return err
		}
	}
	// A lock, and on SQLite a write before the read, which could not become
	// one later.
	q := l.query()
	q.add("UPDATE "+q.texts.DeadLetters+" SET takes = takes WHERE id = ?", id)
	if _, err := l.exec(ctx, tx, q); err != nil {
		return err
	}
	letter, err := l.getIn(ctx, tx, id)
	if err != nil {
		return err
	}
	again := action == send && letter.Status == deadletter.Sent && d.Force
	if !letter.Status.Unresolved() && !again {
		return fmt.Errorf("%w: it is %s", deadletter.ErrResolved, letter.Status)
	}
	if err := change(ctx, tx, letter); err != nil {
		return err
	}
	entry := deadletter.Audit{By: d.By, Action: action, Consumer: letter.Consumer, Key: letter.Key, Letter: id, Detail: d.Note}
	if err := l.audit(ctx, tx, entry); err != nil {
		return err
	}
	return tx.Commit()
}

// getIn is Get within a transaction.
func (l letters) getIn(ctx context.Context, tx *sql.Tx, id int64) (deadletter.Letter, error) {
	q := l.selection()
	q.add(" WHERE id = ?", id)
	found, err := l.readFrom(ctx, tx, q)
	if err == nil && len(found) == 0 {
		err = deadletter.ErrNotFound
	}
	if err != nil {
		return deadletter.Letter{}, err
	}
	return found[0], nil
}

func (l letters) audit(ctx context.Context, on execer, a deadletter.Audit) error {
	key, raw := storedAndRaw(a.Key)
	var letter any
	if a.Letter != 0 {
		letter = a.Letter
	}
	return l.entry(ctx, on, trailEntry{
		by: a.By, action: a.Action, consumer: a.Consumer, stored: key, raw: raw, letter: letter, detail: a.Detail,
	})
}

// Record implements deadletter.Desk.
func (l letters) Record(ctx context.Context, a deadletter.Audit) error {
	if err := l.audit(ctx, l.s.db, a); err != nil {
		return l.failedOnTrail(ctx, "write to the audit trail", err)
	}
	return nil
}

// Trail implements deadletter.Desk.
func (l letters) Trail(ctx context.Context, id int64, limit int) ([]deadletter.Audit, error) {
	const doing = "read the audit trail"
	if l.s.invalid != nil {
		return nil, fmt.Errorf("%s: %w", doing, l.s.invalid)
	}
	if limit <= 0 {
		limit = deadletter.DefaultLimit
	}
	q := l.query()
	q.add("SELECT id, " + q.texts.TimeText("at") + ", actor, action, consumer_name, raw_key, letter_id, detail FROM " + q.texts.AuditTrail)
	if id != 0 {
		q.add(" WHERE letter_id = ?", id)
	}
	q.add(" ORDER BY id DESC LIMIT ?", limit)
	rows, err := l.s.db.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, l.failedOnTrail(ctx, doing, err)
	}
	defer rows.Close()
	var trail []deadletter.Audit
	for rows.Next() {
		a, err := scanAudit(rows)
		if err != nil {
			return nil, l.failedOnTrail(ctx, doing, err)
		}
		trail = append([]deadletter.Audit{a}, trail...)
	}
	if err := rows.Err(); err != nil {
		return nil, l.failedOnTrail(ctx, doing, err)
	}
	return trail, nil
}

func scanAudit(rows *sql.Rows) (a deadletter.Audit, err error) {
	var at string
	var key []byte
	var letter sql.NullInt64
	if err := rows.Scan(&a.ID, &at, &a.By, &a.Action, &a.Consumer, &key, &letter, &a.Detail); err != nil {
		return a, err
	}
	a.Key, a.Letter = string(key), letter.Int64
	a.At, err = time.Parse(time.DateTime, at)
	return a, err
}

func (l letters) failedOnTrail(ctx context.Context, doing string, err error) error {
	return l.s.failedOn(ctx, l.s.tables.AuditTrail, l.s.texts.AuditTrail, doing, err)
}
