package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// build makes the binary.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "sekalivet")
	run(t, ".", 0, "go", "build", "-o", binary, ".")
	return binary
}

// run runs a command in a folder, which must end with the status, and returns
// what it wrote.
func run(t *testing.T, folder string, status int, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Fatalf("%s %s: exit status %d instead of %d\n%s", name, strings.Join(args, " "), got, status, out)
	}
	return string(out)
}

// module makes a module of a user, with this Sekali.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(repository, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	files["go.mod"] = strings.Replace(string(mod), "module github.com/sekali/sekali", "module shop", 1) +
		"\nrequire github.com/sekali/sekali v0.0.0\n\nreplace github.com/sekali/sekali => " + repository + "\n"
	files["go.sum"] = string(sums)
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

const courier = `package courier

import "net/http"

func Label() error {
	_, err := http.Post("http://localhost", "", nil)
	return err
}
`

const handler = `package main

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali"

	"shop/courier"
)

var db *sql.DB

func handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if err := courier.Label(); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "UPDATE stock SET quantity = 0")
	return err
}

func main() {
	_, err := sekali.NewConsumer(sekali.Config[*sql.Tx]{Handle: handle, Key: sekali.MessageID()})
	if err != nil {
		panic(err)
	}
}
`

// found are the lines of a report: file, line and the beginning of the message.
func found(out string) []string {
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)([a-z]+\.go:[0-9]+):[0-9]+: ([^ ]+)`).FindAllStringSubmatch(out, -1) {
		lines = append(lines, m[1]+" "+m[2])
	}
	slices.Sort(lines)
	return lines
}

func TestGoVetRunsItOnAUsersModule(t *testing.T) {
	binary := build(t)
	folder := module(t, map[string]string{"main.go": handler, "courier/courier.go": courier})

	want := []string{"main.go:15 http.Post,", "main.go:18 db.ExecContext"}
	if got := found(run(t, folder, 1, "go", "vet", "-vettool="+binary, "./...")); !slices.Equal(got, want) {
		t.Errorf("go vet reports %q instead of %q", got, want)
	}
	if got := found(run(t, folder, 3, binary, "./...")); !slices.Equal(got, want) {
		t.Errorf("by itself it reports %q instead of %q", got, want)
	}
	out := run(t, folder, 1, "go", "vet", "-vettool="+binary, "-sekalipool=false", "./...")
	if got := found(out); !slices.Equal(got, want[:1]) {
		t.Errorf("with the check for pools turned off go vet reports %q", got)
	}
	run(t, folder, 0, binary, "-fix", "./...")
	mended, err := os.ReadFile(filepath.Join(folder, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mended), "_, err := tx.ExecContext(ctx,") {
		t.Errorf("-fix left the pool in its place:\n%s", mended)
	}
}

// ownHandler is a package with a finding of its own.
const ownHandler = `package stock

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali"
)

var db *sql.DB

func Handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	_, err := db.ExecContext(ctx, "UPDATE stock SET quantity = 0")
	return err
}
`

func TestWhatGoVetMetAsADependencyFirstIsReportedLater(t *testing.T) {
	binary := build(t)
	for name, test := range map[string]string{
		"without tests":                 "",
		"with tests in the package":     "package stock\n",
		"with tests beside the package": "package stock_test\n",
		"with tests for other tags":     "//go:build other\n\npackage stock\n",
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{
				"main.go":        "package main\n\nimport \"shop/stock\"\n\nvar _ = stock.Handle\n\nfunc main() {}\n",
				"stock/stock.go": ownHandler + "\n// " + t.TempDir() + "\n", // nothing is in the cache
			}
			if test != "" {
				files["stock/stock_test.go"] = test
			}
			folder := module(t, files)
			first := exec.CommandContext(t.Context(), "go", "vet", "-vettool="+binary, ".")
			first.Dir, first.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
			_ = first.Run() // the findings of a dependency may be told now or later
			want := []string{"stock.go:13 db.ExecContext"}
			for _, packages := range []string{"./stock", "./...", "./..."} {
				if got := found(run(t, folder, 1, "go", "vet", "-vettool="+binary, packages)); !slices.Equal(got, want) {
					t.Errorf("go vet %s reports %q instead of %q", packages, got, want)
				}
			}
		})
	}
}

func TestWhatIsInTestdataIsLeftAloneThoughATestImportsIt(t *testing.T) {
	binary := build(t)
	folder := module(t, map[string]string{
		"main.go":                 "package main\n\nfunc main() {}\n",
		"main_test.go":            "package main\n\nimport \"shop/testdata/stock\"\n\nvar _ = stock.Handle\n",
		"testdata/stock/stock.go": ownHandler + "\n// " + t.TempDir() + "\n", // nothing is in the cache
	})
	if out := run(t, folder, 0, "go", "vet", "-vettool="+binary, "./..."); strings.TrimSpace(out) != "" {
		t.Errorf("go vet prints:\n%s", out)
	}
}

func TestCorrectCodePassesInSilence(t *testing.T) {
	binary := build(t)
	right := strings.Replace(handler, "db.ExecContext", "tx.ExecContext", 1)
	right = strings.Replace(right, "	if err := courier.Label()", "	//sekalivet:allow it is on this machine\n	if err := courier.Label()", 1)
	folder := module(t, map[string]string{"main.go": right, "courier/courier.go": courier})
	if out := run(t, folder, 0, "go", "vet", "-vettool="+binary, "./..."); strings.TrimSpace(out) != "" {
		t.Errorf("go vet prints:\n%s", out)
	}
}
