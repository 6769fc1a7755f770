//go:build !fast

package cli_test

import (
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

func TestTheDoctorOnPostgreSQL(t *testing.T) { doctorOn(t, dbtest.Postgres) }

func TestTheDoctorOnMariaDB(t *testing.T) { doctorOn(t, dbtest.MySQL) }
