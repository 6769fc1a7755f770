//go:build fast

package run_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

var databases = map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{"SQLite": dbtest.SQLite}
