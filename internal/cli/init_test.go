package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/natstest"
	runner "github.com/sekali/sekali/internal/run"
)

func TestEveryFileThatInitWritesIsRight(t *testing.T) {
	db := shopDB(t)
	for _, name := range []string{"embedded", "nats", "kafka", "rabbitmq", "amqp10", "redis"} {
		for _, database := range []string{"postgres", "mysql", "sqlite"} {
			t.Run(name+" and "+database, func(t *testing.T) {
				t.Setenv("SEKALI_DATABASE_URL", "")
				file := filepath.Join(t.TempDir(), "sekali.yaml")
				r := run(t, "init", file, "--broker", name, "--database", database)
				if r.status != 0 || !strings.Contains(r.stdout, file) {
					t.Fatalf("status %d: %q %q", r.status, r.stdout, r.stderr)
				}
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				plan, err := runner.Load(string(text), func(string) (string, bool) { return "", false })
				if err != nil {
					t.Fatal(err)
				}
				if kind, err := dburl.KindOf(plan.File.Database.Value); err != nil || plan.File.Kind != kind {
					t.Errorf("it is for %s (%v)", plan.File.Kind, err)
				}
				// The database itself takes all of it, what is commented out as well.
				t.Setenv("SEKALI_DATABASE_URL", db.URL)
				whole := filepath.Join(filepath.Dir(file), "whole.yaml")
				if err := os.WriteFile(whole, []byte(uncommented(string(text))), 0o600); err != nil {
					t.Fatal(err)
				}
				t.Setenv("COURIER_TOKEN", "geheim")
				for _, f := range []string{file, whole} {
					if r := run(t, "run", "--check", "-c", f); r.status != 0 || !strings.Contains(r.stdout, "nothing is wrong") {
						t.Errorf("status %d: %q %q", r.status, r.stdout, r.stderr)
					}
				}
				if r := run(t, "init", file); r.status != 1 || !strings.Contains(r.stderr, "not touched") {
					t.Errorf("a file that is there: status %d: %q", r.status, r.stderr)
				}
			})
		}
	}
}

// uncommented has the effects, the events and what is of one line in force.
func uncommented(text string) string {
	lines := strings.Split(text, "\n")
	in := false
	for i, l := range lines {
		switch {
		case strings.HasPrefix(l, "# effects:"), strings.HasPrefix(l, "# publish:"), strings.HasPrefix(l, "# order:"):
			in = true
		case !strings.HasPrefix(l, "# "):
			in = false
		}
		if in {
			lines[i] = strings.TrimPrefix(l, "# ")
		}
	}
	return strings.Join(lines, "\n")
}

func TestPublishWaitsForTheBroker(t *testing.T) {
	url := natstest.Start(t)
	source, err := natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: "ORDERS", Consumer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close(t.Context())
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	r := run(t, "publish", "--broker", url, "--topic", "orders.paid", "--id", "id-1", "--header", "a=b=c", `{"x":1}`)
	if r.status != 0 || r.stdout != "published\n" {
		t.Fatalf("status %d: %q %q", r.status, r.stdout, r.stderr)
	}
	got, err := source.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	m := got[0].Message
	if value, _ := m.Headers.Get("a"); string(value) != "b=c" || m.ID != "id-1" || string(m.Body) != `{"x":1}` {
		t.Errorf("it is %+v", m)
	}
	if err := source.Settle(t.Context(), []broker.Settlement{{Delivery: got[0]}}); err != nil {
		t.Error(err)
	}
	if r := run(t, "publish", "--broker", url, "--topic", "nobody.listens", "x"); r.status != 1 || !strings.Contains(r.stderr, "nobody.listens") {
		t.Errorf("status %d: %q", r.status, r.stderr)
	}
}
