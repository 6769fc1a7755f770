//go:build !fast

package migrate_test

import (
	"context"
	"slices"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store"
)

func TestUpMakesTheSchemaThatIsConfigured(t *testing.T) {
	for name, open := range databases() {
		if name == "SQLite" { // its schemas are attached files
			continue
		}
		t.Run(name, func(t *testing.T) {
			d := open(t, dbtest.Empty())
			names := store.Tables{Schema: d.Schema + "_other", ProcessedMessages: "inbox"}
			drop := "DROP SCHEMA " + names.Schema
			if d.Dialect == migrate.Postgres {
				drop += " CASCADE"
			}
			t.Cleanup(func() { exec(t, d.SQL, drop) })
			for _, want := range [][]string{all, nil} {
				if got := up(t, d, migrate.WithTables(names)); !slices.Equal(got, want) {
					t.Errorf("applied %q, want %q", got, want)
				}
			}
			count(t, d.SQL, "SELECT count(*) FROM "+names.Schema+".inbox")
			count(t, d.SQL, "SELECT count(*) FROM "+names.Schema+".dead_letters")
			states, err := migrate.Status(context.Background(), d.SQL, d.Dialect, migrate.WithTables(names))
			if err != nil || len(states) != len(all) || states[0].Pending() {
				t.Errorf("status %+v, %v", states, err)
			}
		})
	}
}

func TestPostgresColumnsThatCannotTellKeysApartAreAltered(t *testing.T) {
	t.Parallel()
	d := dbtest.Postgres(t, dbtest.Empty())
	exec(t, d.SQL,
		`CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`,
		`CREATE TABLE processed_messages (consumer_name VARCHAR(20), message_key VARCHAR(300) COLLATE folding,
			processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key))`,
		insert+"('stock', 'a')")
	up(t, d)
	exec(t, d.SQL, insert+"('stock', 'A'), (repeat('n', 100), repeat('k', 300))")
	refused(t, d.SQL, insert+"('stock', 'a')")
}

func TestPostgresTableFurtherDownTheSearchPathIsNotHidden(t *testing.T) {
	t.Parallel()
	d := dbtest.Postgres(t)
	front := d.Schema + "_front"
	exec(t, d.SQL, "CREATE SCHEMA "+front)
	t.Cleanup(func() { exec(t, d.SQL, "DROP SCHEMA "+front+" CASCADE") })
	db := d.Open(map[string]string{"search_path": front + "," + d.Schema})
	if _, err := migrate.Up(context.Background(), db, d.Dialect); err == nil {
		t.Error("a second, empty table was made in front of the first")
	}
}

func TestMySQLColumnsThatCannotTellKeysApartAreAltered(t *testing.T) {
	t.Parallel()
	for name, columns := range map[string]string{
		"folding and narrow":   "consumer_name VARCHAR(20), message_key VARCHAR(50)",
		"wider":                "consumer_name VARCHAR(255), message_key VARCHAR(300)",
		"padding":              "consumer_name VARCHAR(100), message_key VARCHAR(200) COLLATE utf8mb4_bin",
		"fixed width, latin1":  "consumer_name CHAR(100) CHARACTER SET latin1, message_key CHAR(200) CHARACTER SET latin1",
		"ascii":                "consumer_name VARCHAR(100) CHARACTER SET ascii, message_key VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin",
		"in another engine":    "consumer_name VARCHAR(50), message_key VARCHAR(100)",
		"with its own columns": "consumer_name VARCHAR(100), message_key VARCHAR(200), fingerprint VARBINARY(32), note TEXT",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.MySQL(t, dbtest.Empty())
			engine := "InnoDB"
			if name == "in another engine" {
				engine = "MyISAM"
			}
			exec(t, d.SQL, "CREATE TABLE processed_messages ("+columns+", processed_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"+
				" PRIMARY KEY (consumer_name, message_key)) ENGINE="+engine, insert+"('stock', 'a')")
			up(t, d)
			exec(t, d.SQL, insert+"('stock', 'A'), ('stock', 'a '), ('stock', 'á'), (REPEAT('n', 100), REPEAT('k', 200))")
			refused(t, d.SQL, insert+"('stock', 'a')")
			if n := count(t, d.SQL, "SELECT count(*) FROM processed_messages"); n != 5 {
				t.Errorf("%d rows, want 5", n)
			}
			n := count(t, d.SQL, "SELECT count(*) FROM information_schema.tables WHERE engine = 'InnoDB' AND"+
				" table_schema = DATABASE() AND table_name = 'processed_messages'")
			if n != 1 {
				t.Error("the table is not in InnoDB, where alone transactions hold")
			}
		})
	}
}

func TestMySQLUpGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	d := dbtest.MySQL(t)
	// DDL commits by itself: the tables are there, the record is not.
	exec(t, d.SQL, "DELETE FROM sekali_migrations", "ALTER TABLE processed_messages DROP COLUMN fingerprint",
		insert+"('stock', 'a')")
	if got := up(t, d); !slices.Equal(got, all) {
		t.Errorf("applied %q, want %q", got, all)
	}
	if n := count(t, d.SQL, "SELECT count(*) FROM processed_messages WHERE fingerprint IS NULL"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}
