package cli_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/cli"
	"github.com/sekali/sekali/internal/demo"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// The test binary is the demo's consumer process when a demo starts it so.
func TestMain(m *testing.M) {
	if demo.IsChild() && len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

type result struct {
	status         int
	stdout, stderr string
}

func run(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cli.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

func TestBadInputIsOneLineWithThingCauseAndMend(t *testing.T) {
	t.Setenv("SEKALI_DATABASE_URL", "")
	dead := "127.0.0.1:1" // nobody answers there
	file := filepath.Join(t.TempDir(), "not-there.db")
	cases := []struct {
		name   string
		args   []string
		status int
		says   []string
	}{
		{"an unknown command", []string{"dmeo"}, 2, []string{"dmeo"}},
		{"an unknown command below a group", []string{"migrate", "sideways"}, 2, []string{"sideways", "--help"}},
		{"an unknown flag", []string{"demo", "--order", "5"}, 2, []string{"--order", "--help"}},
		{"a flag that is no number", []string{"demo", "--orders", "many"}, 2, []string{"--orders", "many"}},
		{"no orders", []string{"demo", "--orders", "0"}, 2, []string{"--orders 0", "use 1"}},
		{"a share above one", []string{"demo", "--duplicates", "1.5"}, 2, []string{"--duplicates 1.5", "0 to 1"}},
		{"a share that is no number", []string{"demo", "--duplicates", "NaN"}, 2, []string{"--duplicates NaN"}},
		{"fewer than no crashes", []string{"demo", "--crashes", "-1"}, 2, []string{"--crashes -1"}},
		{"more crashes than orders", []string{"demo", "--orders", "3", "--crashes", "4"}, 2, []string{"--crashes 4"}},
		{"an output of no kind", []string{"demo", "--output", "xml"}, 2, []string{"--output \"xml\"", "table or json"}},
		{"a database of no kind", []string{"demo", "--database", "oracle://u:geheim@h/d"}, 2, []string{"oracle://", "postgres://"}},
		{"a broker of no kind", []string{"demo", "--broker", "smtp://u:geheim@h"}, 2, []string{"smtp://", "nats://", "kafka://", "rabbitmq://", "amqp10://", "redis://"}},
		{"a Kafka without a host", []string{"demo", "--broker", "kafka://u:geheim@"}, 2, []string{"kafka://", "names no host", "kafka://host:9092"}},
		{"a Kafka with a path", []string{"demo", "--broker", "kafka://u:geheim@h:9092/orders"}, 2, []string{"path", "kafka://host:9092"}},
		{"a Redis without a host", []string{"demo", "--broker", "redis://u:geheim@"}, 2, []string{"redis://", "names no host", "redis://user:password@host:6379"}},
		{"a RabbitMQ without a host", []string{"demo", "--broker", "rabbitmq://u:geheim@"}, 2, []string{"rabbitmq://", "names no host", "rabbitmq://host:5672"}},
		{"a NATS without a host", []string{"demo", "--broker", "nats://"}, 2, []string{"nats://", "names no host"}},
		{"a file that is not there", []string{"run", "-c", file}, 1, []string{file, "sekali init"}},
		{"init for a broker of no kind", []string{"init", "--broker", "pulsar"}, 2, []string{`--broker "pulsar"`, "kafka"}},
		{"init for a database of no kind", []string{"init", "--database", "oracle"}, 2, []string{`--database "oracle"`, "postgres"}},
		{"publish to nowhere", []string{"publish", "x"}, 2, []string{"--broker", "--topic"}},
		{"a header without a value", []string{"publish", "--broker", "nats://h", "--topic", "t", "--header", "x", "y"}, 2, []string{`--header "x"`, "name=value"}},
		{"publish to a broker of no kind", []string{"publish", "--broker", "smtp://u:geheim@h", "--topic", "t", "x"}, 2, []string{"smtp://", "nats://"}},
		{"an argument too many", []string{"demo", "now"}, 2, []string{"now"}},
		{"no database", []string{"migrate", "up"}, 2, []string{"--database", "SEKALI_DATABASE_URL"}},
		{"no dialect", []string{"migrate", "print"}, 2, []string{"--dialect", "postgres, mysql or sqlite"}},
		{"a reason that is none", []string{"deadletters", "list", "--reason", "boom", "--database", "sqlite:" + file}, 2, []string{`"boom"`, "exhausted"}},
		{"no ID", []string{"deadletters", "show"}, 2, []string{"deadletters list"}},
		{"an ID that is no number", []string{"deadletters", "show", "first", "--database", "sqlite:" + file}, 2, []string{`"first"`}},
		{"a limit of nothing", []string{"deadletters", "list", "--limit", "0", "--database", "sqlite:" + file}, 2, []string{"--limit 0"}},
		{"an SQLite URL without a file", []string{"migrate", "up", "--database", "sqlite:"}, 2, []string{"names no file"}},
		{"a file that is not there", []string{"deadletters", "list", "--database", "sqlite:" + file}, 1, []string{file, "migrate up"}},
		{"a PostgreSQL that nobody answers for", []string{"demo", "--database", "postgres://u:geheim@" + dead + "/d"}, 1, []string{dead, "is it running"}},
		{"a MySQL that nobody answers for", []string{"demo", "--database", "mysql://u:geheim@" + dead + "/d"}, 1, []string{dead, "is it running"}},
		{"a NATS that nobody answers for", []string{"demo", "--broker", "nats://u:geheim@" + dead}, 1, []string{dead, "is the server running"}},
		{"a Kafka that nobody answers for", []string{"demo", "--broker", "kafka://u:geheim@" + dead}, 1, []string{dead, "is the server running"}},
		{"a Redis that nobody answers for", []string{"demo", "--broker", "redis://u:geheim@" + dead}, 1, []string{dead, "is the server running"}},
		{"a RabbitMQ that nobody answers for", []string{"demo", "--broker", "rabbitmq://u:geheim@" + dead}, 1, []string{dead, "is the server running"}},
		{"a folder that is not there", []string{"migrate", "up", "--database", "sqlite:/no/such/folder/x.db"}, 1, []string{"/no/such/folder/x.db"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.args...)
			if r.status != c.status {
				t.Errorf("the exit status is %d, want %d", r.status, c.status)
			}
			if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "sekali: ") {
				t.Errorf("not one line on stderr: %q and on stdout %q", r.stderr, r.stdout)
			}
			for _, text := range c.says {
				if !strings.Contains(r.stderr, text) {
					t.Errorf("%q does not say %q", r.stderr, text)
				}
			}
			if strings.Contains(r.stderr, "geheim") || strings.Contains(r.stderr, "goroutine") {
				t.Errorf("it shows a password or a stack trace: %q", r.stderr)
			}
		})
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a command that reads made the file")
	}
}

func TestMigrateMakesTablesAndTakesThemBack(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "a file with % and ?.db")
	url = strings.ReplaceAll(url, "?", "!")
	step := func(want string, args ...string) {
		t.Helper()
		r := run(t, append(args, "--database", url)...)
		if r.status != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("%v: status %d, %q %q; want %q", args, r.status, r.stdout, r.stderr, want)
		}
	}
	step("applied 00001_processed_messages", "migrate", "up")
	step("nothing to do", "migrate", "up")
	step("00002_dead_letters", "migrate", "status")
	step("taken back 00009_consumer_stats", "migrate", "down")
	step("no: run sekali migrate up", "migrate", "status")
	var states []struct {
		Name      string     `json:"name"`
		AppliedAt *time.Time `json:"applied_at"`
	}
	r := run(t, "migrate", "status", "--output", "json", "--database", url)
	if err := json.Unmarshal([]byte(r.stdout), &states); err != nil || len(states) != 9 || states[7].AppliedAt == nil || states[8].AppliedAt != nil {
		t.Errorf("the status in JSON is %s (%v)", r.stdout, err)
	}
}

func TestMigratePrintsTheSQLOfEachDialect(t *testing.T) {
	for _, dialect := range []string{"postgres", "mysql", "sqlite"} {
		r := run(t, "migrate", "print", "--dialect", dialect)
		if r.status != 0 || !strings.Contains(r.stdout, "processed_messages") || !strings.Contains(r.stdout, "dead_letters") {
			t.Errorf("%s: status %d, %q", dialect, r.status, r.stderr)
		}
	}
}

// letters makes a database with some letters, hostile ones among them.
func letters(t *testing.T) (url string) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	if r := run(t, "migrate", "up", "--database", url); r.status != 0 {
		t.Fatal(r.stderr)
	}
	db, err := sql.Open("sqlite", strings.Replace(url, "sqlite:", "file:", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	queue := sqlstore.New(db, sqlite.Dialect).DeadLetters()
	for i, l := range []deadletter.Letter{
		{Key: "order-1", Reason: deadletter.Exhausted, Error: "no courier\nat all", Message: broker.Message{Body: []byte(`{"order":1}`)}},
		{Key: "\x1b[31mred\x00", Reason: deadletter.Permanent, Error: "bad \x1b[2J", Message: broker.Message{
			ID: "id-2", Topic: "orders", Body: []byte{0xff, 0x00, 0x1b}, OrderingKey: []byte("sku"),
			Headers: broker.Headers{{Name: "h\x1b", Value: []byte("v\xff")}},
		}},
		{Reason: deadletter.NoKey, Error: "no key", Message: broker.Message{ID: "id-3"}},
	} {
		l.Consumer, l.Attempts, l.Status = "stock-service", i+1, deadletter.Open
		if err := queue.Put(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	return url
}

func TestDeadLettersAreListedWithoutControlCharacters(t *testing.T) {
	url := letters(t)
	r := run(t, "deadletters", "list", "--database", url)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.status != 0 || len(lines) != 4 || !strings.HasPrefix(lines[0], "ID") || !strings.Contains(lines[3], "order-1") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	if strings.ContainsAny(strings.Join(lines, ""), "\x1b\x00") {
		t.Errorf("the list sends commands to the terminal: %q", r.stdout)
	}
	for args, want := range map[string]string{
		"--key order-1": "1", "--reason permanent": "2", "--consumer other": "", "--limit 1": "3", "--before 2": "1",
	} {
		r := run(t, append([]string{"deadletters", "list", "--output", "json", "--database", url}, strings.Fields(args)...)...)
		var list []struct {
			ID int `json:"id"`
		}
		if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
			t.Fatalf("%s: %v in %q", args, err, r.stdout)
		}
		got := ""
		for _, l := range list {
			got += fmt.Sprint(l.ID)
		}
		if got != want {
			t.Errorf("%s: letters %q, want %q", args, got, want)
		}
	}
}

func TestADeadLetterIsShownWhole(t *testing.T) {
	url := letters(t)
	text := run(t, "deadletters", "show", "1", "--database", url)
	for _, want := range []string{"order-1", "exhausted", "no courier", "at all", `{"order":1}`} {
		if !strings.Contains(text.stdout, want) {
			t.Errorf("letter 1 does not show %q: %s", want, text.stdout)
		}
	}
	hostile := run(t, "deadletters", "show", "2", "--database", url)
	for _, want := range []string{`\x1b[31mred\x00`, "ff 00 1b", `v\xff`, "not text", "sku", "id-2"} {
		if !strings.Contains(hostile.stdout, want) {
			t.Errorf("letter 2 does not show %q: %s", want, hostile.stdout)
		}
	}
	if strings.ContainsAny(hostile.stdout, "\x1b\x00") {
		t.Errorf("letter 2 sends commands to the terminal: %q", hostile.stdout)
	}
	null := run(t, "deadletters", "show", "3", "--database", url)
	if !strings.Contains(null.stdout, "none (null)") || !strings.Contains(null.stdout, "(none)") {
		t.Errorf("letter 3: %s", null.stdout)
	}
	lossless := run(t, "deadletters", "show", "2", "--output", "json", "--database", url)
	var l struct {
		Key  string
		Body struct{ Base64 []byte }
	}
	if err := json.Unmarshal([]byte(lossless.stdout), &l); err != nil || l.Key != "\x1b[31mred\x00" || string(l.Body.Base64) != "\xff\x00\x1b" {
		t.Errorf("in JSON letter 2 is %s (%v)", lossless.stdout, err)
	}
	if r := run(t, "deadletters", "show", "99", "--database", url); r.status != 1 || !strings.Contains(r.stderr, "none with this ID") {
		t.Errorf("letter 99: status %d, %q", r.status, r.stderr)
	}
}

func TestDeadLettersWithoutTheTableNameTheMend(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(strings.TrimPrefix(url, "sqlite:"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, "deadletters", "list", "--database", url)
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "sekali migrate up") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

// report is what the demo prints in JSON, as its readers know it.
type report struct {
	OK        bool `json:"ok"`
	Consumers []struct {
		Name        string  `json:"name"`
		Idempotent  bool    `json:"idempotent"`
		Expected    int     `json:"expected"`
		Found       int     `json:"found"`
		Delivered   int     `json:"delivered"`
		Processed   int     `json:"processed"`
		Duplicates  int     `json:"duplicates"`
		Redelivered int     `json:"redelivered"`
		Crashes     int     `json:"crashes"`
		PerSecond   float64 `json:"per_second"`
	} `json:"consumers"`
}

// checkReport holds a demo's report against what 300 orders, 60 of them sent
// twice, and two crashes must give.
func checkReport(t *testing.T, r result) {
	t.Helper()
	var got report
	decoder := json.NewDecoder(strings.NewReader(r.stdout))
	if err := decoder.Decode(&got); err != nil || decoder.More() {
		t.Fatalf("stdout is not one JSON object (%v): %s%s", err, r.stdout, r.stderr)
	}
	if r.status != 0 || r.stderr != "" || !got.OK || len(got.Consumers) != 4 {
		t.Fatalf("status %d, stderr %q: %s", r.status, r.stderr, r.stdout)
	}
	for i, name := range []string{"stock-service", "courier-service", "naive-stock-service"} {
		c := got.Consumers[i]
		if c.Name != name || c.Crashes != 2 || c.Delivered < 362 || c.Redelivered < 2 || c.PerSecond <= 0 {
			t.Errorf("consumer %d is %+v", i, c)
		}
		if c.Idempotent && (c.Found != c.Expected || c.Processed != 300 || c.Duplicates < 62) {
			t.Errorf("%s is not exact: %+v", name, c)
		}
		if !c.Idempotent && c.Found <= c.Expected {
			t.Errorf("the naive consumer did no damage: %+v", c)
		}
	}
	if got.Consumers[1].Expected != 300 || got.Consumers[0].Expected != got.Consumers[2].Expected {
		t.Errorf("the expected effects are %+v", got.Consumers)
	}
}

var small = []string{"demo", "--orders", "300", "--crashes", "2", "--output", "json"}

func TestTheDemoIsExactWithoutSetUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	checkReport(t, run(t, small...))
	if left, _ := os.ReadDir(os.TempDir()); len(left) != 0 {
		t.Errorf("the demo left %v behind", left)
	}
}

func TestTheDemosTableNamesEachConsumerAndItsVerdict(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, "demo", "--orders", "100", "--crashes", "1", "--seed", "7", "--keep")
	for _, want := range []string{"100 orders, 20 of them sent twice", "killed once", "Seed: 7", "stock-service", "exact", "TOO MANY", "Kept: the shop"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the table does not say %q:\n%s%s", want, r.stdout, r.stderr)
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(os.TempDir(), "sekali-demo-*", "shop.db")); len(kept) != 1 {
		t.Errorf("--keep kept %v", kept)
	}
}

func TestAnInterruptedDemoLeavesNothingBehind(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		// It is in the middle once the shop is there.
		for ctx.Err() == nil {
			if found, _ := filepath.Glob(filepath.Join(os.TempDir(), "sekali-demo-*", "shop.db")); len(found) > 0 {
				cancel()
			}
		}
	}()
	var stdout, stderr bytes.Buffer
	status := cli.Run(ctx, []string{"demo"}, strings.NewReader(""), &stdout, &stderr)
	if status != 1 || stdout.Len() != 0 || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("status %d, %q, %q", status, stdout.String(), stderr.String())
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) != 0 {
		t.Errorf("the demo left %v behind", left)
	}
}

func TestAFolderThatCannotBeWrittenToIsNamed(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "not-there"))
	r := run(t, small...)
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "TMPDIR") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

func TestTheConsumerCommandIsForTheDemoAlone(t *testing.T) {
	if r := run(t, "demo-consumer"); r.status != 2 || !strings.Contains(r.stderr, "sekali demo") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

func TestAConsumerProcessEndsWhenItsParentIsGone(t *testing.T) {
	child := exec.Command(os.Args[0], "demo-consumer")
	child.Env = append(os.Environ(), "SEKALI_DEMO_CHILD=1")
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	_ = input.Close()
	if err := child.Wait(); err == nil {
		t.Error("it ended as if all were well")
	}
}
