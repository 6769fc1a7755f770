package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/run/config"
)

func TestWhatFollowsTheDocumentIsNotOverlooked(t *testing.T) {
	for text, says := range map[string]string{file + "---\n{{{\n": "it is not YAML", file + "---\na: b\n": "a second document begins"} {
		if _, err := config.Read(text, lookup); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, and it should say %q", err, says)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"../../../examples/run/*.yaml", "../../../examples/run/*/*.yaml", "../testdata/*.yaml", "../testdata/*/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			text, _ := os.ReadFile(name)
			f.Add(string(text))
		}
	}
	f.Add("# only a comment\n")
	f.Add("---\n")
	f.Add("? [a]\n: b\n")
	f.Add("a: &a [*a]\n")
	f.Add("<<: {consumer: x}\n")
	f.Add("a: b\n---\n{{{")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.Read(text, func(string) (string, bool) { return "value", true })
		if c == nil {
			t.Fatal("no file")
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "line ") {
					t.Errorf("%q: %q", text, line)
				}
			}
		}
	})
}
