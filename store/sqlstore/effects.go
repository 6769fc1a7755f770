package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

// Effects returns the ledger of effects outside the database, in the table
// external_effects, which sekali migrate makes.
func (s *Store) Effects() effect.Rows { return effects{letters{s}} }

// effects is the table external_effects, the same code for every database.
type effects struct{ letters }

var (
	_ effect.Rows = effects{}
	_ effect.Desk = effects{}
)

const whereEffect = " WHERE consumer_name = ? AND message_key = ? AND effect_name = ?"

func whose(id effect.ID) []any { return []any{id.Consumer, store.StoredKey(id.MessageKey), id.Name} }

func doingTo(doing string, id effect.ID) string {
	return fmt.Sprintf("%s effect %q of consumer %q", doing, id.Name, id.Consumer)
}

// Start implements effect.Rows: the unique key refuses a second row.
func (e effects) Start(ctx context.Context, id effect.ID, key string, lease time.Duration) (effect.Row, bool, error) {
	doing := doingTo("start", id)
	if err := store.CheckConsumer(id.Consumer); err != nil {
		return effect.Row{}, false, fmt.Errorf("%s: %w", doing, err)
	}
	q := e.query()
	q.add("INSERT INTO "+q.texts.ExternalEffects+" (consumer_name, message_key, effect_name, raw_key, idempotency_key, state, final,"+
		" attempt, token, lease_until, first_at, started_at, updated_at, error) VALUES (?, ?, ?, ?, ?, 'started', 0, 1, 1, "+
		q.texts.Millis+" + ?, "+q.texts.Millis+", "+q.texts.Millis+", "+q.texts.Now+", '')",
		append(whose(id), []byte(id.MessageKey), key, lease.Milliseconds())...)
	_, err := e.exec(ctx, e.s.db, q)
	switch {
	case err == nil:
		return effect.Row{ID: id, State: effect.Started, IdempotencyKey: key, Attempt: 1, Token: 1, LeaseLeft: lease}, true, nil
	case e.s.dialect.Kind(err) != KindDuplicate:
		return effect.Row{}, false, e.failed(ctx, doing, err)
	}
	rows, err := e.rows(ctx, e.s.db, whereEffect, whose(id)...)
	if err == nil && len(rows) == 0 {
		err = effect.ErrNotFound // somebody removed it at this moment
	}
	if err != nil {
		return effect.Row{}, false, e.failed(ctx, doing, err)
	}
	return rows[0], false, nil
}

// Take implements effect.Rows.
func (e effects) Take(ctx context.Context, r effect.Row, lease time.Duration) (effect.Row, bool, error) {
	q := e.query()
	q.add("UPDATE "+q.texts.ExternalEffects+" SET state = 'started', attempt = attempt + 1, token = token + 1, lease_until = "+q.texts.Millis+
		" + ?, started_at = "+q.texts.Millis+", updated_at = "+q.texts.Now+whereEffect+
		" AND token = ? AND (state = 'unknown' OR state = 'failed' AND final = 0 OR state = 'started' AND lease_until <= "+q.texts.Millis+")",
		append(append([]any{lease.Milliseconds()}, whose(r.ID)...), r.Token)...)
	n, err := e.exec(ctx, e.s.db, q)
	if err != nil {
		return effect.Row{}, false, e.failed(ctx, doingTo("go on with", r.ID), err)
	}
	r.State, r.Attempt, r.Token, r.LeaseLeft = effect.Started, r.Attempt+1, r.Token+1, lease
	return r, n > 0, nil
}

// ours is the condition that nobody else has gone on with an effect.
const oursStill = whereEffect + " AND token = ? AND state = 'started'"

func owned(r effect.Row) []any { return append(whose(r.ID), r.Token) }

// Extend implements effect.Rows.
func (e effects) Extend(ctx context.Context, r effect.Row, lease time.Duration) (bool, error) {
	q := e.query()
	q.add("UPDATE "+q.texts.ExternalEffects+" SET lease_until = "+q.texts.Millis+" + ?"+oursStill,
		append([]any{lease.Milliseconds()}, owned(r)...)...)
	n, err := e.exec(ctx, e.s.db, q)
	if err != nil {
		return false, e.failed(ctx, doingTo("keep the lease of", r.ID), err)
	}
	// MySQL counts no row whose value stays the same, to the millisecond.
	if n == 0 {
		rows, err := e.rows(ctx, e.s.db, oursStill, owned(r)...)
		return len(rows) > 0, err
	}
	return true, nil
}

// Bind implements effect.Rows.
func (e effects) Bind(ctx context.Context, r effect.Row, fingerprint []byte) error {
	doing := doingTo("record what is sent for", r.ID)
	q := e.query()
	q.add("UPDATE "+q.texts.ExternalEffects+" SET fingerprint = ?"+oursStill+" AND fingerprint IS NULL", append([]any{fingerprint}, owned(r)...)...)
	n, err := e.exec(ctx, e.s.db, q)
	if err != nil {
		return e.failed(ctx, doing, err)
	}
	if n > 0 {
		return nil
	}
	q = e.query()
	q.add("SELECT fingerprint FROM "+q.texts.ExternalEffects+oursStill, owned(r)...)
	var there []byte
	err = e.s.db.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&there)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", doing, effect.ErrStale)
	case err != nil:
		return e.failed(ctx, doing, err)
	case !bytes.Equal(there, fingerprint):
		return fmt.Errorf("%s: %w", doing, effect.ErrOtherRequest)
	}
	return nil
}

// End implements effect.Rows.
func (e effects) End(ctx context.Context, r effect.Row, to effect.State, result []byte, text string) error {
	doing := doingTo("end", r.ID)
	var stored any
	if result != nil {
		stored = result
	}
	q := e.query()
	q.add("UPDATE "+q.texts.ExternalEffects+" SET state = ?, result = ?, error = ?, lease_until = 0, updated_at = "+q.texts.Now+oursStill,
		append([]any{string(to), stored, deadletter.CleanError(text)}, owned(r)...)...)
	n, err := e.exec(ctx, e.s.db, q)
	if err != nil {
		return e.failed(ctx, doing, err)
	}
	if n == 0 {
		return e.endedAs(ctx, doing, r, to)
	}
	return nil
}

// endedAs tells whether a row that is not ours any more is so because an
// earlier try to end it worked, and its answer was lost.
func (e effects) endedAs(ctx context.Context, doing string, r effect.Row, to effect.State) error {
	rows, err := e.rows(ctx, e.s.db, whereEffect+" AND token = ?", owned(r)...)
	switch {
	case err != nil:
		return e.failed(ctx, doing, err)
	case len(rows) == 1 && rows[0].State == to:
		return nil
	}
	return fmt.Errorf("%s: %w", doing, effect.ErrStale)
}

// Check implements effect.Rows.
func (e effects) Check(ctx context.Context) error {
	if _, err := e.rows(ctx, e.s.db, " WHERE id = 0"); err != nil {
		return e.failed(ctx, "look for effects", err)
	}
	return nil
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// rows reads the rows that a condition lets through.
func (e effects) rows(ctx context.Context, from queryer, condition string, args ...any) ([]effect.Row, error) {
	if e.s.invalid != nil {
		return nil, e.s.invalid
	}
	q := e.query()
	q.add("SELECT id, consumer_name, raw_key, effect_name, idempotency_key, state, final, attempt, token, lease_until - " + q.texts.Millis + ", " +
		q.texts.Millis + " - first_at, " + q.texts.Millis + " - started_at, " + q.texts.TimeText("updated_at") + ", result, error FROM " + q.texts.ExternalEffects)
	q.add(condition, args...)
	found, err := from.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var all []effect.Row
	for found.Next() {
		r, err := scanEffect(found)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, found.Err()
}

func scanEffect(rows *sql.Rows) (r effect.Row, err error) {
	var key []byte
	var final int
	var left, first, start int64
	var updated string
	err = rows.Scan(&r.Number, &r.Consumer, &key, &r.Name, &r.IdempotencyKey, &r.State, &final, &r.Attempt, &r.Token,
		&left, &first, &start, &updated, &r.Result, &r.Error)
	if err != nil {
		return r, err
	}
	r.MessageKey, r.Final = string(key), final != 0
	r.LeaseLeft = max(0, time.Duration(left)*time.Millisecond)
	r.SinceFirst, r.SinceStart = time.Duration(first)*time.Millisecond, time.Duration(start)*time.Millisecond
	r.UpdatedAt, err = time.Parse(time.DateTime, updated)
	return r, err
}

func (e effects) failed(ctx context.Context, doing string, err error) error {
	return e.s.failedOn(ctx, e.s.tables.ExternalEffects, e.s.texts.ExternalEffects, doing, err)
}
