//go:build !race

package sekalitest

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
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

func TestTheCorrectConsumerOfTheMutantsPassesEveryDelivery(t *testing.T) {
	Run(t, mutantCase(mutants["00-correct"]))
}

func TestMutantsAreCaught(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "| mutant | what is broken | sekalivet finds | sekalitest fails |\n|---|---|---|---|\n")
	score, found := 0, findings(t)
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
		t.Run(name, func(t *testing.T) {
			// For the table all that catch it; else one is enough.
			caught = caughtUntil(t, mutantCase(newConsumer), os.Getenv("SEKALITEST_UPDATE") != "1")
		})
		why, allowed := uncaught[name]
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", name, whatIsBroken(t, name), strings.Join(found[name], " "), told(caught, why))
		if len(caught) > 0 {
			score++
		}
		switch {
		case len(caught) == 0 && !allowed:
			t.Errorf("%s is caught by no delivery", name)
		case len(caught) > 0 && allowed:
			t.Errorf("%s is caught by %q, though it is said not to be: %s", name, caught, why)
		case allowed && len(found[name]) == 0:
			t.Errorf("%s is found by sekalivet neither", name)
		}
	}
	t.Logf("\n%s\n%d of %d are caught.\n", table.String(), score, len(mutants)-1)
	compareWithDocs(t, table.String())
}

// findings returns what sekalivet finds in each mutant.
func findings(t *testing.T) map[string][]string {
	tool := filepath.Join(t.TempDir(), "sekalivet")
	if output, err := exec.Command("go", "build", "-o", tool, "../cmd/sekalivet").CombinedOutput(); err != nil {
		t.Fatalf("build sekalivet: %v\n%s", err, output)
	}
	vet := exec.Command(tool, "-json", "./...")
	vet.Dir = "../testdata/mutants"
	output, err := vet.Output()
	if err != nil {
		t.Fatalf("run sekalivet: %v", err)
	}
	var packages map[string]map[string][]any // package, check, findings
	if err := json.Unmarshal(output, &packages); err != nil {
		t.Fatalf("read what sekalivet found: %v", err)
	}
	found := map[string][]string{}
	for pkg, checks := range packages {
		found[path.Base(pkg)] = slices.Sorted(maps.Keys(checks))
	}
	return found
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
		if len(cells) == 4 {
			if !strings.HasPrefix(cells[3], "none") {
				cells[3] = "caught"
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
