package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/store"
)

// keyDesk is processed_messages for people, the same code for every database.
type keyDesk struct{ letters }

// with runs f with what the statements about the table depend on.
func (k keyDesk) with(ctx context.Context, doing string, f func(*sql.Conn, DeskTexts, Shape) error) error {
	if k.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, k.s.invalid)
	}
	dialect, ok := k.s.dialect.(DeskDialect)
	if !ok {
		return fmt.Errorf("%s: %w: the dialect has no method Desk", doing, errors.ErrUnsupported)
	}
	return k.s.onConn(ctx, doing, func(conn *sql.Conn) error {
		shape, err := k.s.checked(ctx, conn)
		if err != nil {
			return err
		}
		return f(conn, dialect.Desk(shape), shape)
	})
}

// Consumers implements admin.Keys. The next name is found by the index, where
// DISTINCT would read all of it.
func (k keyDesk) Consumers(ctx context.Context) (names []string, err error) {
	err = k.with(ctx, "list the consumers that have keys", func(conn *sql.Conn, d DeskTexts, _ Shape) error {
		names, err = k.consumers(ctx, conn, d, "")
		return err
	})
	return names, err
}

// consumers returns the names from from on.
func (k keyDesk) consumers(ctx context.Context, conn *sql.Conn, d DeskTexts, from string) (names []string, err error) {
	for than := " >= ?"; len(names) < admin.MaxConsumers; than = " > ?" {
		q := k.query()
		q.add("SELECT consumer_name FROM "+q.texts.ProcessedMessages+" WHERE consumer_name"+d.Exact+than+
			" ORDER BY consumer_name"+d.Exact+" LIMIT 1", from)
		err := conn.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&from)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, err
		}
		names = append(names, from)
	}
	return names, nil
}

// Find implements admin.Keys.
func (k keyDesk) Find(ctx context.Context, key string) (found []admin.Key, err error) {
	err = k.with(ctx, "look for a key of all consumers", func(conn *sql.Conn, d DeskTexts, sh Shape) error {
		found = nil
		consumers, err := k.consumers(ctx, conn, d, "")
		if err != nil {
			return err
		}
		for _, consumer := range consumers {
			for i, form := range admin.Forms(key) {
				rows, err := k.rows(ctx, conn, d, sh, " WHERE consumer_name"+d.Exact+" = ? AND message_key"+d.Exact+" = ?", consumer, form)
				if err != nil {
					return err
				}
				if i == 0 && len(rows) > 0 {
					rows[0].Raw = key
				}
				found = append(found, rows...)
			}
		}
		return nil
	})
	return found, err
}

// List implements admin.Keys.
func (k keyDesk) List(ctx context.Context, f admin.KeyFilter) (found []admin.Key, err error) {
	if f.Limit <= 0 {
		f.Limit = admin.DefaultLimit
	}
	err = k.with(ctx, "list keys", func(conn *sql.Conn, d DeskTexts, sh Shape) error {
		found = nil
		consumers := []string{f.Consumer}
		if f.Consumer == "" {
			if consumers, err = k.consumers(ctx, conn, d, f.After.Consumer); err != nil {
				return err
			}
		}
		for _, consumer := range consumers {
			after := "" // no key is empty
			if consumer == f.After.Consumer {
				after = f.After.Stored
			}
			rows, err := k.rows(ctx, conn, d, sh, " WHERE consumer_name"+d.Exact+" = ? AND message_key"+d.Exact+" > ? ORDER BY consumer_name"+
				d.Exact+", message_key"+d.Exact+" LIMIT ?", consumer, after, f.Limit-len(found))
			if err != nil {
				return err
			}
			if found = append(found, rows...); len(found) >= f.Limit {
				break
			}
		}
		return nil
	})
	return found, err
}

func (k keyDesk) rows(ctx context.Context, conn *sql.Conn, d DeskTexts, sh Shape, condition string, args ...any) (all []admin.Key, err error) {
	fingerprint := "NULL"
	if sh.Fingerprint {
		fingerprint = "fingerprint"
	}
	q := k.query()
	q.add("SELECT consumer_name, message_key, "+d.Micros+", "+fingerprint+" FROM "+q.texts.ProcessedMessages+condition, args...)
	rows, err := conn.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key admin.Key
		var micros sql.NullInt64
		if err := rows.Scan(&key.Consumer, &key.Stored, &micros, &key.Fingerprint); err != nil {
			return nil, err
		}
		if micros.Valid {
			key.ProcessedAt = time.UnixMicro(micros.Int64).UTC()
		}
		all = append(all, key)
	}
	return all, rows.Err()
}

const microsADay = 24 * 60 * 60 * 1_000_000

// Days implements admin.Keys.
func (k keyDesk) Days(ctx context.Context, consumer string) (days []admin.Day, err error) {
	err = k.with(ctx, "count keys", func(conn *sql.Conn, d DeskTexts, _ Shape) error {
		days = nil
		begin := "(" + d.Micros + ") - (" + d.Micros + ") % " + strconv.Itoa(microsADay)
		q := k.query()
		q.add("SELECT consumer_name, " + begin + ", COUNT(*) FROM " + q.texts.ProcessedMessages)
		if consumer != "" {
			q.add(" WHERE consumer_name"+d.Exact+" = ?", consumer)
		}
		q.add(" GROUP BY consumer_name, " + begin + " ORDER BY 1, 2")
		rows, err := conn.QueryContext(ctx, q.sql.String(), q.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var day admin.Day
			var micros sql.NullInt64
			if err := rows.Scan(&day.Consumer, &micros, &day.Rows); err != nil {
				return err
			}
			if micros.Valid {
				day.Day = time.UnixMicro(micros.Int64).UTC()
			}
			days = append(days, day)
		}
		return rows.Err()
	})
	return days, err
}

// Forget implements admin.Keys.
func (k keyDesk) Forget(ctx context.Context, keys []admin.Key, d admin.Decision) (gone int, err error) {
	const doing = "forget keys"
	switch {
	case d.By == "":
		return 0, fmt.Errorf("%s: say who decides (Decision.By)", doing)
	case len(keys) > admin.MaxForget:
		return 0, fmt.Errorf("%s: %d at once: %d at most", doing, len(keys), admin.MaxForget)
	}
	var texts DeskTexts
	if err := k.with(ctx, doing, func(_ *sql.Conn, d DeskTexts, _ Shape) error { texts = d; return nil }); err != nil {
		return 0, err
	}
	// In the order in which claims lock.
	keys = slices.Clone(keys)
	slices.SortFunc(keys, byRow)
	err = k.repeated(ctx, func(tx *sql.Tx) error {
		gone = 0
		for _, key := range keys {
			q := k.query()
			q.add("DELETE FROM "+q.texts.ProcessedMessages+" WHERE consumer_name"+texts.Exact+" = ? AND message_key"+texts.Exact+" = ?", key.Consumer, key.Stored)
			n, err := k.exec(ctx, tx, q)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			gone++
			if err := k.note(ctx, tx, "forget key", key, d.By, d.Note); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, k.failed(ctx, doing, err)
	}
	return gone, nil
}

// byRow compares by the primary key.
func byRow(a, b admin.Key) int {
	if a.Consumer != b.Consumer {
		if a.Consumer < b.Consumer {
			return -1
		}
		return 1
	}
	switch {
	case a.Stored < b.Stored:
		return -1
	case a.Stored > b.Stored:
		return 1
	}
	return 0
}

// note adds an entry about a key, or about none, to the audit trail.
func (k keyDesk) note(ctx context.Context, tx *sql.Tx, action string, key admin.Key, by, detail string) error {
	var stored, raw any
	if key.Stored != "" {
		stored = key.Stored
	}
	if key.Raw != "" && store.StoredKey(key.Raw) == key.Stored {
		raw = []byte(key.Raw)
	}
	return k.entry(ctx, tx, trailEntry{by: by, action: action, consumer: key.Consumer, stored: stored, raw: raw, detail: detail})
}

// failed tells which of two tables is not as it must be.
func (k keyDesk) failed(ctx context.Context, doing string, err error) error {
	if checked := k.s.Check(ctx); checked != nil {
		return k.s.failed(ctx, doing, k.s.db, err)
	}
	return k.failedOnTrail(ctx, doing, err)
}
