package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/migrate"
)

// service is one of the demo's consumers.
type service struct {
	name       string
	idempotent bool
}

// The consumers. The naive ones do what the others do, without a key.
const (
	stockService        = "stock-service"
	courierService      = "courier-service"
	naiveStockService   = "naive-stock-service"
	naiveCourierService = "naive-courier-service"
)

var services = []service{{stockService, true}, {courierService, true}, {naiveStockService, false}, {naiveCourierService, false}}

// The business changes. The table of shipments has no unique key: a second
// shipment of an order would be seen, not refused.
const (
	takeStock      = `UPDATE stock SET quantity = quantity - ? WHERE sku = ?`
	takeNaiveStock = `UPDATE naive_stock SET quantity = quantity - ? WHERE sku = ?`
	ship           = `INSERT INTO shipments (order_id, label) VALUES (?, ?)`
)

// shop is the demo's database: tables in a place of their own.
type shop struct {
	db   *dburl.DB
	url  string // opens the place; with its password
	drop func(ctx context.Context) error
}

// openShop makes the place and its tables: a schema on PostgreSQL, a database
// on MySQL, a file in folder where no database is named.
func openShop(ctx context.Context, raw, run, folder string) (*shop, error) {
	if raw == "" {
		raw = "sqlite:" + folder + string(os.PathSeparator) + "shop.db"
	}
	kind, err := dburl.KindOf(raw)
	if err != nil {
		return nil, err
	}
	s := &shop{url: raw, drop: func(context.Context) error { return nil }}
	if kind == dburl.SQLite && !strings.HasPrefix(raw, "sqlite:"+folder) {
		// A file of the user's: never ours to overwrite or to delete tables in.
		path := strings.TrimPrefix(strings.TrimPrefix(raw, "sqlite:"), "//")
		if _, err := os.Stat(path); err == nil {
			return nil, fmt.Errorf("database %s: the file is there already: name one that is not, the demo makes it", raw)
		}
		s.drop = func(context.Context) error {
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(path + suffix); err != nil && !os.IsNotExist(err) {
					return err
				}
			}
			return nil
		}
	}
	if kind != dburl.SQLite {
		if s.url, s.drop, err = dburl.MakePlace(ctx, raw, "sekali_demo_"+run); err != nil {
			return nil, err
		}
	}
	if s.db, err = dburl.Open(ctx, s.url, true); err == nil {
		err = s.makeTables(ctx)
	}
	if err != nil {
		tidying, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer done()
		return nil, errors.Join(fmt.Errorf("make the shop's tables: %w", err), s.close(tidying, false))
	}
	return s, nil
}

func (s *shop) makeTables(ctx context.Context) error {
	if _, err := migrate.Up(ctx, s.db.SQL, s.db.Migrations()); err != nil {
		return err
	}
	for _, statement := range []string{
		`CREATE TABLE orders (order_id VARCHAR(20) PRIMARY KEY, sku VARCHAR(20) NOT NULL, quantity INT NOT NULL)`,
		`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`,
		`CREATE TABLE naive_stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`,
		`CREATE TABLE shipments (order_id VARCHAR(20) NOT NULL, label BIGINT NOT NULL)`,
	} {
		if _, err := s.db.SQL.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	for _, table := range []string{"stock", "naive_stock"} {
		for _, sku := range skus {
			insert := s.db.Kind.Placeholders("INSERT INTO " + table + " (sku, quantity) VALUES (?, ?)")
			if _, err := s.db.SQL.ExecContext(ctx, insert, sku, stockAtStart); err != nil {
				return err
			}
		}
	}
	return nil
}

// close drops the place, unless it is kept, and closes the database.
func (s *shop) close(ctx context.Context, keep bool) error {
	if s.db != nil {
		_ = s.db.Close()
	}
	if keep {
		return nil
	}
	if err := s.drop(ctx); err != nil {
		return fmt.Errorf("drop the demo's tables in %s: %w: drop them by hand", dburl.Redact(s.url), err)
	}
	return nil
}

// found is what the database, or the courier, says of a consumer's work.
type found struct {
	expected, found int
	exact           bool // it is right in every row, not only in sum
	keys            int  // rows in processed_messages
	letters         int  // rows in dead_letters
}

// effectOf reads a consumer's effect back, by SQL and from the courier's books.
func (s *shop) effectOf(ctx context.Context, name string, p plan, c *courier) (found, error) {
	e, err := s.businessEffect(ctx, name, p, c)
	if err == nil {
		e.keys, err = s.count(ctx, `SELECT COUNT(*) FROM processed_messages WHERE consumer_name = ?`, name)
	}
	if err == nil {
		e.letters, err = s.count(ctx, `SELECT COUNT(*) FROM dead_letters WHERE consumer_name = ?`, name)
	}
	if err != nil {
		return e, fmt.Errorf("read the effect of %s: %w", name, err)
	}
	return e, nil
}

func (s *shop) businessEffect(ctx context.Context, name string, p plan, c *courier) (found, error) {
	table := "stock"
	switch name {
	case courierService:
		return s.shipments(ctx, p, c)
	case naiveCourierService:
		labels, orders := c.sold(name)
		return found{expected: len(p.orders), found: labels, exact: labels == len(p.orders) && orders == labels}, nil
	case naiveStockService:
		table = "naive_stock"
	}
	rows, err := s.db.SQL.QueryContext(ctx, "SELECT sku, quantity FROM "+table)
	if err != nil {
		return found{}, err
	}
	defer rows.Close()
	bySKU, total := p.expected()
	e := found{expected: total, exact: true}
	for rows.Next() {
		var sku string
		var left int
		if err := rows.Scan(&sku, &left); err != nil {
			return e, err
		}
		e.found += stockAtStart - left
		e.exact = e.exact && stockAtStart-left == bySKU[sku]
	}
	return e, rows.Err()
}

// shipments: for each order exactly one label is to have been bought, and to
// be in the database.
func (s *shop) shipments(ctx context.Context, p plan, c *courier) (found, error) {
	labels, orders := c.sold(courierService)
	e := found{expected: len(p.orders), found: labels}
	var rows int
	var ordersThere, labelsThere sql.NullInt64
	err := s.db.SQL.QueryRowContext(ctx, `SELECT COUNT(*), COUNT(DISTINCT order_id), COUNT(DISTINCT label) FROM shipments`).
		Scan(&rows, &ordersThere, &labelsThere)
	e.exact = true
	for _, n := range []int{labels, orders, rows, int(ordersThere.Int64), int(labelsThere.Int64)} {
		e.exact = e.exact && n == e.expected
	}
	return e, err
}

func (s *shop) count(ctx context.Context, query string, args ...any) (n int, err error) {
	err = s.db.SQL.QueryRowContext(ctx, s.db.Kind.Placeholders(query), args...).Scan(&n)
	return n, err
}
