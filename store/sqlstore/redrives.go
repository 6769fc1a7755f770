package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/deadletter"
)

// Redrives returns the dead letters that a running Consumer is to process.
func (s *Store) Redrives() deadletter.Source[*sql.Tx] { return redrives{letters{s}} }

// redrives is the table dead_letters seen from a Consumer that runs, the same
// code for every database.
type redrives struct{ letters }

var _ deadletter.Source[*sql.Tx] = redrives{}

// Take implements deadletter.Source. Each letter is leased by a statement of
// its own, which finds out whether somebody was faster.
func (r redrives) Take(ctx context.Context, consumer string, most int, lease time.Duration) ([]deadletter.Redrive, error) {
	doing := fmt.Sprintf("take redrives of consumer %q", consumer)
	due, err := r.due(ctx, consumer, most)
	if err != nil {
		return nil, r.failed(ctx, doing, err)
	}
	token := rand.Text()
	taken := 0
	for _, id := range due {
		q := r.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET lease_token = ?, leased_until = "+q.texts.Millis+" + ?, takes = takes + 1"+
			" WHERE id = ? AND status IN ("+taking+") AND leased_until < "+q.texts.Millis,
			token, lease.Milliseconds(), id)
		n, err := r.exec(ctx, r.s.db, q)
		if err != nil {
			return nil, r.failed(ctx, doing, err)
		}
		taken += int(n)
	}
	if taken == 0 {
		return nil, nil
	}
	found, err := r.taken(ctx, due, token)
	if err != nil {
		return nil, r.failed(ctx, doing, err)
	}
	return found, nil
}

// taking lists the statuses of letters that a Consumer takes.
const taking = "'requested', 'held', 'waiting'"

// due returns the letters that are to be taken: of each ordering key the first
// one. A held one waits for all before it, others for what is to be processed
// before them; those without an ordering key wait for nothing but their
// effects.
func (r redrives) due(ctx context.Context, consumer string, most int) (ids []int64, err error) {
	if r.s.invalid != nil {
		return nil, r.s.invalid
	}
	q := r.query()
	table := q.texts.DeadLetters
	earlier := func(statuses string) string {
		return " AND NOT EXISTS (SELECT 1 FROM " + table + " e WHERE e.consumer_name = l.consumer_name" +
			" AND e.ordering_key = l.ordering_key AND e.status IN (" + statuses + ") AND e.id < l.id)"
	}
	q.add("SELECT l.id FROM "+table+" l WHERE l.consumer_name = ? AND l.status = 'requested' AND l.leased_until < "+q.texts.Millis+
		earlier("'requested', 'held'"), consumer)
	q.add(" UNION ALL SELECT l.id FROM "+table+" l WHERE l.consumer_name = ? AND l.status = 'waiting' AND l.leased_until < "+q.texts.Millis+
		earlier("'requested', 'held'")+" AND NOT EXISTS (SELECT 1 FROM "+q.texts.ExternalEffects+
		" x WHERE x.consumer_name = l.consumer_name AND x.message_key = l.message_key AND x.state = 'parked')", consumer)
	// One row of each key is looked at, however many are held.
	q.add(" UNION ALL SELECT l.id FROM (SELECT MIN(id) AS id FROM "+table+
		" WHERE consumer_name = ? AND status = 'held' GROUP BY ordering_key) heads JOIN "+table+
		" l ON l.id = heads.id WHERE l.leased_until < "+q.texts.Millis+earlier(unresolved), consumer)
	q.add(" ORDER BY id LIMIT ?", most)
	rows, err := r.s.db.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// taken reads those of the letters that bear our token.
func (r redrives) taken(ctx context.Context, ids []int64, token string) ([]deadletter.Redrive, error) {
	q := r.selection()
	q.add(" WHERE lease_token = ? AND "+in("id", len(ids))+" ORDER BY id", append([]any{token}, anys(ids)...)...)
	found, err := r.read(ctx, q)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	taken := make([]deadletter.Redrive, len(found))
	for i, l := range found {
		taken[i] = deadletter.Redrive{Letter: l, Token: token}
		q := r.query()
		q.add("SELECT redrive_force, redrive_key, takes FROM "+q.texts.DeadLetters+" WHERE id = ?", l.ID)
		var force int
		var key []byte
		if err := r.s.db.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&force, &key, &taken[i].Takes); err != nil {
			return nil, err
		}
		taken[i].Force, taken[i].Key = force != 0, string(key)
	}
	return taken, nil
}

// in returns a condition with n placeholders.
func in(column string, n int) string {
	return column + " IN (" + strings.TrimSuffix(strings.Repeat("?, ", n), ", ") + ")"
}

func anys[T any](values []T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// ours is the condition that a redrive's lease has not been given to somebody
// else, nor its letter been resolved. A lease that is over and that nobody
// else has taken is still ours.
const ours = " WHERE id = ? AND lease_token = ? AND status IN (" + taking + ")"

// free are the assignments that end a lease.
const free = ", lease_token = NULL, leased_until = 0"

// asked are the assignments that end a request.
const asked = ", redrive_force = 0, redrive_key = NULL, takes = 0"

// Extend implements deadletter.Source.
func (r redrives) Extend(ctx context.Context, list []deadletter.Redrive, lease time.Duration) (kept []int64, err error) {
	for _, one := range list {
		q := r.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET leased_until = "+q.texts.Millis+" + ?"+ours, lease.Milliseconds(), one.Letter.ID, one.Token)
		n, err := r.exec(ctx, r.s.db, q)
		if err != nil {
			return kept, r.failed(ctx, fmt.Sprintf("extend the lease of dead letter %d", one.Letter.ID), err)
		}
		if n > 0 {
			kept = append(kept, one.Letter.ID)
		}
	}
	return kept, nil
}

// ResolveIn implements deadletter.Source.
func (r redrives) ResolveIn(ctx context.Context, tx *sql.Tx, one deadletter.Redrive, s deadletter.Status) error {
	return r.resolve(ctx, tx, one, s)
}

// Resolve implements deadletter.Source.
func (r redrives) Resolve(ctx context.Context, one deadletter.Redrive, s deadletter.Status) error {
	return r.resolve(ctx, r.s.db, one, s)
}

func (r redrives) resolve(ctx context.Context, on execer, one deadletter.Redrive, s deadletter.Status) error {
	q := r.query()
	q.add("UPDATE "+q.texts.DeadLetters+" SET status = ?, open_identity = NULL, last_at = "+q.texts.Now+free+ours,
		string(s), one.Letter.ID, one.Token)
	return r.changed(ctx, on, q, fmt.Sprintf("resolve dead letter %d as %s", one.Letter.ID, s))
}

// Reopen implements deadletter.Source.
func (r redrives) Reopen(ctx context.Context, one deadletter.Redrive, l deadletter.Letter) error {
	q := r.query()
	set := "lease_token = NULL, leased_until = 0"
	if l.Status == deadletter.Waiting {
		// Not at once again, should its effects be kept elsewhere.
		set = "lease_token = NULL, leased_until = " + q.texts.Millis + " + 5000"
	} else {
		l.Status = deadletter.Open
	}
	q.add("UPDATE "+q.texts.DeadLetters+" SET status = ?, reason = ?, error = ?, attempts = ?, last_at = "+q.texts.Now+", "+set+asked+ours,
		string(l.Status), string(l.Reason), deadletter.CleanError(l.Error), l.Attempts, one.Letter.ID, one.Token)
	return r.changed(ctx, r.s.db, q, fmt.Sprintf("open dead letter %d again", one.Letter.ID))
}

// Release implements deadletter.Source. A take that comes to nothing does not
// count.
func (r redrives) Release(ctx context.Context, list []deadletter.Redrive) error {
	for _, one := range slices.Backward(list) {
		q := r.query()
		q.add("UPDATE "+q.texts.DeadLetters+" SET takes = takes - 1"+free+ours, one.Letter.ID, one.Token)
		if _, err := r.exec(ctx, r.s.db, q); err != nil {
			return r.failed(ctx, fmt.Sprintf("give dead letter %d back", one.Letter.ID), err)
		}
	}
	return nil
}

// Check implements deadletter.Source.
func (r redrives) Check(ctx context.Context) error {
	if _, err := r.due(ctx, "", 1); err != nil {
		return r.failed(ctx, "look for redrives", err)
	}
	return nil
}

// execer is the pool or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (l letters) query() *query { return &query{texts: l.s.texts} }

func (l letters) exec(ctx context.Context, on execer, q *query) (rows int64, err error) {
	if l.s.invalid != nil {
		return 0, l.s.invalid
	}
	result, err := on.ExecContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// changed runs a statement that must change a letter that is ours.
func (l letters) changed(ctx context.Context, on execer, q *query, doing string) error {
	n, err := l.exec(ctx, on, q)
	switch {
	case err != nil:
		return l.failed(ctx, doing, err)
	case n == 0:
		return fmt.Errorf("%s: %w", doing, deadletter.ErrNotOurs)
	}
	return nil
}
