package cli_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
)

var update = flag.Bool("update", false, "write what commands print into testdata")

// shopDB returns a migrated file with a table of stock.
func shopDB(t *testing.T) *dbtest.DB {
	t.Helper()
	db := dbtest.SQLite(t)
	if _, err := db.SQL.Exec(`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestEveryBrokenFileIsToldByLineCauseAndMend(t *testing.T) {
	t.Setenv("DATABASE", shopDB(t).URL)
	t.Setenv("TOKEN", "geheim")
	files, err := filepath.Glob("testdata/broken/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d broken files (%v), want 20 at least", len(files), err)
	}
	line := regexp.MustCompile(`^testdata/broken/[a-z0-9-]+\.yaml:\d+(:\d+)?: [^:]+: .+$`)
	var all bytes.Buffer
	for _, file := range files {
		r := run(t, "run", "--check", "-c", file)
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		if r.status != 1 || r.stdout != "" || len(lines) < 2 || !strings.HasPrefix(lines[len(lines)-1], "sekali: "+file) {
			t.Errorf("%s: status %d, %q, %q", file, r.status, r.stdout, r.stderr)
		}
		for _, l := range lines[:len(lines)-1] {
			if !line.MatchString(l) {
				t.Errorf("it does not say line, cause and mend: %q", l)
			}
		}
		if strings.Contains(r.stderr, "geheim") {
			t.Errorf("%s: it shows a secret: %q", file, r.stderr)
		}
		all.WriteString(r.stderr + "\n")
	}
	const golden = "testdata/broken.golden"
	if *update {
		if err := os.WriteFile(golden, all.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(all.Bytes(), want) {
		t.Errorf("the messages have changed (-update writes them anew):\n%s", all.String())
	}
}
