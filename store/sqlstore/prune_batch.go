package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sekali/sekali/store"
)

// seen is a row that a batch looked at.
type seen struct {
	consumer, key string // or the number, as text
	old           bool
	micros        int64
}

// Prune implements store.Pruner. Before anything else it locks the pruner's row,
// so that two pruners, of which one lost its right unawares, cannot work at
// once; then it raises marks, and then it removes. So it waits for nobody while
// it holds rows.
func (p pruner) Prune(ctx context.Context, b store.PruneBatch) (done store.Pruned, err error) {
	doing := fmt.Sprintf("prune %s", b.Rows)
	if b.Size < 1 {
		return done, fmt.Errorf("%s: a batch of %d rows: use 1 or more", doing, b.Size)
	}
	err = p.inTx(ctx, func(q Querier) error {
		u := p.query()
		u.add("UPDATE "+u.texts.Pruning.Marks+" SET leased_until = "+u.texts.Millis+" + ? WHERE consumer_name = '' AND lease_token = ?",
			b.Lease.Milliseconds(), b.Token)
		if _, err := q.ExecContext(ctx, u.sql.String(), u.args...); err != nil {
			return err
		}
		if err := p.ours(ctx, q, b.Token); err != nil {
			return err
		}
		pl, err := p.plan(ctx, q, b.Rows, b.Keep)
		if err != nil {
			return err
		}
		done, err = p.batch(ctx, q, pl, b)
		return err
	})
	if err != nil {
		return store.Pruned{}, p.failed(ctx, doing, err)
	}
	return done, nil
}

func (p pruner) batch(ctx context.Context, q Querier, pl plan, b store.PruneBatch) (store.Pruned, error) {
	found, done, err := p.next(ctx, q, pl, b)
	if err != nil {
		return store.Pruned{}, err
	}
	old := slices.DeleteFunc(found, func(s seen) bool { return !s.old })
	if b.Rows == store.PruneKeys {
		for consumer, micros := range youngest(old) {
			if err := p.mark(ctx, q, consumer, micros); err != nil {
				return store.Pruned{}, err
			}
		}
	}
	done.Removed, err = p.delete(ctx, q, pl, old)
	return done, err
}

// youngest returns when the youngest row of each consumer was processed.
func youngest(rows []seen) map[string]int64 {
	marks := map[string]int64{}
	for _, r := range rows {
		marks[r.consumer] = max(marks[r.consumer], r.micros)
	}
	return marks
}

// next looks at the rows of a batch: the oldest where an index tells them, else
// along the primary key.
func (p pruner) next(ctx context.Context, q Querier, pl plan, b store.PruneBatch) ([]seen, store.Pruned, error) {
	old := pl.old(p.s.texts, "r")
	if pl.inOrder != "" {
		s := p.query()
		s.add("SELECT r.consumer_name, r."+pl.key[1]+", 1, "+pl.micros+" FROM "+pl.from+" r WHERE "+old+
			" ORDER BY r."+pl.inOrder+" LIMIT ?", b.Size)
		found, err := look(ctx, q, s)
		return found, store.Pruned{More: len(found) == b.Size}, err
	}
	flag := "CASE WHEN " + old + " THEN 1 ELSE 0 END"
	if len(pl.key) == 1 {
		return p.nextByNumber(ctx, q, pl, b, flag)
	}
	return p.nextByConsumer(ctx, q, pl, b, flag)
}

func (p pruner) nextByNumber(ctx context.Context, q Querier, pl plan, b store.PruneBatch, flag string) ([]seen, store.Pruned, error) {
	after, err := int64(0), error(nil)
	if b.From.Key != "" {
		if after, err = strconv.ParseInt(b.From.Key, 10, 64); err != nil {
			return nil, store.Pruned{}, fmt.Errorf("go on from %q: %w", b.From.Key, err)
		}
	}
	s := p.query()
	s.add("SELECT '', r.id, "+flag+", 0 FROM "+pl.from+" r WHERE r.id > ? ORDER BY r.id LIMIT ?", after, b.Size)
	found, err := look(ctx, q, s)
	if err != nil || len(found) < b.Size {
		return found, store.Pruned{}, err
	}
	return found, store.Pruned{More: true, Next: store.PrunePlace{Key: found[len(found)-1].key}}, nil
}

// nextByConsumer walks the keys of one consumer after another: a condition on
// both columns at once is more than some databases use an index for.
func (p pruner) nextByConsumer(ctx context.Context, q Querier, pl plan, b store.PruneBatch, flag string) ([]seen, store.Pruned, error) {
	from := b.From
	if from == (store.PrunePlace{}) {
		first, err := p.consumerAfter(ctx, q, pl, "")
		if err != nil || first == "" {
			return nil, store.Pruned{}, err
		}
		from.Consumer = first
	}
	s := p.query()
	column := "r." + pl.key[1]
	s.add("SELECT r.consumer_name, "+column+", "+flag+", "+pl.micros+" FROM "+pl.from+" r WHERE r.consumer_name = ? AND "+column+" > ?"+
		" ORDER BY "+column+" LIMIT ?", from.Consumer, from.Key, b.Size)
	found, err := look(ctx, q, s)
	switch {
	case err != nil:
		return nil, store.Pruned{}, err
	case len(found) == b.Size:
		return found, store.Pruned{More: true, Next: store.PrunePlace{Consumer: from.Consumer, Key: found[len(found)-1].key}}, nil
	}
	next, err := p.consumerAfter(ctx, q, pl, from.Consumer)
	return found, store.Pruned{More: next != "", Next: store.PrunePlace{Consumer: next}}, err
}

// consumerAfter returns the next consumer that has rows; empty if none has.
func (p pruner) consumerAfter(ctx context.Context, q Querier, pl plan, consumer string) (string, error) {
	s := p.query()
	s.add("SELECT r.consumer_name FROM "+pl.from+" r WHERE r.consumer_name > ? ORDER BY r.consumer_name LIMIT 1", consumer)
	var next string
	err := q.QueryRowContext(ctx, s.sql.String(), s.args...).Scan(&next)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return next, err
}

func look(ctx context.Context, q Querier, s *query) ([]seen, error) {
	rows, err := q.QueryContext(ctx, s.sql.String(), s.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []seen
	for rows.Next() {
		var one seen
		var old int
		if err := rows.Scan(&one.consumer, &one.key, &old, &one.micros); err != nil {
			return nil, err
		}
		one.old = old != 0
		found = append(found, one)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return found, rows.Close()
}

// delete removes rows by their primary keys, if they are still to go: a range
// would lock what lies between them.
func (p pruner) delete(ctx context.Context, q Querier, pl plan, old []seen) (removed int, err error) {
	of := map[string][]any{}
	for _, r := range old {
		var key any = r.key
		if pl.number() {
			if key, err = strconv.ParseInt(r.key, 10, 64); err != nil {
				return removed, err
			}
		}
		of[r.consumer] = append(of[r.consumer], key)
	}
	for consumer, keys := range of {
		for some := range slices.Chunk(keys, unclaimAtOnce) {
			d := p.query()
			d.add("DELETE FROM " + pl.from + " WHERE ")
			if len(pl.key) > 1 {
				d.add("consumer_name = ? AND ", consumer)
			}
			d.add(in(pl.key[len(pl.key)-1], len(some))+" AND "+pl.old(p.s.texts, pl.from), some...)
			result, err := q.ExecContext(ctx, d.sql.String(), d.args...)
			if err != nil {
				return removed, err
			}
			n, err := result.RowsAffected()
			if err != nil {
				return removed, err
			}
			removed += int(n)
		}
	}
	return removed, nil
}
