//go:build !fast

package retention_test

import (
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

func databases() map[string]database {
	return map[string]database{
		"SQLite": onSQLite, "PostgreSQL": {dbtest.Postgres, postgres.Dialect}, "MariaDB": {dbtest.MySQL, mysql.Dialect},
	}
}
