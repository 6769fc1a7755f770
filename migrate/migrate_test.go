package migrate_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/store"
)

// all are the files, oldest first.
var all = []string{"00001_processed_messages.sql", "00002_dead_letters.sql", "00003_message_starts.sql", "00004_audit_trail.sql", "00005_external_effects.sql", "00006_entity_versions.sql", "00007_outbox.sql", "00008_retention.sql", "00009_consumer_stats.sql"}

// onEach runs a test on an empty schema of each database.
func onEach(t *testing.T, f func(t *testing.T, d *dbtest.DB)) {
	t.Parallel()
	for name, open := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t, dbtest.Empty()))
		})
	}
}

func up(t *testing.T, d *dbtest.DB, opts ...migrate.Option) []string {
	t.Helper()
	applied, err := migrate.Up(context.Background(), d.SQL, d.Dialect, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return namesOf(applied)
}

func namesOf(applied []migrate.Applied) []string {
	var names []string
	for _, a := range applied {
		names = append(names, a.Name)
	}
	return names
}

func exec(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func count(t *testing.T, db *sql.DB, query string) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func refused(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement); err == nil {
		t.Errorf("%s: was not refused", statement)
	}
}

const insert = "INSERT INTO processed_messages (consumer_name, message_key) VALUES "

func TestUpMakesTheTablesAndASecondUpChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		if got := up(t, d); !slices.Equal(got, all) {
			t.Errorf("applied %q, want %q", got, all)
		}
		exec(t, d.SQL, insert+"('stock', 'a')")
		if got := up(t, d); len(got) != 0 {
			t.Errorf("the second time applied %q", got)
		}
		if n := count(t, d.SQL, "SELECT count(*) FROM processed_messages WHERE processed_at IS NOT NULL AND fingerprint IS NULL"); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
		count(t, d.SQL, "SELECT count(*) FROM dead_letters")
	})
}

func TestKeysOfNewTablesCompareByteForByte(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		up(t, d)
		exec(t, d.SQL, insert+"('stock', 'a'), ('stock', 'A'), ('stock', 'a '), ('stock', 'á'), ('Stock', 'a')")
		refused(t, d.SQL, insert+"('stock', 'a')")
	})
}

func TestUpOverATableMadeByHandKeepsItsRows(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		exec(t, d.SQL, `CREATE TABLE processed_messages (
			consumer_name VARCHAR(100), message_key VARCHAR(200), processed_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
			PRIMARY KEY (consumer_name, message_key))`,
			insert+"('stock', 'a'), ('stock', 'b')")
		if got := up(t, d); !slices.Equal(got, all) {
			t.Errorf("applied %q, want %q", got, all)
		}
		if n := count(t, d.SQL, "SELECT count(*) FROM processed_messages WHERE fingerprint IS NULL"); n != 2 {
			t.Errorf("%d rows are left of 2", n)
		}
		refused(t, d.SQL, insert+"('stock', 'a')")
		exec(t, d.SQL, insert+"('stock', 'A'), ('stock', 'a ')")
	})
}

func TestUpAfterPrintedSQLFindsNothingToChange(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		var b strings.Builder
		if err := migrate.Print(&b, d.Dialect); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "goose") || strings.Contains(b.String(), "{{") || strings.Contains(b.String(), "DROP") {
			t.Errorf("not plain SQL:\n%s", b.String())
		}
		run := func() {
			for _, statement := range split(b.String()) {
				execOn(t, d.SQL, statement)
			}
		}
		// User variables and PREPARE belong to a session.
		d.SQL.SetMaxOpenConns(1)
		run()
		run()
		exec(t, d.SQL, insert+"('stock', 'a')")
		if got := up(t, d); !slices.Equal(got, all) {
			t.Errorf("recorded %q, want %q", got, all)
		}
		refused(t, d.SQL, insert+"('stock', 'a')")
	})
}

func execOn(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// split cuts a script as a client does: at semicolons that end a line, but not
// inside of a body in dollar quotes.
func split(script string) []string {
	var statements []string
	var b strings.Builder
	quoted := false
	for line := range strings.Lines(script) {
		b.WriteString(line)
		if strings.Contains(line, "$sekali$") {
			quoted = !quoted
		}
		if !quoted && strings.HasSuffix(strings.TrimSpace(line), ";") {
			statements = append(statements, b.String())
			b.Reset()
		}
	}
	return statements
}

func TestDownTakesBackOneStepAtATime(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		ctx := context.Background()
		if applied, err := migrate.Down(ctx, d.SQL, d.Dialect); err != nil || len(applied) != 0 {
			t.Fatalf("down on an empty schema: %v, %v", applied, err)
		}
		up(t, d)
		backwards := slices.Clone(all)
		slices.Reverse(backwards)
		for _, want := range append(backwards, "") {
			applied, err := migrate.Down(ctx, d.SQL, d.Dialect)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(namesOf(applied), ","); got != want {
				t.Errorf("took back %q, want %q", got, want)
			}
		}
		refused(t, d.SQL, "DELETE FROM processed_messages")
		refused(t, d.SQL, "DELETE FROM dead_letters")
		refused(t, d.SQL, "DELETE FROM message_starts")
		refused(t, d.SQL, "DELETE FROM audit_trail")
		refused(t, d.SQL, "DELETE FROM external_effects")
		refused(t, d.SQL, "DELETE FROM entity_versions")
		refused(t, d.SQL, "DELETE FROM consumer_stats")
		refused(t, d.SQL, "DELETE FROM pruning_marks")
		if got := up(t, d); !slices.Equal(got, all) {
			t.Errorf("applied %q after all was taken back, want %q", got, all)
		}
	})
}

func TestStatusTellsWhatIsPendingAndChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		check := func(applied int) {
			t.Helper()
			states, err := migrate.Status(context.Background(), d.SQL, d.Dialect)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range states {
				if s.Name != all[i] || fmt.Sprintf("%05d", s.Version) != all[i][:5] || s.Pending() != (i >= applied) {
					t.Errorf("migration %d: %+v", i, s)
				}
				if age := time.Since(s.AppliedAt); !s.Pending() && (age < -5*time.Second || age > time.Minute) {
					t.Errorf("%s was applied at %v, %v ago", s.Name, s.AppliedAt, age)
				}
			}
			if len(states) != len(all) {
				t.Errorf("%d migrations, want %d", len(states), len(all))
			}
		}
		check(0)
		refused(t, d.SQL, "DELETE FROM sekali_migrations")
		up(t, d)
		check(len(all))
		if _, err := migrate.Down(context.Background(), d.SQL, d.Dialect); err != nil {
			t.Fatal(err)
		}
		check(len(all) - 1)
	})
}

func TestTablesCanBeRenamedTwiceInOneSchema(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		// Key words and the longest names.
		for _, names := range []store.Tables{
			{ProcessedMessages: "order", DeadLetters: "group"},
			{ProcessedMessages: strings.Repeat("p", 48), DeadLetters: strings.Repeat("d", 48)},
			{},
		} {
			if got := up(t, d, migrate.WithTables(names)); !slices.Equal(got, all) {
				t.Errorf("%+v: applied %q, want %q", names, got, all)
			}
			names = names.WithDefaults()
			quote := `"`
			if d.Dialect == migrate.MySQL {
				quote = "`"
			}
			count(t, d.SQL, "SELECT count(*) FROM "+quote+names.ProcessedMessages+quote)
			count(t, d.SQL, "SELECT count(*) FROM "+quote+names.DeadLetters+quote)
		}
	})
}

func TestTwoUpsAtOnceBothEndWell(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		const processes = 8
		var done sync.WaitGroup
		var mu sync.Mutex
		var applied []string
		start := make(chan struct{})
		for range processes {
			db := d.Open(nil)
			done.Go(func() {
				<-start
				a, err := migrate.Up(context.Background(), db, d.Dialect)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				applied = append(applied, namesOf(a)...)
			})
		}
		close(start)
		done.Wait()
		slices.Sort(applied)
		if !slices.Equal(applied, all) {
			t.Errorf("%d processes applied %q together, want %q", processes, applied, all)
		}
	})
}

func TestUpNeedsOneConnection(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		d.SQL.SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := migrate.Up(ctx, d.SQL, d.Dialect); err != nil {
			t.Fatal(err)
		}
	})
}

func TestUnknownDialectsAndBadNamesAreRefused(t *testing.T) {
	ctx := context.Background()
	db := dbtest.SQLite(t, dbtest.Empty()).SQL
	if _, err := migrate.Up(ctx, db, "oracle"); err == nil || !strings.Contains(err.Error(), `"oracle"`) {
		t.Errorf("dialect oracle: %v", err)
	}
	bad := migrate.WithTables(store.Tables{ProcessedMessages: `x"; DROP TABLE y; --`})
	for doing, f := range map[string]func() error{
		"up":     func() error { _, err := migrate.Up(ctx, db, migrate.SQLite, bad); return err },
		"down":   func() error { _, err := migrate.Down(ctx, db, migrate.SQLite, bad); return err },
		"status": func() error { _, err := migrate.Status(ctx, db, migrate.SQLite, bad); return err },
		"print":  func() error { return migrate.Print(&strings.Builder{}, migrate.SQLite, bad) },
	} {
		if f() == nil {
			t.Errorf("%s let a bad name through", doing)
		}
	}
}

func TestFilesAreForGoose(t *testing.T) {
	for _, d := range []migrate.Dialect{migrate.Postgres, migrate.MySQL, migrate.SQLite} {
		found, err := fs.Glob(migrate.FS(d), "*.sql")
		if err != nil || !slices.Equal(found, all) {
			t.Errorf("%s: files %q, %v", d, found, err)
		}
		for _, name := range found {
			text, err := fs.ReadFile(migrate.FS(d), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"-- +goose Up", "-- +goose Down"} {
				if strings.Count(string(text), want) != 1 {
					t.Errorf("%s/%s: %q is not there once", d, name, want)
				}
			}
			if strings.Contains(string(text), "{{") {
				t.Errorf("%s/%s: a name was not filled in", d, name)
			}
		}
	}
	if found, err := fs.Glob(migrate.FS("oracle"), "*"); err != nil || len(found) != 0 {
		t.Errorf("an unknown dialect has files %q, %v", found, err)
	}
}

func TestAFailedUpTellsWhatItAppliedBefore(t *testing.T) {
	onEach(t, func(t *testing.T, d *dbtest.DB) {
		// A view bears the second table's name: its indexes cannot be made.
		exec(t, d.SQL, "CREATE VIEW dead_letters AS SELECT 1 AS one")
		applied, err := migrate.Up(context.Background(), d.SQL, d.Dialect)
		if d.Dialect == migrate.MySQL {
			// The table is "there", its indexes are made with it.
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err == nil || fmt.Sprint(namesOf(applied)) != fmt.Sprint(all[:1]) {
			t.Errorf("applied %q, %v", namesOf(applied), err)
		}
		exec(t, d.SQL, "DROP VIEW dead_letters")
		if got := up(t, d); !slices.Equal(got, all[1:]) {
			t.Errorf("then applied %q, want %q", got, all[1:])
		}
	})
}
