package cli_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store/sqlstore"
)

// effects makes a database with a few effects: 1 parked, 2 succeeded, 3
// unknown, 4 whose process ended.
func effects(t *testing.T) (url string) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	if r := run(t, "migrate", "up", "--database", url); r.status != 0 {
		t.Fatal(r.stderr)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows := sqlstore.New(db.SQL, db.Dialect()).Effects()
	start(t, rows, "k1", effect.Parked)
	start(t, rows, "k\x1b[2J", effect.Succeeded)
	start(t, rows, "k3", effect.Unknown)
	start(t, rows, "k4", "")
	return url
}

func start(t *testing.T, rows effect.Rows, key string, end effect.State) {
	t.Helper()
	r, _, err := rows.Start(t.Context(), effect.ID{Consumer: "courier", MessageKey: key, Name: "label"}, "idem-"+key[:1], 0)
	if end != "" {
		err = errors.Join(err, rows.End(t.Context(), r, end, []byte(`{"no":7}`), "no answer \x1b[2J"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

type effectRow struct {
	ID      int    `json:"id"`
	Status  string `json:"status"`
	GivenUp bool   `json:"given_up"`
	Result  any    `json:"result"`
}

func TestEffectsAreListedAndShown(t *testing.T) {
	url := effects(t)
	for args, want := range map[string]int{"": 4, "--status unknown": 1, "--status parked": 1, "--key k3": 1, "--name mail": 0, "--consumer courier --limit 2": 2, "--before 3": 2} {
		r := run(t, append([]string{"effects", "list", "--output", "json", "--database", url}, strings.Fields(args)...)...)
		var rows []effectRow
		if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil || len(rows) != want {
			t.Errorf("%q: %v, %d rows, want %d", args, err, len(rows), want)
		}
	}
	table := run(t, "effects", "list", "--database", url)
	if table.status != 0 || strings.Contains(table.stdout, "\x1b") || !strings.Contains(table.stdout, "started, its process ended") {
		t.Errorf("%d %q", table.status, table.stdout)
	}
	shown := run(t, "effects", "show", "2", "--database", url)
	if !strings.Contains(shown.stdout, `{"no":7}`) || strings.Contains(shown.stdout, "\x1b") || !strings.Contains(shown.stdout, "idem-k") {
		t.Errorf("%q", shown.stdout)
	}
}

func TestAnEffectIsResolved(t *testing.T) {
	url := effects(t)
	resolve := func(args ...string) (effectRow, result) {
		r := run(t, append([]string{"effects", "resolve", "--output", "json", "--database", url}, args...)...)
		var row effectRow
		_ = json.Unmarshal([]byte(r.stdout), &row)
		return row, r
	}
	if row, r := resolve("1", "--succeeded", "--result", `"PX-1"`); r.status != 0 || row.Status != "succeeded" || row.Result != "PX-1" {
		t.Errorf("%+v %+v", row, r)
	}
	if row, r := resolve("3", "--failed", "--note", "they closed"); r.status != 0 || row.Status != "failed" || !row.GivenUp {
		t.Errorf("%+v %+v", row, r)
	}
	if row, r := resolve("4", "--retry"); r.status != 0 || row.Status != "failed" || row.GivenUp {
		t.Errorf("%+v %+v", row, r)
	}
	for _, id := range []string{"2", "99"} {
		if _, r := resolve(id, "--retry"); r.status != 1 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("effect %s: %+v", id, r)
		}
	}
	for _, args := range [][]string{
		{"1"},
		{"one", "--retry"},
		{"4", "--retry", "--failed"},
		{"4", "--retry", "--result", "1"},
		{"4", "--succeeded", "--result", "PX-1"},
		{"4", "--retry", "--by", ""},
		{"--retry"},
	} {
		if _, r := resolve(args...); r.status != 2 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{{"list", "--status", "sad"}, {"list", "--limit", "0"}, {"list", "--before", "-1"}, {"show"}, {"show", "x"}} {
		if r := run(t, append(append([]string{"effects"}, args...), "--database", url)...); r.status != 2 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
