package cli_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store/sqlstore"
)

// parkedLetter makes a database with a letter that waits for its effect 5.
func parkedLetter(t *testing.T) (url string) {
	t.Helper()
	url = effects(t)
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := sqlstore.New(db.SQL, db.Dialect())
	id := effect.ID{Consumer: "courier", MessageKey: "k\n5", Name: "label"}
	r, _, err := s.Effects().Start(t.Context(), id, "idem", 0)
	err = errors.Join(err, s.Effects().End(t.Context(), r, effect.Parked, nil, "no answer"), s.DeadLetters().Put(t.Context(), deadletter.Letter{
		Consumer: "courier", Key: "k\n5", Reason: deadletter.Parked, Status: deadletter.Waiting, Error: "no answer", Message: broker.Message{Body: []byte("B")},
	}))
	if err != nil {
		t.Fatal(err)
	}
	return url
}

const told = "effect 5 (label) of dead letter 1 is parked: say what became of it: sekali effects resolve 5 "

func TestARedriveTellsWhichEffectItWaitsFor(t *testing.T) {
	url := parkedLetter(t)
	for _, args := range [][]string{{"1", "--dry-run"}, {"1", "--wait", "0"}} {
		r := run(t, append([]string{"deadletters", "redrive", "--output", "json", "--database", url}, args...)...)
		var rows []struct{ Effects []int }
		if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil || r.status != 0 || len(rows) != 1 || len(rows[0].Effects) != 1 || rows[0].Effects[0] != 5 {
			t.Errorf("%v: %d %v %+v", args, r.status, err, r)
		}
		if !strings.Contains(r.stderr, told) {
			t.Errorf("%v does not name what it waits for: %q", args, r.stderr)
		}
	}
	if r := run(t, "deadletters", "redrive", "1", "--effects", "--wait", "0", "--database", url); r.status != 0 || strings.Contains(r.stderr, "effect 5") {
		t.Errorf("an effect that happens again waits for nobody: %+v", r)
	}
}

func TestADiscardTellsWhichEffectsAreUndecided(t *testing.T) {
	url := parkedLetter(t)
	if r := run(t, "deadletters", "discard", "1", "--database", url); r.status != 0 || !strings.Contains(r.stderr, told) {
		t.Errorf("%+v", r)
	}
	if r := run(t, "effects", "resolve", "5", "--failed", "--database", url); r.status != 0 {
		t.Errorf("what is left of a discarded letter cannot be resolved: %+v", r)
	}
}

func TestALetterNamesItsEffects(t *testing.T) {
	url := parkedLetter(t)
	if r := run(t, "deadletters", "show", "1", "--database", url); !strings.Contains(r.stdout, "\neffects\n  5  label  parked\n") || !strings.Contains(r.stdout, `k\n5`) {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	var l struct {
		Effects []struct {
			ID     int
			Name   string
			Status string
		}
	}
	r := run(t, "deadletters", "show", "1", "--output", "json", "--database", url)
	if err := json.Unmarshal([]byte(r.stdout), &l); err != nil || len(l.Effects) != 1 || l.Effects[0].ID != 5 || l.Effects[0].Status != "parked" {
		t.Errorf("%v %s", err, r.stdout)
	}
}

func TestADecisionAboutAnEffectIsNoError(t *testing.T) {
	url := effects(t)
	shown := run(t, "effects", "resolve", "1", "--succeeded", "--result", `"PX-1"`, "--by", "ayu", "--note", "they said so", "--database", url)
	if shown.status != 0 || !strings.Contains(shown.stdout, "decided") || !strings.Contains(shown.stdout, "by ayu, they said so") || strings.Contains(shown.stdout, "error") {
		t.Errorf("%+v", shown)
	}
	r := run(t, "effects", "show", "1", "--output", "json", "--database", url)
	if !strings.Contains(r.stdout, `"decided": "by ayu, they said so"`) || strings.Contains(r.stdout, `"error"`) {
		t.Errorf("%s", r.stdout)
	}
	if r := run(t, "effects", "list", "--status", "succeeded", "--key", "k1", "--database", url); !strings.Contains(r.stdout, "resolved by ayu") {
		t.Errorf("%s", r.stdout)
	}
}

func TestAResultOfAWrongShapeIsCorrected(t *testing.T) {
	url := effects(t)
	for _, result := range []string{`"PX-1"`, `{"no":8}`} {
		r := run(t, "effects", "resolve", "1", "--succeeded", "--result", result, "--output", "json", "--database", url)
		var row effectRow
		if err := json.Unmarshal([]byte(r.stdout), &row); err != nil || r.status != 0 {
			t.Fatalf("%s: %+v", result, r)
		}
		if got, err := json.Marshal(row.Result); err != nil || string(got) != result {
			t.Errorf("the result is %s, want %s", got, result)
		}
	}
}

func TestKeysThatWerePrintedArePastedBack(t *testing.T) {
	url := letters(t)
	decided(t, 0, url, "discard", "1") // a row, by which the consumer is known
	for _, args := range [][]string{
		{"deadletters", "list", "--key", `\x1b[31mred\x00`, "--output", "json"},
		{"keys", "find", `\x1b[31mred\x00`, "--output", "json"},
	} {
		if r := run(t, append(args, "--database", url)...); r.status != 0 || !strings.Contains(r.stdout, `"id": 2`) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	for _, args := range [][]string{
		{"deadletters", "redrive", "1", "--as-key", ""},
		{"deadletters", "redrive", "1", "--as-key", " "},
		{"deadletters", "redrive", "1", "--as-key", `\q`},
		{"deadletters", "discard", "--consumer", "", "--reason", "permanent", "--yes"},
		{"keys", "find", `\q`},
		{"keys", "forget", "order-1", "--consumer", "", "--yes"},
		{"outbox", "list", "--ordering-key", `\q`},
	} {
		if r := run(t, append(args, "--database", url)...); r.status != 2 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

func TestADryRunDoesNotCountWhatIsResolved(t *testing.T) {
	url := letters(t)
	decided(t, 0, url, "discard", "1")
	rows, stderr := decided(t, 1, url, "redrive", "1", "2", "--dry-run")
	if len(rows) != 2 || !strings.HasPrefix(stderr, "1 dead letter (permanent) to be processed again\n") || !strings.Contains(stderr, "1 dead letter is as before") {
		t.Errorf("%v %q", rows, stderr)
	}
	text := run(t, "deadletters", "redrive", "1", "2", "--dry-run", "--database", url)
	if !strings.Contains(text.stdout, "resolved already: it is discarded") {
		t.Errorf("%+v", text)
	}
}
