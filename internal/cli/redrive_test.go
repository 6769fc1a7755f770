package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
)

// consume runs the consumer whose letters they are, until the test ends.
func consume(t *testing.T, url string, handle sekali.Handler[*sql.Tx]) {
	t.Helper()
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	b := membroker.New(membroker.Options{})
	c, err := sekali.NewConsumer(sekali.Config[*sql.Tx]{
		Name: "stock-service", Source: b.NewSource("stock-service"), Store: sqlstore.New(db.SQL, db.Dialect()),
		Key: sekali.MessageID(), Handle: handle, RedriveEvery: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = db.Close()
	})
}

// row is a line of a list of letters, or of what became of them.
type row struct {
	ID     int    `json:"id"`
	Status string `json:"status"`
}

// decided runs a command about letters and returns its rows.
func decided(t *testing.T, wantStatus int, url string, args ...string) (rows []row, stderr string) {
	t.Helper()
	r := run(t, append(append([]string{"deadletters"}, args...), "--database", url, "--output", "json")...)
	if r.status != wantStatus {
		t.Fatalf("%q: status %d, want %d: %s%s", args, r.status, wantStatus, r.stdout, r.stderr)
	}
	if r.stdout == "" {
		return nil, r.stderr
	}
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		t.Fatalf("%q: %v in %s", args, err, r.stdout)
	}
	return rows, r.stderr
}

func TestARedriveIsCountedFirstAndReportsWhatBecameOfIt(t *testing.T) {
	url := letters(t)
	rows, stderr := decided(t, 0, url, "redrive", "--consumer", "stock-service", "--dry-run")
	if len(rows) != 3 || rows[0].ID != 1 || rows[0].Status != "" ||
		stderr != "3 dead letters (1 exhausted, 1 permanent, 1 no-key) to be processed again\n" {
		t.Errorf("dry run: %v %q", rows, stderr)
	}
	if _, stderr = decided(t, 2, url, "redrive", "--consumer", "stock-service"); !strings.Contains(stderr, "--yes") {
		t.Errorf("without --yes: %q", stderr)
	}
	if rows, _ = decided(t, 0, url, "redrive", "1", "--wait", "0"); len(rows) != 1 || rows[0].Status != "requested" {
		t.Errorf("while no consumer runs: %v", rows)
	}
	consume(t, url, func(_ context.Context, _ *sql.Tx, m *sekali.Message) error {
		if m.Letter() == 2 {
			return sekali.Permanent(errors.New("still bad \x1b[2J"))
		}
		return nil
	})
	rows, stderr = decided(t, 1, url, "redrive", "--consumer", "stock-service", "--yes", "--note", "the courier is back")
	got := "" // without 1, which may or may not have been processed before
	for _, r := range slices.DeleteFunc(rows, func(r row) bool { return r.ID == 1 }) {
		got += fmt.Sprint(r.ID, " ", r.Status, ", ")
	}
	if got != "2 open, 3 processed, " || strings.Contains(stderr, "\x1b") {
		t.Errorf("redriven: %q %q", got, stderr)
	}
	if !strings.Contains(stderr, "as before") {
		t.Errorf("what failed again is not told: %q", stderr)
	}
	if rows, _ = decided(t, 0, url, "list"); len(rows) != 1 || rows[0].ID != 2 {
		t.Errorf("listed: %v", rows)
	}
	if rows, _ = decided(t, 0, url, "list", "--status", "processed"); len(rows) != 2 {
		t.Errorf("processed ones: %v", rows)
	}
	shown := run(t, "deadletters", "show", "2", "--database", url)
	if !strings.Contains(shown.stdout, "redrive by ") || !strings.Contains(shown.stdout, "the courier is back") {
		t.Errorf("the trail is not shown: %s", shown.stdout)
	}
	if _, stderr = decided(t, 1, url, "redrive", "1"); !strings.Contains(stderr, "as before") {
		t.Errorf("a redrive of what is resolved: %q", stderr)
	}
}

func TestALetterIsDiscardedAndItsKeyIsRecorded(t *testing.T) {
	url := letters(t)
	if rows, stderr := decided(t, 0, url, "discard", "1", "3", "--by", "ayu"); len(rows) != 2 || rows[0].Status != "discarded" ||
		stderr != "2 dead letters (1 exhausted, 1 no-key) to be discarded\n" {
		t.Errorf("discarded: %v %q", rows, stderr)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	seen, err := sqlstore.New(db.SQL, db.Dialect()).Seen(t.Context(), store.Claim{Consumer: "stock-service", Keys: []store.Key{{Raw: "order-1"}}})
	if err != nil || seen[0] != store.Duplicate {
		t.Errorf("the key is %v, %v", seen, err)
	}
	text := run(t, "deadletters", "discard", "--reason", "permanent", "--yes", "--database", url)
	if text.status != 0 || strings.ContainsAny(text.stdout, "\x1b\x00") || !strings.Contains(text.stdout, "discarded") {
		t.Errorf("as a table: %q %q", text.stdout, text.stderr)
	}
	if rows, stderr := decided(t, 0, url, "discard", "--consumer", "stock-service", "--yes"); len(rows) != 0 || !strings.HasPrefix(stderr, "no dead letter") {
		t.Errorf("with nothing left: %v %q", rows, stderr)
	}
}

func TestDecisionsThatCannotBeMeantAreRefused(t *testing.T) {
	url := letters(t)
	for _, args := range [][]string{
		{"redrive"},
		{"redrive", "one"},
		{"redrive", "1", "--consumer", "stock-service"},
		{"redrive", "1", "2", "--as-key", "k"},
		{"redrive", "1", "--wait", "-1s"},
		{"redrive", "--reason", "boredom", "--yes"},
		{"redrive", "1", "--by", ""},
		{"discard"},
		{"discard", "1", "--reason", "permanent"},
	} {
		if rows, stderr := decided(t, 2, url, args...); len(rows) != 0 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: %v %q", args, rows, stderr)
		}
	}
	if _, stderr := decided(t, 1, url, "redrive", "99"); !strings.Contains(stderr, "none with this ID") {
		t.Errorf("a letter that is not there: %q", stderr)
	}
	if rows, _ := decided(t, 0, url, "list"); len(rows) != 3 {
		t.Errorf("after all that: %v", rows)
	}
}
