//go:build !fast

package runtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// step is one of the guide: commands, and what they print.
type step struct{ commands, prints string }

var blocks = regexp.MustCompile("(?s)```sh\n(.*?)```\n(?:```text\n(.*?)```\n)?")

func TestTheGuideWorksAsItIsWritten(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), "127.0.0.1:4222", "${BROKER}")
	text = strings.ReplaceAll(text, "127.0.0.1:9464", "${PAGE}")
	var steps []step
	for _, found := range blocks.FindAllStringSubmatch(text, -1) {
		steps = append(steps, step{found[1], found[2]})
	}
	if n := strings.Count(text, "```sh"); len(steps) != 10 || n != 10 {
		t.Fatalf("%d steps of %d blocks, want 10", len(steps), n)
	}
	const mark = "=== the end of a step"
	// A consumer that is left behind would outlive the test.
	script := "set -eu\ntrap 'kill -9 ${consumer:-} 2>/dev/null || true' EXIT\n"
	for _, s := range steps {
		script += strings.ReplaceAll(s.commands, "nats://${BROKER}", "nats://$BROKER") + "\necho '" + mark + "'\n"
	}
	c := exec.CommandContext(t.Context(), "bash", "-c", script)
	c.Dir = t.TempDir()
	broker, address := freeAddress(t), freeAddress(t)
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(sekali(t))+":"+os.Getenv("PATH"),
		"SEKALI_LISTEN_BROKER="+broker, "SEKALI_LISTEN="+address, "BROKER="+broker, "PAGE="+address, "SEKALI_DATABASE_URL=")
	var errs strings.Builder
	c.Stderr = &errs
	out, err := c.Output()
	printed := strings.Split(string(out), mark+"\n")
	for i, s := range steps {
		if i >= len(printed)-1 {
			t.Fatalf("step %d ends the guide: %v: %s\n%s", i+1, err, errs.String(), printed[len(printed)-1])
		}
		if printed[i] != s.prints {
			t.Errorf("step %d prints %q, and the guide says %q", i+1, printed[i], s.prints)
		}
	}
	if err != nil {
		t.Errorf("the guide fails: %v: %s", err, errs.String())
	}
}
