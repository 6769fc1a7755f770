package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// oldKeys makes a database with 30 keys that are 40 days old and 5 of now.
func oldKeys(t *testing.T) (url string, left func() int) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	if r := run(t, "migrate", "up", "--database", url); r.status != 0 {
		t.Fatal(r.stderr)
	}
	db, err := sql.Open("sqlite", strings.Replace(url, "sqlite:", "file:", 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := sqlstore.New(db, sqlite.Dialect)
	for _, batch := range []int{30, 5} {
		c := store.Claim{Consumer: "stock-service"}
		for i := range batch {
			c.Keys = append(c.Keys, store.Key{Raw: fmt.Sprint(batch, "/", i)})
		}
		tx, _, err := s.Begin(t.Context(), c)
		if err == nil {
			err = s.Commit(t.Context(), tx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(`UPDATE processed_messages SET processed_at = datetime('now', '-40 days') WHERE message_key LIKE '30/%'`); err != nil {
		t.Fatal(err)
	}
	return url, func() (n int) {
		if err := db.QueryRow(`SELECT COUNT(*) FROM processed_messages`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func TestPruneRemovesWhatIsOldAndADryRunCountsIt(t *testing.T) {
	url, left := oldKeys(t)
	prune := func(args ...string) result {
		return run(t, append([]string{"prune", "--database", url, "--keep", "30d", "--max-duplicate-age", "14d"}, args...)...)
	}
	dry := prune("--dry-run")
	if dry.status != 0 || !strings.Contains(dry.stdout, "TO BE REMOVED") || !strings.Contains(dry.stdout, "30d       30 ") || left() != 35 {
		t.Errorf("a dry run: status %d, %d rows left\n%s%s", dry.status, left(), dry.stdout, dry.stderr)
	}
	r := prune("--output", "json", "--batch", "7", "--audit", "400d")
	var report struct {
		DryRun  bool `json:"dry_run"`
		Results []struct {
			Rows    string
			KeptFor *float64 `json:"kept_for_seconds"`
			Removed int64
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.status != 0 || r.stderr != "" {
		t.Fatalf("status %d, %q (%v); no progress is shown in a pipe: %q", r.status, r.stdout, err, r.stderr)
	}
	if left() != 5 || len(report.Results) != len(store.Prunables()) || report.Results[0].Removed != 30 || *report.Results[0].KeptFor != 30*86400 {
		t.Errorf("%d rows are left, the report is %+v", left(), report)
	}
	again := prune("--output", "json")
	if err := json.Unmarshal([]byte(again.stdout), &report); err != nil || again.status != 0 || report.Results[0].Removed != 0 {
		t.Errorf("again: status %d %s%s", again.status, again.stdout, again.stderr)
	}
	if audit := report.Results[len(report.Results)-1]; audit.Rows != "audit" || audit.KeptFor != nil {
		t.Errorf("the audit trail is kept as %+v, want for ever", audit)
	}
}

func TestPruneRefusesWhatForgetsTooSoon(t *testing.T) {
	url, left := oldKeys(t)
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no time":                    {nil, 2, "--keep"},
		"nothing known":              {[]string{"--keep", "30d"}, 1, "--max-duplicate-age"},
		"too short":                  {[]string{"--keep", "16d", "--max-duplicate-age", "14d"}, 1, "keep them for 17d"},
		"letters elsewhere":          {[]string{"--keep", "20d", "--max-duplicate-age", "14d", "--letters-elsewhere", "7d"}, 1, "keep them for 24d"},
		"effects sooner":             {[]string{"--keep", "30d", "--max-duplicate-age", "14d", "--effects", "2d"}, 1, "effects for 2d"},
		"minutes":                    {[]string{"--keep", "20m", "--max-duplicate-age", "1m", "--margin", "1m"}, 2, "1h0m0s at least"},
		"not a time":                 {[]string{"--keep", "long", "--max-duplicate-age", "1d"}, 2, "30d"},
		"negative":                   {[]string{"--keep", "-3h", "--max-duplicate-age", "1d"}, 2, "30d"},
		"a broker without a queue":   {[]string{"--keep", "30d", "--broker", "nats://127.0.0.1:1"}, 2, "--queue"},
		"a broker that is not there": {[]string{"--keep", "30d", "--broker", "nats://127.0.0.1:1", "--queue", "ORDERS"}, 1, "127.0.0.1:1"},
		"no batch":                   {[]string{"--keep", "30d", "--max-duplicate-age", "1d", "--batch", "0"}, 2, "--batch"},
	} {
		for _, dry := range []bool{false, true} {
			args := append([]string{"prune", "--database", url}, c.args...)
			if dry {
				args = append(args, "--dry-run")
			}
			if r := run(t, args...); r.status != c.status || !strings.Contains(r.stderr, c.says) {
				t.Errorf("%s: status %d, %q; want %d and %q", name, r.status, r.stderr, c.status, c.says)
			}
		}
	}
	if left() != 35 {
		t.Errorf("%d rows are left", left())
	}
	if r := run(t, "prune", "--database", url, "--keep", "ever", "--dead-letters", "ever"); r.status != 0 || left() != 35 {
		t.Errorf("for ever: status %d %s, %d rows left", r.status, r.stderr, left())
	}
}

func TestPruneAsksTheBrokerHowLongItKeepsMessages(t *testing.T) {
	url, left := oldKeys(t)
	nats := natstest.Start(t)
	js, err := jetstream.New(natstest.Connect(t, nats).Conn)
	if err != nil {
		t.Fatal(err)
	}
	for stream, age := range map[string]time.Duration{"ORDERS": 7 * 24 * time.Hour, "LONG": 60 * 24 * time.Hour, "EVER": 0} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, MaxAge: age}); err != nil {
			t.Fatal(err)
		}
	}
	prune := func(queues ...string) result {
		args := []string{"prune", "--database", url, "--keep", "30d", "--broker", nats}
		for _, q := range queues {
			args = append(args, "--queue", q)
		}
		return run(t, args...)
	}
	if r := prune("ORDERS", "LONG"); r.status != 1 || !strings.Contains(r.stderr, "63d") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
	if r := prune("ORDERS", "EVER"); r.status != 1 || !strings.Contains(r.stderr, "without a limit") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
	if left() != 35 {
		t.Errorf("%d rows are left", left())
	}
	if r := prune("ORDERS"); r.status != 0 || left() != 5 {
		t.Errorf("status %d, %q, %d rows left", r.status, r.stderr, left())
	}
	s, err := js.Stream(context.Background(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Consumers; n != 0 {
		t.Errorf("asking made %d consumers", n)
	}
}
