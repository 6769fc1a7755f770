package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

// List implements effect.Desk.
func (e effects) List(ctx context.Context, f effect.Filter) ([]effect.Row, error) {
	condition, args := "", []any{}
	where := func(column, value string) {
		if value == "" {
			return
		}
		word := " AND "
		if condition == "" {
			word = " WHERE "
		}
		condition, args = condition+word+column+" = ?", append(args, value)
	}
	where("consumer_name", f.Consumer)
	if f.MessageKey != "" {
		where("message_key", store.StoredKey(f.MessageKey))
	}
	where("effect_name", f.Name)
	where("state", string(f.State))
	if f.Before > 0 {
		word := " AND "
		if condition == "" {
			word = " WHERE "
		}
		condition, args = condition+word+"id < ?", append(args, f.Before)
	}
	if f.Limit <= 0 {
		f.Limit = effect.DefaultLimit
	}
	rows, err := e.rows(ctx, e.s.db, condition+" ORDER BY id DESC LIMIT ?", append(args, f.Limit)...)
	if err != nil {
		return nil, e.failed(ctx, "list effects", err)
	}
	return rows, nil
}

// Get implements effect.Desk.
func (e effects) Get(ctx context.Context, number int64) (effect.Row, error) {
	doing := fmt.Sprintf("read effect %d", number)
	r, err := e.get(ctx, e.s.db, number)
	if err != nil {
		return r, e.failed(ctx, doing, err)
	}
	return r, nil
}

func (e effects) get(ctx context.Context, from queryer, number int64) (effect.Row, error) {
	rows, err := e.rows(ctx, from, " WHERE id = ?", number)
	if err == nil && len(rows) == 0 {
		err = effect.ErrNotFound
	}
	if err != nil {
		return effect.Row{}, err
	}
	return rows[0], nil
}

// Resolve implements effect.Desk. Whoever owned it before finds another token.
func (e effects) Resolve(ctx context.Context, number int64, r effect.Resolution) error {
	doing := fmt.Sprintf("resolve effect %d", number)
	switch {
	case r.By == "":
		return fmt.Errorf("%s: say who decides (Resolution.By)", doing)
	case r.To != effect.Succeeded && r.To != effect.Failed:
		return fmt.Errorf("%s: it cannot become %s: say that it succeeded or that it failed", doing, r.To)
	case r.To == effect.Succeeded && r.Result != nil && !json.Valid(r.Result):
		return fmt.Errorf("%s: its result is not JSON: write it as the call's result is recorded", doing)
	}
	for try := 1; ; try++ {
		err := e.tryResolve(ctx, number, r)
		if err == nil {
			return nil
		}
		if e.s.Classify(err) != store.ClassConflict || try >= maxDecide || !pause(ctx, try) {
			return e.failed(ctx, doing, err)
		}
	}
}

func (e effects) tryResolve(ctx context.Context, number int64, r effect.Resolution) error {
	if e.s.invalid != nil {
		return e.s.invalid
	}
	before, err := e.get(ctx, e.s.db, number)
	if err != nil {
		return err
	}
	tx, err := e.s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	if err := e.correctable(ctx, tx, before, r); err != nil {
		return err
	}
	final, result := 0, any(nil)
	if r.To == effect.Failed && r.GiveUp {
		final = 1
	}
	if r.To == effect.Succeeded {
		result = []byte("null")
		if r.Result != nil {
			result = r.Result
		}
	}
	q := e.query()
	q.add("UPDATE "+q.texts.ExternalEffects+" SET state = ?, final = ?, result = ?, error = ?, token = token + 1, lease_until = 0, updated_at = "+
		q.texts.Now+" WHERE id = ? AND token = ? AND (state <> 'started' OR lease_until <= "+q.texts.Millis+")",
		string(r.To), final, result, deadletter.CleanError(r.Text(before)), number, before.Token)
	n, err := e.exec(ctx, tx, q)
	if err != nil {
		return err
	}
	row, err := e.get(ctx, tx, number)
	switch {
	case err != nil:
		return err
	case n == 0 && row.State == effect.Started:
		return fmt.Errorf("it is under way: come back in %v", row.LeaseLeft)
	case n == 0:
		return fmt.Errorf("it was changed at this moment: it is %s", row.State)
	}
	entry := deadletter.Audit{
		By: r.By, Action: "resolve effect", Consumer: row.Consumer, Key: row.MessageKey,
		Detail: joinNote(fmt.Sprintf("%s: %s%s", row.Name, resolutionText(r), instead(before)), r.Note),
	}
	if err := e.audit(ctx, tx, entry); err != nil {
		return err
	}
	return tx.Commit()
}

// correctable tells whether a row can be resolved so. A message whose effect has
// an outcome already is claimed as if it were processed, so that a transaction
// that began with that outcome is waited for, and its end seen.
func (e effects) correctable(ctx context.Context, tx *sql.Tx, row effect.Row, r effect.Resolution) error {
	corrects, err := r.Corrects(row)
	if err != nil || !corrects {
		return err
	}
	claim := store.Claim{Consumer: row.Consumer, Keys: []store.Key{{Raw: row.MessageKey}}}
	states, err := e.s.Claim(ctx, tx, claim)
	switch {
	case err != nil:
		return err
	case states[0] != store.Fresh:
		return fmt.Errorf("%w: it is %s, and its message is processed", effect.ErrResolved, row.State)
	}
	return e.s.Unclaim(ctx, tx, claim)
}

// instead tells what a decision takes the place of, so that nothing is lost.
func instead(before effect.Row) string {
	switch {
	case before.State == effect.Succeeded:
		return ", instead of succeeded with " + string(before.Result)
	case before.Final:
		return ", instead of failed, given up"
	}
	return ""
}

func resolutionText(r effect.Resolution) string {
	switch {
	case r.To == effect.Succeeded && r.Result != nil:
		return "succeeded with " + string(r.Result)
	case r.To == effect.Succeeded:
		return "succeeded"
	case r.GiveUp:
		return "failed, given up"
	}
	return "call again"
}

func joinNote(text, note string) string {
	if note == "" {
		return text
	}
	return text + ", " + note
}

// again has the effects of a message happen again, under new keys: the
// provider would know the old ones. What is under way must end before.
func (e effects) again(ctx context.Context, tx *sql.Tx, consumer, messageKey string) error {
	rows, err := e.rows(ctx, tx, " WHERE consumer_name = ? AND message_key = ?", consumer, store.StoredKey(messageKey))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.State == effect.Started && r.LeaseLeft > 0 {
			return errors.New("effect " + r.Name + " is under way")
		}
		q := e.query()
		q.add("UPDATE "+q.texts.ExternalEffects+" SET state = 'failed', final = 0, token = token + 1, lease_until = 0, fingerprint = NULL, result = NULL,"+
			" error = 'it is to happen again', first_at = "+q.texts.Millis+", idempotency_key = ?, updated_at = "+q.texts.Now+" WHERE id = ?",
			effect.IdempotencyKey(r.IdempotencyKey, messageKey, r.Name), r.Number)
		if _, err := e.exec(ctx, tx, q); err != nil {
			return err
		}
	}
	return nil
}
