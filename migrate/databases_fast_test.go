//go:build fast

package migrate_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

func databases() map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB {
	return map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{"SQLite": dbtest.SQLite}
}
