package retention_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

type database struct {
	open    func(testing.TB, ...dbtest.Option) *dbtest.DB
	dialect sqlstore.Dialect
}

var onSQLite = database{dbtest.SQLite, sqlite.Dialect}
