//go:build !fast

package sqlstore_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/storetest"
)

func TestTheSuitePassesOnPostgreSQL(t *testing.T) {
	storetest.Run(t, harness(storetest.Postgres, postgres.Dialect, dbtest.Postgres, nil))
}

func TestTheSuitePassesOnMySQL(t *testing.T) {
	storetest.Run(t, harness(storetest.MySQL, mysql.Dialect, dbtest.MySQL, nil))
}

// The parameters that change what the server or the driver answers.
func TestTheSuitePassesOnMySQLWithOtherParameters(t *testing.T) {
	storetest.Run(t, harness(storetest.MySQL, mysql.Dialect, dbtest.MySQL, map[string]string{
		"clientFoundRows": "true", "interpolateParams": "true", "parseTime": "true",
	}))
}
