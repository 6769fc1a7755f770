package storetest_test

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/store/storetest"
)

func plainHarness(kind storetest.Database, mutant string) storetest.Harness[*sql.Tx] {
	open := map[storetest.Database]func(testing.TB, ...dbtest.Option) *dbtest.DB{
		storetest.Postgres: dbtest.Postgres, storetest.MySQL: dbtest.MySQL, storetest.SQLite: dbtest.SQLite,
	}[kind]
	return storetest.Harness[*sql.Tx]{
		Database: kind,
		Open: func(t *testing.T, empty bool) storetest.Env[*sql.Tx] {
			var opts []dbtest.Option
			if empty {
				opts = append(opts, dbtest.Empty())
			}
			return plainEnv(open(t, opts...), kind, mutant)
		},
		Exec: func(ctx context.Context, tx *sql.Tx, statement string) (int64, error) {
			result, err := tx.ExecContext(ctx, statement)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		},
		QueryInt: func(ctx context.Context, tx *sql.Tx, query string) (n int, err error) {
			err = tx.QueryRowContext(ctx, query).Scan(&n)
			return n, err
		},
	}
}

func plainEnv(d *dbtest.DB, kind storetest.Database, mutant string) storetest.Env[*sql.Tx] {
	return storetest.Env[*sql.Tx]{
		DB: d.SQL,
		Client: func(t *testing.T, settings map[string]string) storetest.Client[*sql.Tx] {
			db := d.Open(settings)
			return storetest.Client[*sql.Tx]{
				Store:    newPlain(db, kind, mutant),
				Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
				Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
				Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
				InUse:    func() int { return db.Stats().InUse },
			}
		},
	}
}

// The child process runs the suite on a plain store, or on a mutant of it.
const (
	kindEnv   = "SEKALI_STORETEST_KIND"
	mutantEnv = "SEKALI_STORETEST_MUTANT"
)

// TestChild is the suite in a child process of the tests below.
func TestChild(t *testing.T) {
	if kind := os.Getenv(kindEnv); kind != "" {
		storetest.Run(t, plainHarness(storetest.Database(kind), os.Getenv(mutantEnv)))
	}
}

// child runs tests of the suite, group/name, and returns what it printed and
// whether they passed.
func child(t *testing.T, kind storetest.Database, mutant, tests string) (output string, passed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*storetest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$/"+tests, "-test.v", "-test.short")
	cmd.Env = append(os.Environ(), kindEnv+"="+string(kind), mutantEnv+"="+mutant)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("the suite hangs:\n%s", out)
	}
	return string(out), err == nil
}

// plainGroups are the tests that a plain store passes: it has no Check and no
// dead letters.
const plainGroups = "^(keys|claims|rivals|lost_transactions|conflicts|cancellation|isolation|time)$"

func passes(t *testing.T, kind storetest.Database) {
	t.Parallel()
	out, ok := child(t, kind, "", plainGroups)
	if !ok || !strings.Contains(out, "--- PASS: TestChild/") {
		t.Errorf("the plain store does not pass:\n%s", out)
	}
	out, ok = child(t, kind, "", "^fingerprints$/^(the_same|an_unknown|another|bodies|a_claim|a_fingerprint)")
	if !ok || !strings.Contains(out, "--- PASS: TestChild/fingerprints/") {
		t.Errorf("the plain store does not pass:\n%s", out)
	}
}

// mutant is a store that does something wrong, and the test that must notice.
type mutant struct{ name, group, test string }

func notices(t *testing.T, kind storetest.Database, mutants []mutant) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			out, ok := child(t, kind, m.name, "^"+m.group+"$/^"+m.test)
			if ok || !strings.Contains(out, "--- FAIL: TestChild/"+m.group+"/"+m.test) {
				t.Errorf("the suite does not notice, or no test has that name:\n%s", out)
			}
			if strings.Contains(out, "panic:") {
				t.Errorf("the suite panics:\n%s", out)
			}
		})
	}
}

func TestPlainStorePassesOnSQLite(t *testing.T) { passes(t, storetest.SQLite) }

func TestSuiteNoticesWhatAStoreDoesWrong(t *testing.T) {
	notices(t, storetest.SQLite, []mutant{
		{"folded keys", "keys", "different_bytes_are_different_keys_in_one_claim"},
		{"trimmed keys", "keys", "different_bytes_are_different_keys_in_claims"},
		{"cut keys", "keys", "a_key_is_stored"},
		{"blank keys", "keys", "blank_keys"},
		{"any error is a duplicate", "conflicts", "a_rival's_key"},
		{"states in lock order", "claims", "states_come_in_the_caller's_order"},
		{"rollback that commits", "claims", "a_message_that_was_rolled_back"},
		{"no conflicts", "fingerprints", "the_same_body"},
		{"unknown is a conflict", "fingerprints", "an_unknown_fingerprint"},
		{"no guard", "lost_transactions", "a_handler_that_commits_and_begins_anew"},
		{"no survivors", "lost_transactions", "a_handler_that_commits_by_itself_is_found_out_by_Commit"},
		{"no survivors", "lost_transactions", "a_handler_that_commits_by_itself_is_found_out_by_Rollback"},
		{"no classes", "conflicts", "a_read_that_cannot"},
		{"leak", "conflicts", "a_rival's_key"},
		{"COMMIT under the caller's context", "cancellation", "Commit_commits"},
		{"BEGIN under the caller's context", "cancellation", "a_transaction_outlives"},
		{"local time", "time", "processed_at_is_UTC"},
	})
}
