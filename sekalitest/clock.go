package sekalitest

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store"
)

// Elapse lets time pass: Sekali goes by the database's clock, so what is
// recorded in Sekali's tables becomes older by d, which is the same. Leases
// (of an effect whose process died, of a dead letter) are over when they had
// less left; keys are old enough to be pruned; an effect's Repeat window closes.
// Counts by the minute (consumer_stats) stay, and so do the tables of the
// business. db is a *sql.DB on SQLite, PostgreSQL, MySQL or MariaDB, or a pool
// from Postgres, and nothing runs on it meanwhile. d is at least a millisecond.
func Elapse[DB *sql.DB | *pgxpool.Pool](t testing.TB, db DB, d time.Duration) {
	t.Helper()
	var a aged
	switch db := any(db).(type) {
	case *sql.DB:
		a.db = db
	case *pgxpool.Pool:
		a.db, a.dialect = stdlib.OpenDBFromPool(db), migrate.Postgres
		defer a.db.Close() // the pool stays open
	}
	if err := a.elapse(context.Background(), d); err != nil {
		t.Fatalf("let %v pass: %v", d, err)
	}
}

// aged is a database in which time can pass. Its dialect is found out if it is
// not known.
type aged struct {
	db      *sql.DB
	dialect migrate.Dialect
}

// dialectOf finds out which database it is, by what only one of them knows.
func dialectOf(ctx context.Context, db *sql.DB) migrate.Dialect {
	for dialect, query := range map[migrate.Dialect]string{migrate.SQLite: "SELECT sqlite_version()", migrate.MySQL: "SELECT @@version"} {
		if rows, err := db.QueryContext(ctx, query); err == nil {
			_ = rows.Close()
			return dialect
		}
	}
	return migrate.Postgres
}

// register has a world know its databases, so that what a handler waits for
// can pass at once.
func register(t testing.TB, a aged) {
	if s, ok := t.(*scope); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.databases = append(s.databases, a)
	}
}

func (s *scope) elapse(d time.Duration) {
	s.mu.Lock()
	list := s.databases
	s.mu.Unlock()
	for _, a := range list {
		if err := a.elapse(context.Background(), d); err != nil {
			s.Errorf("sekalitest: let %v pass: %v", d, err)
		}
	}
}

func (a aged) elapse(ctx context.Context, d time.Duration) error {
	if a.dialect == "" {
		a.dialect = dialectOf(ctx, a.db)
	}
	for _, table := range tables() {
		columns, err := a.times(ctx, table)
		if err != nil {
			return err
		}
		var set []string
		for name, kind := range columns {
			if expression := a.older(name, kind, d); expression != "" {
				set = append(set, name+" = "+expression)
			}
		}
		if len(set) == 0 {
			continue
		}
		if _, err := a.db.ExecContext(ctx, "UPDATE "+table+" SET "+strings.Join(set, ", ")); err != nil {
			return fmt.Errorf("table %s: %w", table, err)
		}
	}
	return nil
}

// tables returns the names of Sekali's tables.
func tables() (names []string) {
	all := store.Tables{}.WithDefaults()
	for _, v := range reflect.ValueOf(all).Fields() {
		if v.Kind() == reflect.String && v.String() != "" {
			names = append(names, v.String())
		}
	}
	return append(names, all.OutboxMessages+"_lanes", all.OutboxMessages+"_relays")
}

// times returns the columns of a table that may be times, and their types;
// none if there is no such table.
func (a aged) times(ctx context.Context, table string) (map[string]string, error) {
	query := map[migrate.Dialect]string{
		migrate.SQLite:   "SELECT name, type FROM pragma_table_info(?)",
		migrate.MySQL:    "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ? AND table_schema = DATABASE()",
		migrate.Postgres: "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1 AND table_schema = current_schema()",
	}[a.dialect]
	rows, err := a.db.QueryContext(ctx, query, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns := map[string]string{}
	for rows.Next() {
		var name, kind string
		if err := rows.Scan(&name, &kind); err != nil {
			return nil, err
		}
		columns[name] = strings.ToLower(kind)
	}
	return columns, rows.Err()
}

// older returns what a column becomes when time passes; empty: it is no time.
// Numbers are milliseconds since 1970, and 0 is never.
func (a aged) older(name, kind string, d time.Duration) string {
	ms := d.Milliseconds()
	switch {
	case strings.HasPrefix(kind, "timestamp") && a.dialect == migrate.SQLite:
		return fmt.Sprintf("coalesce(strftime('%%Y-%%m-%%d %%H:%%M:%%f', %s, '-%d.%03d seconds'), %s)", name, ms/1000, ms%1000, name)
	case a.dialect == migrate.MySQL && (kind == "timestamp" || kind == "datetime"):
		return fmt.Sprintf("%s - INTERVAL %d MICROSECOND", name, d.Microseconds())
	case strings.HasPrefix(kind, "timestamp"):
		return fmt.Sprintf("%s - interval '%d milliseconds'", name, ms)
	case !strings.HasSuffix(kind, "int") && kind != "integer":
		return ""
	case strings.HasSuffix(name, "_at"), strings.HasSuffix(name, "_until"), name == "not_before":
		return fmt.Sprintf("CASE WHEN %s = 0 THEN 0 ELSE %s - %d END", name, name, ms)
	}
	return ""
}
