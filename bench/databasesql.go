package bench

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store/sqlstore"
)

// db is MariaDB, MySQL or SQLite through database/sql.
type db struct {
	kind    dburl.Kind
	dialect sqlstore.Dialect
	sql     *sql.DB
	store   *sqlstore.Store
	inbox   *sekali.Inbox[*sql.Tx]
	url     string
}

const (
	sqlInsert = `INSERT INTO processed_messages (consumer_name, message_key) VALUES (?, ?)`
	sqlUpdate = `UPDATE stock SET quantity = quantity - 1 WHERE sku = ?`
)

func newDB(d *dburl.DB, url string) *db {
	s := sqlstore.New(d.SQL, d.Dialect())
	return &db{d.Kind, d.Dialect(), d.SQL, s, sekali.NewInbox(s, consumer), url}
}

func (d *db) handwritten(ctx context.Context, o order) error {
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, sqlInsert, consumer, o.key); err != nil {
		if d.dialect.Kind(err) == sqlstore.KindDuplicate {
			return nil // processed before
		}
		return err
	}
	if _, err := tx.ExecContext(ctx, sqlUpdate, skuName(o.sku)); err != nil {
		return err
	}
	return tx.Commit()
}

func (d *db) check(ctx context.Context, o order) error {
	var seen int
	err := d.sql.QueryRowContext(ctx, `SELECT COUNT(*) FROM processed_messages WHERE consumer_name = ? AND message_key = ?`, consumer, o.key).Scan(&seen)
	if err != nil || seen > 0 {
		return err
	}
	return d.handwritten(ctx, o)
}

func (d *db) process(ctx context.Context, o order) error {
	_, err := d.inbox.Process(ctx, o.key, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, sqlUpdate, skuName(o.sku))
		return err
	})
	return err
}

// many takes stock for several skus in one statement.
func (d *db) many(ctx context.Context, tx *sql.Tx, c counted) error {
	args := make([]any, 0, 2*len(c.skus))
	for i := range c.skus {
		args = append(args, c.skus[i], c.n[i])
	}
	var q string
	if d.kind == dburl.SQLite {
		q = `WITH x (sku, n) AS (VALUES ` + strings.TrimSuffix(strings.Repeat("(?, ?), ", len(c.skus)), ", ") +
			`) UPDATE stock SET quantity = quantity - x.n FROM x WHERE stock.sku = x.sku`
	} else {
		q = `UPDATE stock JOIN (SELECT ? AS sku, ? AS n` + strings.Repeat(` UNION ALL SELECT ?, ?`, len(c.skus)-1) +
			`) AS x ON stock.sku = x.sku SET stock.quantity = stock.quantity - x.n`
	}
	_, err := tx.ExecContext(ctx, q, args...)
	return err
}

func (d *db) limit(ctx context.Context, all []order) error {
	slices.SortFunc(all, func(a, b order) int { return strings.Compare(a.key, b.key) })
	all = slices.CompactFunc(all, func(a, b order) bool { return a.key == b.key })
	args := make([]any, 0, 2*len(all))
	skus := make(map[string]int, len(all))
	for _, o := range all {
		args = append(args, consumer, o.key)
		skus[o.key] = o.sku
	}
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	values := strings.TrimSuffix(strings.Repeat("(?, ?), ", len(all)), ", ")
	insert := `INSERT IGNORE INTO processed_messages (consumer_name, message_key) VALUES ` + values + ` RETURNING message_key`
	if d.kind == dburl.SQLite {
		insert = `INSERT INTO processed_messages (consumer_name, message_key) VALUES ` + values + ` ON CONFLICT DO NOTHING RETURNING message_key`
	}
	rows, err := tx.QueryContext(ctx, insert, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var fresh []string
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return err
		}
		fresh = append(fresh, key)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := d.many(ctx, tx, count(len(fresh), func(i int) string { return skuName(skus[fresh[i]]) })); err != nil {
		return err
	}
	return tx.Commit()
}

func (d *db) consume(ctx context.Context, c Case, source *feed) error {
	if c.Mode == FromFile {
		return fromFile(ctx, d.url, c, source)
	}
	return consumeBy(ctx, c, d.store, source, func(cfg *sekali.Config[*sql.Tx]) {
		if c.Mode == Handle {
			cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
				_, err := tx.ExecContext(ctx, sqlUpdate, skuOf(m))
				return err
			}
			return
		}
		cfg.HandleBatch = func(ctx context.Context, tx *sql.Tx, all []*sekali.Message) error {
			return d.many(ctx, tx, count(len(all), func(i int) string { return skuOf(all[i]) }))
		}
	})
}

func (d *db) keep(ctx context.Context, n int, ordered bool) error {
	for _, q := range []string{`DELETE FROM stock`, `DELETE FROM processed_messages`} {
		if _, err := d.sql.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	tx, err := d.sql.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for i := range skus {
		if _, err := tx.ExecContext(ctx, `INSERT INTO stock VALUES (?, 1000000000)`, skuName(i)); err != nil {
			return err
		}
	}
	const step = 1000
	f := newFeed(Case{TimeOrder: ordered}, 0)
	for from := 0; from < n; from += step {
		args := make([]any, 0, 2*step)
		for range min(step, n-from) {
			args = append(args, consumer, f.key())
		}
		q := `INSERT INTO processed_messages (consumer_name, message_key) VALUES ` + strings.TrimSuffix(strings.Repeat("(?, ?), ", len(args)/2), ", ")
		if _, err := tx.ExecContext(ctx, q, args...); err != nil {
			return fmt.Errorf("insert kept rows: %w", err)
		}
	}
	return tx.Commit()
}
