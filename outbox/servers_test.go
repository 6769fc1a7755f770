//go:build !fast

package outbox_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

func TestRelayOnPostgreSQL(t *testing.T) {
	relayTests(t, func(t *testing.T) *dbtest.DB { return dbtest.Postgres(t) })
}

func TestRelayOnMariaDB(t *testing.T) {
	relayTests(t, func(t *testing.T) *dbtest.DB { return dbtest.MySQL(t) })
}
