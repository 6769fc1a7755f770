package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/bench"
)

func TestABenchmarkComparesWithThePatternWrittenByHandAndLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	r := run(t, "bench", "--quick", "--rounds", "1", "--each", "100ms", "--output", "json", "--database", "sqlite:"+filepath.Join(folder, "x.db"))
	var report bench.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); r.status != 0 || err != nil {
		t.Fatalf("status %d, %v: %s%s", r.status, err, r.stdout, r.stderr)
	}
	if report.Database != "sqlite" || report.Settings["synchronous"] != "2" {
		t.Errorf("database %q with the settings %v", report.Database, report.Settings)
	}
	for _, mode := range []bench.Mode{bench.Handwritten, bench.Check, bench.Process, bench.Handle, bench.Batch, bench.Limit} {
		i := slices.IndexFunc(report.Runs, func(x bench.Run) bool { return x.Mode == mode && x.Workers == 1 })
		if i < 0 {
			t.Errorf("no run of %s", mode)
			continue
		}
		x := report.Runs[i]
		if x.PerSecond <= 0 || x.RatioHandwritten <= 0 || mode == bench.Handwritten && x.RatioHandwritten != 1 ||
			mode == bench.Limit && x.RatioLimit != 1 || x.Lowest > x.PerSecond || x.Highest < x.PerSecond {
			t.Errorf("%s: %+v", mode, x)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	table := run(t, "bench", "--quick", "--rounds", "1", "--each", "10ms", "--database", "sqlite:"+filepath.Join(folder, "x.db"))
	if table.status != 0 || !strings.Contains(table.stdout, "to hand-written") || !strings.Contains(table.stdout, "1.00×") {
		t.Errorf("status %d: %s%s", table.status, table.stdout, table.stderr)
	}
}

func TestRunIsMeasuredBesideHandle(t *testing.T) {
	r := run(t, "bench", "--run", "--rounds", "1", "--each", "200ms", "--output", "json", "--database", "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	var report bench.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); r.status != 0 || err != nil {
		t.Fatalf("status %d, %v: %s%s", r.status, err, r.stdout, r.stderr)
	}
	found := 0
	for _, x := range report.Runs {
		switch {
		case x.PerSecond <= 0 || x.RatioAlone <= 0 || x.Mode == bench.Handle && x.Batch == 1 && x.RatioAlone != 1:
			t.Errorf("%+v", x)
		case x.Mode == bench.FromFile && x.RatioHandle > 0:
			found++
		}
	}
	if found != 2 {
		t.Errorf("sekali run was measured %d times, want 2: %+v", found, report.Runs)
	}
}

func TestABenchmarkThatCannotBeDoneIsRefused(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--rounds", "0"}, 2, "--rounds 0"},
		{[]string{"--each", "1ms"}, 2, "--each 1ms"},
		{[]string{"--kept", "-1"}, 2, "--kept -1"},
		{[]string{"--quick", "--kept", "1000"}, 2, "keep one"},
		{[]string{"--run", "--contention"}, 2, "keep one"},
		{[]string{"--round-trip", "2s"}, 2, "--round-trip 2s"},
		{[]string{"--run", "--round-trip", "1ms"}, 1, "host and a port"},
		{[]string{"--contention"}, 2, "SQLite"},
		{[]string{"--database", "oracle://u:geheim@host/x"}, 2, "its kind is unknown"},
		{[]string{"--database", "postgres://u:geheim@127.0.0.1:1/x"}, 1, "does not answer"},
	} {
		args := append([]string{"bench", "--database", "sqlite:" + filepath.Join(t.TempDir(), "x.db")}, c.args...)
		r := run(t, args...)
		if r.status != c.status || !strings.Contains(r.stderr, c.want) || strings.Contains(r.stderr, "geheim") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: status %d, %q; want %d and %q", c.args, r.status, r.stderr, c.status, c.want)
		}
	}
}

func TestABenchmarkOfTheOutboxComparesWithRowByRowAndLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	database := filepath.Join(t.TempDir(), "x.db")
	r := run(t, "bench", "outbox", "--rounds", "1", "--each", "50ms", "--events", "300", "--keys", "20", "--output", "json", "--database", "sqlite:"+database)
	var report bench.OutboxReport
	if err := json.Unmarshal([]byte(r.stdout), &report); r.status != 0 || err != nil {
		t.Fatalf("status %d, %v: %s%s", r.status, err, r.stdout, r.stderr)
	}
	if len(report.Runs) != 3 || report.Keys != 20 || report.Broker != "NATS JetStream, embedded" {
		t.Errorf("%+v", report)
	}
	for i, mode := range []bench.OutboxMode{bench.Broker, bench.RowByRow, bench.Relayed} {
		if x := report.Runs[i]; x.Mode != mode || x.PerSecond <= 0 || x.RatioBroker <= 0 || x.RatioRowByRow <= 0 {
			t.Errorf("%+v", x)
		}
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	table := run(t, "bench", "outbox", "--rounds", "1", "--each", "10ms", "--events", "100", "--keys", "0", "--database", "sqlite:"+database)
	if table.status != 0 || !strings.Contains(table.stdout, "without ordering keys") || !strings.Contains(table.stdout, "row by row") {
		t.Errorf("status %d: %s%s", table.status, table.stdout, table.stderr)
	}
	for _, args := range [][]string{{"--rounds", "0"}, {"--each", "1ms"}, {"--events", "0"}, {"--keys", "-1"}, {"--broker", "smtp://h"}} {
		if r := run(t, append([]string{"bench", "outbox", "--database", "sqlite:" + database}, args...)...); r.status != 2 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
