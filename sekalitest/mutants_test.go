package sekalitest

import (
	"bufio"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// mutantMessages are what the mutants are tried on: two orders and two events
// of one, keys that are the same when their parts are put together, and an
// event that its producer writes twice, in two ways.
var mutantMessages = []broker.Message{
	{Body: []byte(`{"order":"4","event":"2paid","sku":"KOPI-250","quantity":3}`)},
	{Body: []byte(`{"order":"42","event":"extended","sku":"KOPI-250","quantity":4}`)},
	{Body: []byte(`{"order":"42","event":"paid","sku":"KOPI-250","quantity":2}`)},
	{Body: []byte(`{"event":"paid","order":"42","quantity":2,"sku":"KOPI-250"}`)}, // last: it would stand in for the other where that is lost
}

func mutantCase(newConsumer func(*sql.DB, broker.Source, string) sekali.Config[*sql.Tx]) func(testing.TB) Case[*sql.Tx] {
	return func(t testing.TB) Case[*sql.Tx] {
		db, provider := SQLite(t, mutantSchema), NewProvider(t)
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) sekali.Config[*sql.Tx] { return newConsumer(db, source, provider.URL) },
			Messages: mutantMessages,
			Refused:  []broker.Message{{Body: []byte(`{"order":"7","event":"paid","sku":"KOPI-250","quantity":1000}`)}},
			Snapshot: Rows(db, "SELECT sku, quantity FROM stock", "SELECT order_id, count(*), count(label) FROM shipments GROUP BY order_id ORDER BY order_id"),
			Want:     "KOPI-250 | 91\n\n4 | 1 | 1\n42 | 2 | 2\n",
			Provider: provider,
		}
	}
}

// uncaught are the mutants that no delivery on SQLite catches, and why.
var uncaught = map[string]string{
	"11-own-rollback":   "Sekali sees that its transaction is gone: the message becomes a dead letter without an effect, as it is to",
	"20-ddl-in-handler": "SQLite rolls DDL back like everything else; on MySQL it commits",
}

// unread are those that no reading of the code finds, so that this kit has to.
var unread = []string{
	"01-ack-before-commit", "02-retry-acknowledged", "03-key-after-handler", "04-key-before-handler", "05-check-then-insert",
	"06-key-in-memory", "31-key-of-broker", "32-key-too-coarse", "34-key-of-body", "36-state-in-memory", "37-read-before-transaction",
}

func TestTheCorrectConsumerOfTheMutantsPassesEveryDelivery(t *testing.T) {
	Run(t, mutantCase(mutants["00-correct"]))
}

func TestMutantsAreCaught(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "| mutant | what is broken | caught by |\n|---|---|---|\n")
	score := 0
	for _, name := range mutantNames(t) {
		newConsumer, known := mutants[name]
		switch {
		case !known:
			t.Errorf("%s is not in mutants_list_test.go", name)
			continue
		case name == "00-correct":
			continue
		}
		var caught []string
		t.Run(name, func(t *testing.T) { caught = caughtBy(t, mutantCase(newConsumer)) })
		why, allowed := uncaught[name]
		fmt.Fprintf(&table, "| %s | %s | %s |\n", name, whatIsBroken(t, name), told(caught, why))
		if len(caught) > 0 {
			score++
		}
		switch {
		case len(caught) == 0 && !allowed:
			t.Errorf("%s is caught by no delivery", name)
		case len(caught) > 0 && allowed:
			t.Errorf("%s is caught by %q, though it is said not to be: %s", name, caught, why)
		case allowed && slices.Contains(unread, name):
			t.Errorf("%s is found by no reading either", name)
		}
	}
	t.Logf("\n%s\n%d of %d are caught.\n", table.String(), score, len(mutants)-1)
	compareWithDocs(t, table.String())
}

// told is how the table says what caught a mutant: the first deliveries. Which
// others do may differ from run to run: it matters which messages share a
// transaction.
func told(caught []string, why string) string {
	if len(caught) == 0 {
		return "none: " + why
	}
	text := strings.Join(caught[:min(3, len(caught))], "; ")
	if n := len(caught) - 3; n > 0 {
		text += fmt.Sprintf("; %d more", n)
	}
	return text
}

const (
	docs       = "../docs/testing.md"
	tableBegin = "<!-- mutants: SEKALITEST_UPDATE=1 go test -run TestMutantsAreCaught ./sekalitest -->\n"
	tableEnd   = "<!-- end of mutants -->\n"
)

// compareWithDocs has the table stand in the docs: the same mutants, and the
// same of them caught.
func compareWithDocs(t *testing.T, table string) {
	content, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), tableBegin)
	old, after, ends := strings.Cut(rest, tableEnd)
	if !found || !ends {
		t.Fatalf("%s has no place for the table", docs)
	}
	if os.Getenv("SEKALITEST_UPDATE") == "1" && !t.Failed() {
		if err := os.WriteFile(docs, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is, said := verdicts(table), verdicts(old); !slices.Equal(is, said) {
		t.Errorf("%s says\n%s\nwant\n%s\n(write it with the command that stands above the table)", docs, strings.Join(said, "\n"), strings.Join(is, "\n"))
	}
}

// verdicts are the rows of a table without what caught each mutant.
func verdicts(table string) (rows []string) {
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) == 3 {
			if !strings.HasPrefix(cells[2], "none") {
				cells[2] = "caught"
			}
			rows = append(rows, strings.Join(cells, " | "))
		}
	}
	return rows
}

func mutantNames(t *testing.T) (names []string) {
	files, err := filepath.Glob("../testdata/mutants/*/consumer.go")
	if err != nil || len(files) != len(mutants) {
		t.Fatalf("%d mutants are there, and %d in mutants_list_test.go: %v", len(files), len(mutants), err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return names
}

// whatIsBroken is the first line of a mutant.
func whatIsBroken(t *testing.T, name string) string {
	f, err := os.Open(filepath.Join("../testdata/mutants", name, "consumer.go"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	return strings.TrimPrefix(lines.Text(), "// ")
}
