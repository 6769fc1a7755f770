package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/outbox"
)

// List implements outbox.Desk.
func (e events) List(ctx context.Context, f outbox.Filter) ([]outbox.Row, error) {
	q := e.eventSelection()
	word := " WHERE "
	where := func(condition string, arg any) {
		q.add(word+condition, arg)
		word = " AND "
	}
	if f.Status != "" {
		where("status = ?", string(f.Status))
	}
	if f.Topic != "" {
		where("topic = ?", f.Topic)
	}
	if f.OrderingKey != nil {
		where("ordering_key = ?", f.OrderingKey)
	}
	if f.MessageID != "" {
		where("message_id = ?", f.MessageID)
	}
	if f.Before > 0 {
		where("id < ?", f.Before)
	}
	if f.Limit <= 0 {
		f.Limit = outbox.DefaultLimit
	}
	q.add(" ORDER BY id DESC LIMIT ?", f.Limit)
	rows, err := e.readEvents(ctx, e.s.db, q)
	if err != nil {
		return nil, e.failed(ctx, "list the outbox", err)
	}
	return rows, nil
}

// Get implements outbox.Desk.
func (e events) Get(ctx context.Context, id int64) (outbox.Row, error) {
	doing := fmt.Sprintf("read event %d of the outbox", id)
	row, err := e.getEvent(ctx, e.s.db, id)
	if err != nil {
		return outbox.Row{}, e.failed(ctx, doing, err)
	}
	return row, nil
}

func (e events) getEvent(ctx context.Context, from queryer, id int64) (outbox.Row, error) {
	q := e.eventSelection()
	q.add(" WHERE id = ?", id)
	rows, err := e.readEvents(ctx, from, q)
	if err == nil && len(rows) == 0 {
		err = outbox.ErrNotFound
	}
	if err != nil {
		return outbox.Row{}, err
	}
	return rows[0], nil
}

func (e events) eventSelection() *query {
	q := e.query()
	q.add("SELECT id, lane, message_id, topic, ordering_key, headers, body, " + there + ", not_before, status, attempts, error, " +
		q.texts.TimeText("created_at") + ", " + q.texts.TimeText("published_at") + " FROM " + q.texts.OutboxMessages)
	return q
}

func (e events) readEvents(ctx context.Context, from queryer, q *query) (all []outbox.Row, err error) {
	if e.s.invalid != nil {
		return nil, e.s.invalid
	}
	rows, err := from.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scanEvent(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

func scanEvent(rows *sql.Rows) (r outbox.Row, err error) {
	var is int
	var notBefore int64
	var created string
	var published sql.NullString
	err = rows.Scan(&r.ID, &r.Lane, &r.MessageID, &r.Topic, &r.OrderingKey, &r.Headers, &r.Body, &is, &notBefore, &r.Status, &r.Attempts, &r.Error,
		&created, &published)
	if err != nil {
		return r, err
	}
	r.OrderingKey, r.Body = notNil(r.OrderingKey, is&1), notNil(r.Body, is&2)
	if notBefore > 0 {
		r.NotBefore = time.UnixMilli(notBefore).UTC()
	}
	if r.CreatedAt, err = time.Parse(time.DateTime, created); err == nil && published.Valid {
		r.PublishedAt, err = time.Parse(time.DateTime, published.String)
	}
	return r, err
}

// Retry implements outbox.Desk.
func (e events) Retry(ctx context.Context, id int64, d outbox.Decision) error {
	return e.decideEvent(ctx, "retry", id, d, "status = 'pending', attempts = 0, not_before = 0", outbox.Parked)
}

// Discard implements outbox.Desk.
func (e events) Discard(ctx context.Context, id int64, d outbox.Decision) error {
	return e.decideEvent(ctx, "discard", id, d, "status = 'discarded'", outbox.Parked, outbox.Pending)
}

// decideEvent carries out a decision about an event that has one of some
// statuses, with its entry in the audit trail, in one transaction.
func (e events) decideEvent(ctx context.Context, action string, id int64, d outbox.Decision, set string, from ...outbox.Status) error {
	doing := fmt.Sprintf("%s event %d of the outbox", action, id)
	if d.By == "" {
		return fmt.Errorf("%s: say who decides (Decision.By)", doing)
	}
	statuses := ""
	for i, s := range from {
		statuses += ", '"[2*btoi(i == 0):] + string(s) + "'"
	}
	return e.inTx(ctx, doing, func(tx *sql.Tx) error {
		// The write comes first: on SQLite a read could not become one.
		q := e.query()
		q.add("UPDATE "+q.texts.OutboxMessages+" SET "+set+" WHERE id = ? AND status IN ("+statuses+")", id)
		n, err := e.exec(ctx, tx, q)
		if err != nil {
			return err
		}
		row, err := e.getEvent(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%w: it is %s", outbox.ErrNotParked, row.Status)
		}
		return e.audit(ctx, tx, deadletter.Audit{By: d.By, Action: "outbox " + action, Key: row.MessageID, Detail: d.Note})
	})
}
