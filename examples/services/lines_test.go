// Package services has no code: each directory below is a service.
package services

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// A test of a real consumer must not take more than this.
const maxLines = 40

func TestEachServiceIsTriedInLessThan40Lines(t *testing.T) {
	mains, err := filepath.Glob("*/main.go")
	if err != nil || len(mains) != 5 {
		t.Fatalf("%d services, want 5: %v", len(mains), err)
	}
	for _, main := range mains {
		file := filepath.Join(filepath.Dir(main), "main_test.go")
		source, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if n := bytes.Count(source, []byte("\n")); n >= maxLines {
			t.Errorf("%s has %d lines, want less than %d", file, n, maxLines)
		}
		if !bytes.Contains(source, []byte("sekalitest.Run(")) {
			t.Errorf("%s does not run sekalitest", file)
		}
	}
}
