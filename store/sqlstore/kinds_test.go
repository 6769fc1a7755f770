package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	drivermysql "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// Codes alone decide: the texts are in the server's language.
func TestClassesFollowFromCodes(t *testing.T) {
	number := func(n uint16) error { return &drivermysql.MySQLError{Number: n, Message: "ein Fehler"} }
	state := func(s string) error { return &pgconn.PgError{Code: s, Message: "ein Fehler"} }
	for _, each := range []struct {
		dialect sqlstore.Dialect
		want    store.Class
		errs    []error
	}{
		{mysql.Dialect, store.ClassConflict, []error{number(1213), number(1205), number(1020), number(3572)}},
		{mysql.Dialect, store.ClassUnavailable, []error{
			number(1047), number(1053), number(1040), number(1290), number(1836), number(1021), number(1114), number(1927),
			number(1159), drivermysql.ErrInvalidConn, driver.ErrBadConn, sql.ErrConnDone,
		}},
		// A handler's own table that is missing is the handler's fault.
		{mysql.Dialect, store.ClassFailed, []error{number(1062), number(1146), number(1406), number(1305), number(1317), context.Canceled}},
		{postgres.Dialect, store.ClassConflict, []error{state("40001"), state("40P01"), state("55P03")}},
		{postgres.Dialect, store.ClassUnavailable, []error{
			state("57P01"), state("25006"), state("53100"), state("08006"), &pgconn.ConnectError{}, driver.ErrBadConn,
		}},
		{postgres.Dialect, store.ClassFailed, []error{state("23505"), state("42P01"), state("25P02"), state("22012"), context.Canceled}},
		{sqlite.Dialect, store.ClassFailed, []error{errors.New("database is locked"), context.Canceled}},
	} {
		s := sqlstore.New(nil, each.dialect)
		for _, err := range each.errs {
			if got := s.Classify(fmt.Errorf("in the handler: %w", err)); got != each.want {
				t.Errorf("%T %v is of class %v, want %v", each.dialect, err, got, each.want)
			}
		}
	}
}

// Errors of SQLite cannot be made but by SQLite.
func TestClassesOfSQLiteErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kinds.db")
	db := open(t, "file:"+path)
	s := sqlstore.New(db, sqlite.Dialect)
	writer, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for _, each := range []struct {
		dsn, statement string
		want           store.Class
	}{
		{path, "DELETE FROM processed_messages", store.ClassConflict},
		{path + "?mode=ro", "DELETE FROM processed_messages", store.ClassUnavailable},
		{path + "-nowhere/x.db", "SELECT 1", store.ClassUnavailable},
		{path, "SELECT * FROM nothing", store.ClassFailed},
		{":memory:?_pragma=max_page_count(2)", "CREATE TABLE full AS SELECT zeroblob(100000)", store.ClassUnavailable},
	} {
		other, err := sql.Open("sqlite", "file:"+each.dsn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.ExecContext(t.Context(), each.statement)
		if got := s.Classify(err); err == nil || got != each.want {
			t.Errorf("%s on %s: %v is of class %v, want %v", each.statement, each.dsn, err, got, each.want)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}
