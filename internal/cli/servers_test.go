//go:build !fast

package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sekali/sekali/bench"
	"github.com/sekali/sekali/internal/cli"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/kafkatest"
	"github.com/sekali/sekali/internal/natstest"
)

func TestMigrateIntoASchemaThatIsNotThereSaysSo(t *testing.T) {
	u, err := url.Parse(dbtest.Postgres(t, dbtest.Empty()).URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "no_such_schema")
	u.RawQuery = q.Encode()
	r := run(t, "migrate", "up", "--database", u.String())
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "CREATE SCHEMA") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

func TestTheDemoIsExactOnServers(t *testing.T) {
	for name, open := range map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{
		"PostgreSQL": dbtest.Postgres, "MariaDB": dbtest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, dbtest.Empty())
			places := `SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'sekali_demo_%'`
			var before, after int
			if err := db.SQL.QueryRow(places).Scan(&before); err != nil {
				t.Fatal(err)
			}
			r := run(t, append(small, "--database", db.URL, "--broker", natstest.RealURL(t))...)
			checkReport(t, r)
			if strings.Contains(r.stdout, "sekali:sekali@") {
				t.Errorf("the report shows the password: %s", r.stdout)
			}
			if err := db.SQL.QueryRow(places).Scan(&after); err != nil || after != before {
				t.Errorf("%d demo schemas before, %d after (%v)", before, after, err)
			}
		})
	}
}

func TestADatabaseCanBeMeasuredAsIfItWereFarAway(t *testing.T) {
	r := run(t, "bench", "--run", "--rounds", "1", "--each", "300ms", "--round-trip", "4ms", "--output", "json", "--database", dbtest.Postgres(t, dbtest.Empty()).URL)
	var report bench.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); r.status != 0 || err != nil {
		t.Fatalf("status %d, %v: %s%s", r.status, err, r.stdout, r.stderr)
	}
	for _, x := range report.Runs {
		// A transaction alone takes three round trips at least.
		if x.Mode == bench.Handle && x.Batch == 1 && x.Workers == 1 && (x.PerSecond <= 0 || x.PerSecond > 1000/12) {
			t.Errorf("%.0f messages a second over round trips of 4 ms", x.PerSecond)
		}
	}
	if report.Settings["round_trip"] != "4ms" || strings.Contains(r.stdout, "sekali:sekali") {
		t.Errorf("%v", report.Settings)
	}
}

// demosOnKafka returns the topics and groups of demos, sorted.
func demosOnKafka(t *testing.T, broker string) []string {
	t.Helper()
	// A client of its own each time: it remembers topics for a while.
	admin := kadm.NewClient(kafkatest.Client(t, broker))
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ofDemos(append(topics.Names(), groups.Groups()...))
}

func ofDemos(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "sekali-demo-") })
	slices.Sort(names)
	return names
}

func TestTheDemoIsExactOnKafka(t *testing.T) {
	broker := kafkatest.URL(t)
	for name, database := range map[string]func(t *testing.T) string{
		"SQLite":     func(*testing.T) string { return "" },
		"PostgreSQL": func(t *testing.T) string { return dbtest.Postgres(t, dbtest.Empty()).URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			before := demosOnKafka(t, broker)
			checkReport(t, run(t, append(small, "--database", database(t), "--broker", broker)...))
			if after := demosOnKafka(t, broker); !slices.Equal(after, before) {
				t.Errorf("the demo left behind some of %v (before: %v)", after, before)
			}
		})
	}
}

func TestAnInterruptedDemoLeavesNothingOnKafka(t *testing.T) {
	broker := kafkatest.URL(t)
	t.Setenv("TMPDIR", t.TempDir())
	before := demosOnKafka(t, broker)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		// It is in the middle once all three consumers have joined their groups.
		admin := kadm.NewClient(kafkatest.Client(t, broker))
		for ctx.Err() == nil {
			if groups, err := admin.ListGroups(ctx); err == nil && len(ofDemos(groups.Groups())) >= len(ofDemos(before))+3 {
				cancel()
			}
		}
	}()
	var stdout, stderr bytes.Buffer
	status := cli.Run(ctx, []string{"demo", "--broker", broker}, strings.NewReader(""), &stdout, &stderr)
	if status != 1 || stdout.Len() != 0 || !strings.Contains(stderr.String(), "nothing is left behind") {
		t.Errorf("status %d, %q, %q", status, stdout.String(), stderr.String())
	}
	if after := demosOnKafka(t, broker); !slices.Equal(after, before) {
		t.Errorf("the demo left behind some of %v (before: %v)", after, before)
	}
}
