package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the demo's consumer process when a demo starts it so.
func TestMain(m *testing.M) {
	if IsChild() {
		if err := Child(context.Background(), os.Stdin, os.Stdout); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A demo that could not fail would prove nothing.
func TestTheDemoSeesABrokenConsumer(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	report, err := Play(t.Context(), Config{
		Orders: 100, Duplicates: 0.2, Crashes: 1, Seed: 1, Command: []string{os.Args[0]}, randomKeys: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.OK {
		t.Error("a consumer that takes random keys is reported as exact")
	}
	for _, c := range report.Consumers {
		if c.Found <= c.Expected || c.Exact {
			t.Errorf("%s is reported as exact: %+v", c.Name, c)
		}
	}
	var table strings.Builder
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "NOT exact") {
		t.Errorf("the table does not say so: %s", table.String())
	}
}

func TestAConsumerThatCannotStartIsNamedWithItsReason(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := Play(t.Context(), Config{Orders: 10, Seed: 1, Command: []string{"/bin/sh", "-c", "echo no beans >&2; exit 3"}})
	if err == nil || !strings.Contains(err.Error(), "no beans") || !strings.Contains(err.Error(), "-service") {
		t.Errorf("the error is %v", err)
	}
}

func TestAFolderThatIsFullIsNamedAsTheCause(t *testing.T) {
	gone := t.TempDir() + "/not-there"
	hidden := errors.New("the server did not confirm in time")
	err := explain(hidden, gone)
	if !errors.Is(err, hidden) || !strings.Contains(err.Error(), gone) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("the error is %v", err)
	}
	if err := explain(hidden, t.TempDir()); !errors.Is(err, hidden) || strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a folder that is not full is blamed: %v", err)
	}
}
