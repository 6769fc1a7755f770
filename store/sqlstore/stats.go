package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/sekali/sekali/store"
)

// Stats returns what consumers did, in the table consumer_stats, which sekali
// migrate makes.
func (s *Store) Stats() store.Stats { return stats{letters{s}} }

// stats is the table consumer_stats, the same code for every database.
type stats struct{ letters }

// statColumns are the columns that are counted, in the order of fields.
var statColumns = []string{
	"processed", "stale", "conflicts", "redriven", "lost_races", "redelivered", "repeated", "retries", "dead_letters",
	"age_1s", "age_10s", "age_1m", "age_10m", "age_1h", "age_6h", "age_1d", "age_3d", "age_7d", "age_14d", "age_30d", "age_more",
}

func fields(c *store.Counts) []*int64 {
	all := []*int64{
		&c.Processed, &c.Stale, &c.Conflicts, &c.Redriven, &c.LostRaces, &c.Redelivered, &c.Repeated, &c.Retries, &c.DeadLetters,
	}
	for i := range c.Ages {
		all = append(all, &c.Ages[i])
	}
	return all
}

// Add implements store.Stats.
func (st stats) Add(ctx context.Context, consumer string, c store.Counts) error {
	doing := fmt.Sprintf("add to the statistics of consumer %q", consumer)
	if st.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, st.s.invalid)
	}
	if err := store.CheckConsumer(consumer); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	q := st.query()
	q.add("INSERT INTO "+q.texts.ConsumerStats+" (at_minute, consumer_name, "+strings.Join(statColumns, ", ")+
		") VALUES (FLOOR("+q.texts.Millis+" / 60000), ?", consumer)
	for _, n := range fields(&c) {
		q.add(", ?", *n)
	}
	q.add(") " + q.texts.OnStats(statColumns...))
	if _, err := st.exec(ctx, st.s.db, q); err != nil {
		return st.failed(ctx, doing, err)
	}
	return nil
}

// Stats implements store.Stats.
func (st stats) Stats(ctx context.Context, consumer string, from, to time.Time) ([]store.Minute, error) {
	doing := fmt.Sprintf("read the statistics of consumer %q", consumer)
	if st.s.invalid != nil {
		return nil, fmt.Errorf("%s: %w", doing, st.s.invalid)
	}
	q := st.query()
	q.add("SELECT at_minute, consumer_name, "+strings.Join(statColumns, ", ")+" FROM "+q.texts.ConsumerStats+
		" WHERE at_minute >= ? AND at_minute < ?", minuteFrom(from), minuteFrom(to))
	if consumer != "" {
		q.add(" AND consumer_name = ?", consumer)
	}
	q.add(" ORDER BY at_minute, consumer_name")
	rows, err := st.s.db.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, st.failed(ctx, doing, err)
	}
	defer rows.Close()
	var minutes []store.Minute
	for rows.Next() {
		m, err := scanMinute(rows)
		if err != nil {
			return nil, st.failed(ctx, doing, err)
		}
		minutes = append(minutes, m)
	}
	if err := rows.Err(); err != nil {
		return nil, st.failed(ctx, doing, err)
	}
	return minutes, nil
}

// minuteFrom returns the first minute that does not begin before at.
func minuteFrom(at time.Time) int64 {
	minute := at.Unix() / 60
	if time.Unix(minute*60, 0).Before(at) {
		minute++
	}
	return minute
}

func scanMinute(rows *sql.Rows) (m store.Minute, err error) {
	var minute int64
	into := []any{&minute, &m.Consumer}
	for _, n := range fields(&m.Counts) {
		into = append(into, n)
	}
	err = rows.Scan(into...)
	m.At = time.Unix(60*minute, 0).UTC()
	return m, err
}

// Check implements store.Stats.
func (st stats) Check(ctx context.Context) error {
	_, err := st.Stats(ctx, "", time.Time{}, time.Time{})
	return err
}

func (st stats) failed(ctx context.Context, doing string, err error) error {
	return st.s.failedOn(ctx, st.s.tables.ConsumerStats, st.s.texts.ConsumerStats, doing, err)
}
