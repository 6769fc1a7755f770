package mysql

import (
	"testing"

	"github.com/sekali/sekali/admin"
)

// What is the server's cannot be set for a test alone.
func TestTheServersSettingsAreRead(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		want admin.Facts
	}{
		{
			"MariaDB as it comes", map[string]string{
				"version": "10.11.19-MariaDB-0+deb12u1", "tx_isolation": "REPEATABLE-READ", "read_only": "OFF", "tx_read_only": "OFF",
				"max_connections": "151", "innodb_flush_log_at_trx_commit": "1", "threads_connected": "7",
			}, admin.Facts{Database: "MariaDB 10.11.19", Isolation: "repeatable read", Connections: 151, InUse: 7},
		},
		{
			"MariaDB before 11, which old clients take for 5.5.5",
			map[string]string{"version": "5.5.5-10.11.2-MariaDB", "read_only": "0"},
			admin.Facts{Database: "MariaDB 10.11.2"},
		},
		{
			"MySQL",
			map[string]string{"version": "8.0.36", "transaction_isolation": "READ-UNCOMMITTED", "transaction_read_only": "ON"},
			admin.Facts{Database: "MySQL 8.0.36", Isolation: "read uncommitted", ReadOnly: "transaction_read_only is ON"},
		},
		{
			"a replica that flushes each second", map[string]string{
				"version": "11.4.2-MariaDB", "read_only": "NO_LOCK_NO_ADMIN", "innodb_flush_log_at_trx_commit": "0",
			}, admin.Facts{Database: "MariaDB 11.4.2", ReadOnly: "read_only is NO_LOCK_NO_ADMIN", SomewhatVolatile: "innodb_flush_log_at_trx_commit = 0"},
		},
	} {
		var got admin.Facts
		interpret(c.set, &got)
		if got.Database != c.want.Database || got.Isolation != c.want.Isolation || got.ReadOnly != c.want.ReadOnly ||
			got.SomewhatVolatile != c.want.SomewhatVolatile || got.Connections != c.want.Connections || got.InUse != c.want.InUse {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
