package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/cli"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
)

// database makes one of a kind for a test, with its tables.
type database func(testing.TB, ...dbtest.Option) *dbtest.DB

func TestKeysOnSQLite(t *testing.T) { keysOn(t, dbtest.SQLite) }

// keysOn runs the commands about keys on a kind of database.
func keysOn(t *testing.T, open database) {
	t.Run("a key is found wherever it was processed or died", func(t *testing.T) { findsKeys(t, open(t).URL) })
	t.Run("keys are seeded once, from a file or a pipe", func(t *testing.T) { seedsKeys(t, open(t).URL) })
	t.Run("a file that cannot be meant stops the seeding", func(t *testing.T) { refusesKeys(t, open(t).URL) })
	t.Run("forgetting counts first and asks", func(t *testing.T) { forgetsKeys(t, open(t).URL) })
	t.Run("what consumers did is counted by day", func(t *testing.T) { countsKeys(t, open(t).URL) })
	t.Run("without tables the mend is named", func(t *testing.T) {
		url := open(t, dbtest.Empty()).URL
		for _, args := range [][]string{{"find", "k"}, {"stats"}, {"stats", "--rows"}, {"forget", "k"}} {
			if r := keys(t, url, args...); r.status != 1 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "sekali migrate up") {
				t.Errorf("%q: %+v", args, r)
			}
		}
	})
}

func keys(t *testing.T, url string, args ...string) result {
	t.Helper()
	return run(t, append(append([]string{"keys"}, args...), "--database", url)...)
}

// piped runs a command about keys with a standard input.
func piped(t *testing.T, url, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cli.Run(t.Context(), append(append([]string{"keys"}, args...), "--database", url), strings.NewReader(stdin), &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

// into reads a command's JSON.
func into(t *testing.T, r result, value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), value); err != nil || r.status != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
}

type found struct {
	Processed []struct {
		Consumer    string    `json:"consumer"`
		Stored      string    `json:"stored_key"`
		ProcessedAt time.Time `json:"processed_at"`
	} `json:"processed"`
	DeadLetters []struct {
		ID       int    `json:"id"`
		Consumer string `json:"consumer"`
		Status   string `json:"status"`
	} `json:"dead_letters"`
}

func findsKeys(t *testing.T, url string) {
	hostile, long := "k\x1b[2J", strings.Repeat("k", 300)
	for _, consumer := range []string{"stock", "courier"} {
		if r := piped(t, url, hostile+"\n"+long+"\n", "seed", "--consumer", consumer, "--processed-at", "2026-03-01T12:00:00.5Z"); r.status != 0 {
			t.Fatal(r)
		}
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = sqlstore.New(db.SQL, db.Dialect()).DeadLetters().Put(t.Context(), deadletter.Letter{
		Consumer: "stock", Key: hostile, Reason: deadletter.Conflict, Message: broker.Message{Body: []byte("b")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{hostile, long, store.StoredKey(long)} {
		var f found
		into(t, keys(t, url, "find", key, "--output", "json"), &f)
		if len(f.Processed) != 2 || f.Processed[0].Consumer != "courier" || f.Processed[1].Stored != store.StoredKey(long) && key != hostile ||
			!f.Processed[0].ProcessedAt.Equal(time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.UTC)) {
			t.Errorf("%.10q: %+v", key, f)
		}
		if letters := len(f.DeadLetters); letters != map[bool]int{true: 1, false: 0}[key == hostile] {
			t.Errorf("%.10q: %d dead letters", key, letters)
		}
	}
	text := keys(t, url, "find", hostile)
	for _, want := range []string{"courier", "2026-03-01 12:00:00.500", `k\x1b[2J`, "dead letter 1, open (conflict)"} {
		if !strings.Contains(text.stdout, want) {
			t.Errorf("the table does not say %q: %+v", want, text)
		}
	}
	if strings.Contains(text.stdout, "\x1b") {
		t.Errorf("the table sends commands to the terminal: %q", text.stdout)
	}
	if none := keys(t, url, "find", "K\x1b[2J"); none.status != 0 || none.stdout != "" || !strings.Contains(none.stderr, "no consumer") {
		t.Errorf("another key: %+v", none)
	}
	var f found
	if into(t, keys(t, url, "find", "other", "--output", "json"), &f); f.Processed == nil || f.DeadLetters == nil {
		t.Errorf("another key in JSON: %+v", f)
	}
}

func seedsKeys(t *testing.T, url string) {
	var list strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&list, "order-%04d\n", i)
	}
	file := filepath.Join(t.TempDir(), "keys.txt")
	if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var sum struct {
		Read      int `json:"read"`
		Recorded  int `json:"recorded"`
		WereThere int `json:"were_there"`
	}
	seed := []string{"seed", "--consumer", "stock", "--batch", "999", "--by", "ayu", "--note", "before the switch", "--output", "json"}
	if into(t, keys(t, url, append(seed, file)...), &sum); sum.Read != 2500 || sum.Recorded != 2500 || sum.WereThere != 0 {
		t.Errorf("seeded: %+v", sum)
	}
	if into(t, piped(t, url, list.String()+"order-new", append(seed, "-")...), &sum); sum.Recorded != 1 || sum.WereThere != 2500 {
		t.Errorf("seeded again: %+v", sum)
	}
	if into(t, piped(t, url, "two\nlines\r\x00other", append(seed, "--null")...), &sum); sum.Recorded != 2 {
		t.Errorf("with NUL: %+v", sum)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := sqlstore.New(db.SQL, db.Dialect())
	for _, key := range []string{"order-0000", "order-2499", "order-new", "two\nlines\r", "other"} {
		if seen, err := s.Seen(t.Context(), store.Claim{Consumer: "stock", Keys: []store.Key{{Raw: key}}}); err != nil || seen[0] != store.Duplicate {
			t.Errorf("%q is %v, %v", key, seen, err)
		}
	}
	trail, err := s.DeadLetters().(deadletter.Desk).Trail(t.Context(), 0, 10)
	if err != nil || len(trail) != 5 || trail[0].By != "ayu" || !strings.HasPrefix(trail[0].Detail, `999 keys, "order-0000" to "order-0998", before the switch`) {
		t.Errorf("the trail: %+v, %v", trail, err)
	}
	if r := keys(t, url, "seed", "--consumer", "b", file); r.status != 0 || r.stdout != "2500 keys read, 2500 recorded for b, 0 were there already or came twice\n" {
		t.Errorf("in words: %+v", r)
	}
}

func refusesKeys(t *testing.T, url string) {
	good := []string{"seed", "--consumer", "stock"}
	for _, c := range []struct {
		stdin  string
		args   []string
		status int
		says   string
	}{
		{"a\n\nb\n", good, 1, "line 2 is blank"},
		{"a\nb\r\n", good, 1, "line 2 ends with a carriage return"},
		{"a\n" + strings.Repeat("x", 1<<20+1), good, 1, "line 2 is longer"},
		{"a\n", []string{"seed"}, 2, "--consumer"},
		{"a\n", append(good, "--batch", "0"), 2, "--batch 0"},
		{"a\n", append(good, "--by", ""), 2, "--by"},
		{"a\n", append(good, "--processed-at", "yesterday"), 2, `"yesterday"`},
		{"a\n", append(good, "--processed-at", "2999-01-01"), 2, "to come"},
		{"a\n", append(good, "/no/such/file"), 1, "/no/such/file"},
		{"a\n", append(good, "one", "two"), 2, "one file"},
		{"", []string{"find"}, 2, "one key"},
		{"", []string{"forget"}, 2, "keys"},
		{"", []string{"forget", "a", "--by", ""}, 2, "--by"},
		{"", []string{"stats", "--days", "0"}, 2, "--days 0"},
		{"", []string{"stats", "--days", "3", "--rows"}, 2, "--days"},
	} {
		if r := piped(t, url, c.stdin, c.args...); r.status != c.status || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%q: %+v, want %q", c.args, r, c.says)
		}
	}
	// What comes before the line that is wrong is not recorded half.
	if r := piped(t, url, "a\nb\n\n", append(good, "--batch", "2")...); r.status != 1 || !strings.Contains(r.stderr, "2 keys were recorded before") {
		t.Errorf("the third of three lines is blank: %+v", r)
	}
	var f found
	if into(t, keys(t, url, "find", "b", "--output", "json"), &f); len(f.Processed) != 1 {
		t.Errorf("the batch before is not there: %+v", f)
	}
}

func forgetsKeys(t *testing.T, url string) {
	long := strings.Repeat("k", 300)
	for _, consumer := range []string{"stock", "courier"} {
		if r := piped(t, url, "a\nb\n"+long+"\n", "seed", "--consumer", consumer); r.status != 0 {
			t.Fatal(r)
		}
	}
	if r := keys(t, url, "forget", "a", "b"); r.status != 2 || !strings.HasPrefix(r.stderr, "4 rows to be forgotten\n") || !strings.Contains(r.stderr, "--yes") ||
		strings.Count(r.stdout, "\n") != 5 {
		t.Errorf("without --yes: %+v", r)
	}
	count := func(key string) int {
		t.Helper()
		var f found
		into(t, keys(t, url, "find", key, "--output", "json"), &f)
		return len(f.Processed)
	}
	if n := count("a") + count("b"); n != 4 {
		t.Errorf("it forgot without --yes: %d rows are left", n)
	}
	var rows []struct {
		Consumer string `json:"consumer"`
		Stored   string `json:"stored_key"`
	}
	into(t, keys(t, url, "forget", "a", long, store.StoredKey(long), "nobody's", "--consumer", "stock", "--yes", "--by", "ayu", "--output", "json"), &rows)
	if len(rows) != 2 || rows[0].Consumer != "stock" || rows[0].Stored != "a" {
		t.Errorf("forgotten: %+v", rows)
	}
	if a, b, l := count("a"), count("b"), count(long); a != 1 || b != 2 || l != 1 {
		t.Errorf("left are %d, %d, %d rows", a, b, l)
	}
	if r := keys(t, url, "forget", "nobody's", "--yes"); r.status != 0 || r.stdout != "" || r.stderr != "0 rows to be forgotten\n" {
		t.Errorf("a key of nobody: %+v", r)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trail, err := sqlstore.New(db.SQL, db.Dialect()).DeadLetters().(deadletter.Desk).Trail(t.Context(), 0, 2)
	if err != nil || len(trail) != 2 || trail[1].By != "ayu" || trail[1].Action != "forget key" || trail[1].Key != long {
		t.Errorf("the trail: %+v, %v", trail, err)
	}
}

func countsKeys(t *testing.T, url string) {
	today := time.Now().UTC().YearDay()
	if r := keys(t, url, "stats"); r.status != 0 || r.stdout != "" || !strings.Contains(r.stderr, "--rows") {
		t.Errorf("with nothing done: %+v", r)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	counts := store.Counts{Processed: 10, Redelivered: 3, Repeated: 1, DeadLetters: 2}
	counts.Ages[store.AgeClass(time.Minute)] = 4
	for _, consumer := range []string{"stock", "courier", "stock"} {
		if err := sqlstore.New(db.SQL, db.Dialect()).Stats().Add(t.Context(), consumer, counts); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.SQL.Exec("UPDATE consumer_stats SET at_minute = at_minute - 2880 WHERE consumer_name = 'courier'"); err != nil {
		t.Fatal(err)
	}
	var days []struct {
		Day        string   `json:"day"`
		Consumer   string   `json:"consumer"`
		Processed  int      `json:"processed"`
		Duplicates int      `json:"duplicates"`
		Within     *float64 `json:"duplicates_within_seconds"`
	}
	total := func(args ...string) string {
		t.Helper()
		into(t, keys(t, url, append([]string{"stats", "--output", "json"}, args...)...), &days)
		text := ""
		for _, d := range days {
			text += fmt.Sprint(d.Consumer, " ", d.Processed, " ", d.Duplicates, " ", *d.Within, ", ")
		}
		return text
	}
	for args, want := range map[string]string{"": "courier 10 4 60, stock 20 8 60, ", "--days 2": "stock 20 8 60, ", "--consumer courier": "courier 10 4 60, "} {
		if got := total(strings.Fields(args)...); got != want && time.Now().UTC().YearDay() == today { // else midnight has come between
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	if r := keys(t, url, "stats"); !strings.Contains(r.stdout, "1m0s") || !strings.Contains(r.stdout, "99.9% WITHIN") {
		t.Errorf("the table: %+v", r)
	}
	if r := piped(t, url, "a\nb\n", "seed", "--consumer", "stock", "--processed-at", "2026-03-01T23:59:59Z"); r.status != 0 {
		t.Fatal(r)
	}
	if r := keys(t, url, "stats", "--rows"); r.status != 0 || r.stdout != "DAY (UTC)   CONSUMER  ROWS\n2026-03-01  stock     2\n" {
		t.Errorf("rows: %+v", r)
	}
	if r := keys(t, url, "stats", "--rows", "--output", "json", "--consumer", "nobody"); r.stdout != "[]\n" {
		t.Errorf("rows of nobody: %+v", r)
	}
}
