//go:build !fast

package cli_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

func TestKeysOnServers(t *testing.T) {
	for name, open := range map[string]database{"PostgreSQL": dbtest.Postgres, "MariaDB": dbtest.MySQL} {
		t.Run(name, func(t *testing.T) { keysOn(t, open) })
	}
}
