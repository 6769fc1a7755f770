package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

// health tells what goes on, the same code for every database.
type health struct{ letters }

// Activity implements admin.Health.
func (h health) Activity(ctx context.Context, s admin.Span) ([]admin.Bucket, error) {
	const doing = "read the activity of consumers"
	s, err := s.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	begin := "at_minute - at_minute % " + strconv.FormatInt(int64(s.Step/time.Minute), 10)
	q := h.query()
	q.add("SELECT " + begin + ", consumer_name")
	for _, c := range statColumns {
		q.add(", SUM(" + c + ")")
	}
	q.add(" FROM "+q.texts.ConsumerStats+" WHERE at_minute >= ? AND at_minute < ?", minuteFrom(s.From), minuteFrom(s.To))
	if s.Consumer != "" {
		q.add(" AND consumer_name = ?", s.Consumer)
	}
	q.add(" GROUP BY " + begin + ", consumer_name ORDER BY 1, 2")
	var buckets []admin.Bucket
	err = h.each(ctx, q, func(rows *sql.Rows) error {
		m, err := scanMinute(rows)
		buckets = append(buckets, admin.Bucket{Consumer: m.Consumer, At: m.At, Counts: m.Counts})
		return err
	})
	if err != nil {
		return nil, stats(h).failed(ctx, doing, err)
	}
	return buckets, nil
}

// Overview implements admin.Health.
func (h health) Overview(ctx context.Context) (admin.Overview, error) {
	o, err := h.Backlog(ctx)
	if err != nil {
		return o, err
	}
	err = h.read(ctx, &o, h.s.tables.ProcessedMessages, h.names)
	return o, err
}

// Backlog implements admin.Health.
func (h health) Backlog(ctx context.Context) (admin.Overview, error) {
	o := admin.Overview{DeadLetters: map[deadletter.Status]admin.Waiting{}, Effects: map[effect.State]admin.Waiting{}}
	for _, part := range []struct {
		table string
		read  func(context.Context, *admin.Overview) error
	}{
		{h.s.tables.DeadLetters, h.waitingLetters},
		{h.s.tables.ExternalEffects, h.waitingEffects},
		{h.s.tables.OutboxMessages, h.waitingEvents},
	} {
		if err := h.read(ctx, &o, part.table, part.read); err != nil {
			return o, err
		}
	}
	return o, nil
}

// read reads a part of an Overview; a table that is not there is noted.
func (h health) read(ctx context.Context, o *admin.Overview, table string, part func(context.Context, *admin.Overview) error) error {
	err := part(ctx, o)
	if err == nil {
		return nil
	}
	unfit, is := h.unfit(err, table)
	if !is {
		return err
	}
	o.Missing = append(o.Missing, unfit.Table)
	return nil
}

// unfit tells whether an error says that a table is not as it must be. SQLite
// says of a column that is missing that something is wrong.
func (h health) unfit(err error, table string) (admin.Unfit, bool) {
	var schema *store.SchemaError
	if errors.As(err, &schema) {
		return admin.Unfit{Table: schema.Table, Cause: schema.Cause, Mend: schema.Mend, SQL: schema.SQL}, true
	}
	if h.s.dialect.Kind(err) != KindLost {
		return admin.Unfit{}, false
	}
	return admin.Unfit{Table: h.s.tables.In(table), Cause: "it cannot be read: " + err.Error(), Mend: "run `sekali migrate up`, or make it anew"}, true
}

func (h health) waitingLetters(ctx context.Context, o *admin.Overview) error {
	for _, s := range []deadletter.Status{deadletter.Open, deadletter.Held, deadletter.Requested, deadletter.Waiting} {
		w, err := h.waiting(ctx, h.s.texts.DeadLetters, "first_at", "status = '"+string(s)+"'")
		if err != nil {
			return h.letters.failed(ctx, "count dead letters", err)
		}
		o.DeadLetters[s] = w
	}
	return nil
}

func (h health) waitingEffects(ctx context.Context, o *admin.Overview) error {
	for s, more := range map[effect.State]string{effect.Unknown: "", effect.Parked: "", effect.Started: " AND lease_until <= " + h.s.texts.Millis} {
		w, err := h.waiting(ctx, h.s.texts.ExternalEffects, "updated_at", "state = '"+string(s)+"'"+more)
		if err != nil {
			return effects(h).failed(ctx, "count effects", err)
		}
		o.Effects[s] = w
	}
	return nil
}

func (h health) waitingEvents(ctx context.Context, o *admin.Overview) (err error) {
	o.Outbox, err = events(h).Stats(ctx)
	return err
}

// waiting counts rows up to admin.MaxCount and looks at the first of them.
func (h health) waiting(ctx context.Context, table, at, condition string) (w admin.Waiting, err error) {
	q := h.query()
	q.add("SELECT COUNT(*) FROM (SELECT 1 AS one FROM "+table+" WHERE "+condition+" LIMIT ?) AS x", admin.MaxCount)
	if err := h.each(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&w.Count) }); err != nil || w.Count == 0 {
		return w, err
	}
	q = h.query()
	q.add("SELECT " + q.texts.Millis + " - " + q.texts.MillisOf(at) + " FROM " + table + " WHERE " + condition + " ORDER BY id LIMIT 1")
	err = h.each(ctx, q, func(rows *sql.Rows) error {
		var millis int64
		err := rows.Scan(&millis)
		w.Oldest = time.Duration(max(1, millis)) * time.Millisecond
		return err
	})
	return w, err
}

// names lists the consumers that have keys, and those that did something.
func (h health) names(ctx context.Context, o *admin.Overview) error {
	names, err := keyDesk(h).Consumers(ctx)
	if err != nil {
		return err
	}
	active, err := h.active(ctx, names)
	for _, name := range names {
		o.Consumers = append(o.Consumers, admin.Consumer{Name: name, HasKeys: true, LastActive: active[name]})
		delete(active, name)
	}
	for name, at := range active {
		o.Consumers = append(o.Consumers, admin.Consumer{Name: name, LastActive: at})
	}
	slices.SortFunc(o.Consumers, func(a, b admin.Consumer) int { return strings.Compare(a.Name, b.Name) })
	return err
}

// active returns when consumers did something last. It looks back no further
// than it must to find those that are wanted: the statistics are kept by time.
func (h health) active(ctx context.Context, wanted []string) (map[string]time.Time, error) {
	var last map[string]time.Time
	for _, back := range []time.Duration{time.Hour, 24 * time.Hour, admin.ActiveWithin} {
		last = map[string]time.Time{}
		q := h.query()
		q.add("SELECT consumer_name, MAX(at_minute) FROM "+q.texts.ConsumerStats+" WHERE at_minute >= FLOOR("+q.texts.Millis+
			" / 60000) - ? GROUP BY consumer_name", int64(back/time.Minute))
		err := h.each(ctx, q, func(rows *sql.Rows) error {
			var name string
			var minute int64
			err := rows.Scan(&name, &minute)
			last[name] = time.Unix(60*minute, 0).UTC()
			return err
		})
		if err != nil {
			return nil, stats(h).failed(ctx, "look for active consumers", err)
		}
		if len(wanted) > 0 && !slices.ContainsFunc(wanted, func(name string) bool { return last[name].IsZero() }) {
			break
		}
	}
	return last, nil
}
