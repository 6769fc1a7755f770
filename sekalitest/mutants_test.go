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
	{Body: []byte(`{"order":"42","event":"paid","sku":"KOPI-250","quantity":2}`)},
	{Body: []byte(`{"order":"4","event":"2paid","sku":"KOPI-250","quantity":3}`)},
	{Body: []byte(`{"order":"42","event":"extended","sku":"KOPI-250","quantity":4}`)},
	{Body: []byte(`{"event":"paid","order":"42","quantity":2,"sku":"KOPI-250"}`)},
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
		t.Logf("%s: %s", name, strings.Join(caught, ", "))
		why, allowed := uncaught[name]
		switch {
		case len(caught) == 0 && !allowed:
			t.Errorf("%s is caught by no delivery", name)
		case len(caught) > 0 && allowed:
			t.Errorf("%s is caught by %q, though it is said not to be: %s", name, caught, why)
		case allowed && slices.Contains(unread, name):
			t.Errorf("%s is found by no reading either", name)
		}
	}
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
