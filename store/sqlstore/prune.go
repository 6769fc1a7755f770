package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// Pruner returns what removes old rows. It needs the table pruning_marks, which
// sekali migrate makes.
func (s *Store) Pruner() store.Pruner { return pruner{letters{s}} }

// pruner is the same code for every database.
type pruner struct{ letters }

// prunable says how rows of a kind are found.
type prunable struct {
	table func(Texts) string
	// name is the table's bare name.
	name func(store.Tables) string
	// at is when a row was last of use, in UTC. Empty: minute says it.
	at string
	// minute is the column with the minute since 1970 of which a row tells; it
	// is the last column of key, and the first of the primary key.
	minute string
	// key are the columns of the primary key: one number, or a consumer's name
	// and a text or a number.
	key []string
	// only is a further condition on a row; empty: none.
	only func(t Texts, row string) string
}

// number tells that the last column of the key is one.
func (p prunable) number() bool { return len(p.key) == 1 || p.minute != "" }

// prunables is the one list of what can be pruned. processed_messages, whose
// times depend on its column and whose removal leaves marks, is its first.
var prunables = map[store.Prunable]prunable{
	store.PruneKeys: {
		table: func(t Texts) string { return t.ProcessedMessages },
		name:  func(t store.Tables) string { return t.ProcessedMessages },
		at:    "processed_at",
		key:   []string{"consumer_name", "message_key"},
		only: func(t Texts, row string) string {
			return unprotected(t, row, "'sent', "+unresolved) + unfinished(t, row)
		},
	},
	store.PruneDeadLetters: {
		table: func(t Texts) string { return t.DeadLetters },
		name:  func(t store.Tables) string { return t.DeadLetters },
		at:    "last_at",
		key:   []string{"id"},
		only:  func(_ Texts, row string) string { return " AND " + row + ".status NOT IN (" + unresolved + ")" },
	},
	store.PruneEffects: {
		table: func(t Texts) string { return t.ExternalEffects },
		name:  func(t store.Tables) string { return t.ExternalEffects },
		at:    "updated_at",
		key:   []string{"id"},
		only: func(t Texts, row string) string {
			return " AND " + row + ".state IN ('succeeded', 'failed')" + unprotected(t, row, unresolved)
		},
	},
	store.PruneOutbox: {
		table: func(t Texts) string { return t.OutboxMessages },
		name:  func(t store.Tables) string { return t.OutboxMessages },
		at:    "published_at",
		key:   []string{"id"},
		only:  func(_ Texts, row string) string { return " AND " + row + ".status = 'published'" },
	},
	store.PruneVersions: {
		table: func(t Texts) string { return t.EntityVersions },
		name:  func(t store.Tables) string { return t.EntityVersions },
		at:    "updated_at",
		key:   []string{"consumer_name", "entity"},
	},
	store.PruneStarts: {
		table: func(t Texts) string { return t.MessageStarts },
		name:  func(t store.Tables) string { return t.MessageStarts },
		at:    "started_at",
		key:   []string{"consumer_name", "message_key"},
	},
	store.PruneStats: {
		table:  func(t Texts) string { return t.ConsumerStats },
		name:   func(t store.Tables) string { return t.ConsumerStats },
		minute: "at_minute",
		key:    []string{"consumer_name", "at_minute"},
	},
	store.PruneAudit: {
		table: func(t Texts) string { return t.AuditTrail },
		name:  func(t store.Tables) string { return t.AuditTrail },
		at:    "at",
		key:   []string{"id"},
	},
}

// unprotected is the condition that no letter with such a status bears the
// row's key.
func unprotected(t Texts, row, statuses string) string {
	return " AND NOT EXISTS (SELECT 1 FROM " + t.DeadLetters + " l WHERE l.consumer_name = " + row + ".consumer_name" +
		" AND l.message_key = " + row + ".message_key AND l.status IN (" + statuses + "))"
}

// unfinished is the condition that every effect of the row's key is finished.
func unfinished(t Texts, row string) string {
	return " AND NOT EXISTS (SELECT 1 FROM " + t.ExternalEffects + " e WHERE e.consumer_name = " + row + ".consumer_name" +
		" AND e.message_key = " + row + ".message_key AND e.state IN ('started', 'unknown', 'parked'))"
}

// plan is a prunable for one age.
type plan struct {
	prunable
	kind   store.Prunable
	from   string // the table
	age    string // the condition that a row is old
	micros string // when a key was processed; 0 for other rows
	// inOrder is the column by which rows can be had oldest first; empty: none.
	inOrder string
}

// old is the condition that a row is to go.
func (pl plan) old(t Texts, row string) string {
	if pl.only == nil {
		return row + "." + pl.age
	}
	return row + "." + pl.age + pl.only(t, row)
}

func (p pruner) plan(ctx context.Context, q Querier, kind store.Prunable, keep time.Duration) (plan, error) {
	found, known := prunables[kind]
	switch {
	case p.s.invalid != nil:
		return plan{}, p.s.invalid
	case !known:
		return plan{}, fmt.Errorf("there are no rows of the kind %q", kind)
	case keep < store.MinKeep:
		return plan{}, fmt.Errorf("rows are to be kept for %v: keep them for %v at least", keep, store.MinKeep)
	}
	t := p.s.texts
	pl := plan{prunable: found, kind: kind, from: found.table(t), micros: "0", inOrder: found.minute}
	before := t.Pruning.Ago(keep)
	switch {
	case kind == store.PruneKeys:
		shape, err := p.s.checked(ctx, q)
		if err != nil {
			return plan{}, err
		}
		before, pl.micros = t.Pruning.ProcessedAgo(shape, keep), t.Pruning.Micros(shape)
		indexed, err := p.indexed(ctx, q)
		if err != nil {
			return plan{}, err
		}
		if indexed {
			pl.inOrder = found.at
		}
	case found.minute != "":
		// As a number: an expression would keep databases from using the key.
		var now int64
		if err := q.QueryRowContext(ctx, "SELECT "+t.Millis).Scan(&now); err != nil {
			return plan{}, err
		}
		pl.age = fmt.Sprintf("%s < %d", found.minute, (now-keep.Milliseconds())/time.Minute.Milliseconds())
		return pl, nil
	}
	pl.age = found.at + " < " + before
	return pl, nil
}

// indexed tells whether processed_messages can be read oldest first.
func (p pruner) indexed(ctx context.Context, q Querier) (bool, error) {
	var indexes int
	err := q.QueryRowContext(ctx, p.s.texts.Pruning.Indexed).Scan(&indexes)
	return indexes > 0, err
}

// Check implements store.Pruner.
func (p pruner) Check(ctx context.Context) error {
	there, err := p.s.hasMarks(ctx, p.s.db)
	if err == nil && !there {
		err = &store.SchemaError{
			Table: p.s.tables.In(p.s.tables.PruningMarks), Cause: "it is missing", Mend: "run `sekali migrate up`",
		}
	}
	for _, kind := range store.Prunables() {
		if err != nil {
			break
		}
		found := prunables[kind]
		var n int
		err = p.s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+found.table(p.s.texts)+" r WHERE 1 = 0").Scan(&n)
		if err != nil {
			err = &store.SchemaError{
				Table: p.s.tables.In(found.name(p.s.tables)), Cause: "it is missing", Err: err, Mend: "run `sekali migrate up`",
			}
		}
	}
	if err != nil {
		return fmt.Errorf("check the tables to prune: %w", err)
	}
	return nil
}

// Classify implements store.Pruner.
func (p pruner) Classify(err error) store.Class { return p.s.Classify(err) }

// Lease implements store.Pruner.
func (p pruner) Lease(ctx context.Context, token string, lease time.Duration) error {
	const doing = "take the right to prune"
	err := p.inTx(ctx, func(q Querier) error {
		if err := p.mark(ctx, q, "", 0); err != nil {
			return err
		}
		u := p.query()
		u.add("UPDATE "+u.texts.Pruning.Marks+" SET lease_token = ?, leased_until = "+u.texts.Millis+" + ?"+
			" WHERE consumer_name = '' AND (lease_token = ? OR lease_token IS NULL OR leased_until < "+u.texts.Millis+")",
			token, lease.Milliseconds(), token)
		if _, err := q.ExecContext(ctx, u.sql.String(), u.args...); err != nil {
			return err
		}
		return p.ours(ctx, q, token)
	})
	return p.failed(ctx, doing, err)
}

// ours tells whether the token has the right to prune.
func (p pruner) ours(ctx context.Context, q Querier, token string) error {
	var found sql.NullString
	err := q.QueryRowContext(ctx, "SELECT lease_token FROM "+p.s.texts.Pruning.Marks+" WHERE consumer_name = ''"+p.s.texts.ForUpdate).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) || err == nil && found.String != token {
		return store.ErrPruning
	}
	return err
}

// Release implements store.Pruner.
func (p pruner) Release(ctx context.Context, token string) error {
	q := p.query()
	q.add("UPDATE "+q.texts.Pruning.Marks+" SET lease_token = NULL, leased_until = 0 WHERE consumer_name = '' AND lease_token = ?", token)
	_, err := p.exec(ctx, p.s.db, q)
	return p.failed(ctx, "give the right to prune back", err)
}

// mark raises a consumer's mark.
func (p pruner) mark(ctx context.Context, q Querier, consumer string, micros int64) error {
	m := p.query()
	m.add("INSERT INTO "+m.texts.Pruning.Marks+" (consumer_name, pruned_until) VALUES (?, ?) "+m.texts.Pruning.OnMark, consumer, micros)
	_, err := q.ExecContext(ctx, m.sql.String(), m.args...)
	return err
}

// Expired implements store.Pruner.
func (p pruner) Expired(ctx context.Context, rows store.Prunable, keep time.Duration) (n int64, err error) {
	err = p.inTx(ctx, func(q Querier) error {
		pl, err := p.plan(ctx, q, rows, keep)
		if err != nil {
			return err
		}
		return q.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+pl.from+" r WHERE "+pl.old(p.s.texts, "r")).Scan(&n)
	})
	return n, p.failed(ctx, fmt.Sprintf("count the %s to prune", rows), err)
}

// inTx runs f in a transaction whose session suits the pruner, on a connection
// whose session is as it was afterwards.
func (p pruner) inTx(ctx context.Context, f func(Querier) error) error {
	if p.s.invalid != nil {
		return p.s.invalid
	}
	conn, err := p.s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	before, after, local := p.s.texts.Pruning.Before, p.s.texts.Pruning.After, p.s.texts.Pruning.Local
	if before != "" {
		if _, err := conn.ExecContext(ctx, before); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.DefaultRollbackTimeout)
			defer cancel()
			if _, err := conn.ExecContext(ctx, after); err != nil {
				_ = conn.Raw(func(any) error { return driver.ErrBadConn })
			}
		}()
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	if local != "" {
		if _, err := tx.ExecContext(ctx, local); err != nil {
			return err
		}
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// failed adds what was done to an error, and says by type whose fault it is.
func (p pruner) failed(ctx context.Context, doing string, err error) error {
	var schema *store.SchemaError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrPruning), errors.As(err, &schema):
		return fmt.Errorf("%s: %w", doing, err)
	}
	return p.s.failedOn(ctx, p.s.tables.PruningMarks, p.s.texts.Pruning.Marks, doing, err)
}
