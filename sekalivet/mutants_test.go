package sekalivet

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"
)

const mutants = "../testdata/mutants"

// caught says of each mutant which checks find it; none: no reading of the code
// finds it, and sekalitest has to, by running it.
var caught = map[string][]check{
	"00-correct":                 nil,
	"01-ack-before-commit":       nil,
	"02-retry-acknowledged":      nil,
	"03-key-after-handler":       nil,
	"04-key-before-handler":      nil,
	"05-check-then-insert":       nil,
	"06-key-in-memory":           nil,
	"07-pool-instead-of-tx":      {pool},
	"08-pool-in-helper":          {pool},
	"09-transaction-of-its-own":  {pool},
	"10-own-commit":              {end},
	"11-own-rollback":            {end},
	"12-swallowed-error":         {dropped},
	"13-swallowed-in-helper":     {dropped},
	"14-dropped-error":           {dropped},
	"15-overwritten-error":       {dropped},
	"16-rows-without-error":      {dropped},
	"17-panic-recovered":         {dropped},
	"18-goroutine":               {dropped, kept},
	"19-transaction-kept":        {kept},
	"20-ddl-in-handler":          {ddl},
	"21-http-in-handler":         {network},
	"22-effect-in-transaction":   {network},
	"23-effect-outside-ledger":   {effects},
	"24-effect-key-of-time":      {key},
	"25-request-key-by-chance":   {key},
	"26-effect-in-goroutine":     {effects},
	"27-key-of-time":             {key},
	"28-key-by-chance":           {key},
	"29-key-of-attempt":          {key},
	"30-key-counted":             {key},
	"31-key-of-broker":           nil,
	"32-key-too-coarse":          nil,
	"33-key-concatenated":        {parts},
	"34-key-of-body":             nil,
	"35-ack-in-handler":          {settle},
	"36-state-in-memory":         nil,
	"37-read-before-transaction": nil,
}

func TestMutantsAreCaughtAsTheTableSays(t *testing.T) {
	found := analyze(t)
	var table strings.Builder
	score := 0
	for _, name := range directories(t) {
		if name != "00-correct" && len(found[name]) > 0 {
			score++
		}
		fmt.Fprintf(&table, "%-28s %-12s %s\n", name, strings.Join(texts(found[name]), " "), broken(t, name))
		if want, known := caught[name]; !known {
			t.Errorf("%s is not in the table", name)
		} else if !slices.Equal(found[name], want) {
			t.Errorf("%s: found %v instead of %v", name, found[name], want)
		}
	}
	for name := range caught {
		if _, there := found[name]; !there {
			t.Errorf("%s is in the table, and nowhere else", name)
		}
	}
	t.Logf("\n%scaught: %d of %d", table.String(), score, len(found)-1)
}

func texts(checks []check) []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = string(c)
	}
	return names
}

func directories(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(mutants, "*", "consumer.go"))
	if err != nil || len(files) < 31 {
		t.Fatalf("only %d mutants are there: %v", len(files), err)
	}
	for i, f := range files {
		files[i] = filepath.Base(filepath.Dir(f))
	}
	return files
}

// broken is the first line of a mutant.
func broken(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(mutants, name, "consumer.go"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	text, is := strings.CutPrefix(lines.Text(), "// ")
	if !is {
		t.Fatalf("%s does not say in its first line what is broken", name)
	}
	return text
}

// analyze returns, for each mutant, the checks that find something in it.
func analyze(t *testing.T) map[string][]check {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Dir: mutants, Context: t.Context()}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if n := packages.PrintErrors(loaded); n > 0 {
		t.Fatalf("%d errors in the mutants' code", n)
	}
	graph, err := checker.Analyze([]*analysis.Analyzer{everything}, loaded, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]check{}
	for _, root := range graph.Roots {
		if root.Err != nil {
			t.Fatal(root.Err)
		}
		name := filepath.Base(root.Package.PkgPath)
		found[name] = nil
		for _, d := range root.Diagnostics {
			if c := check(d.Category); !slices.Contains(found[name], c) {
				found[name] = append(found[name], c)
			}
		}
		slices.Sort(found[name])
	}
	return found
}
