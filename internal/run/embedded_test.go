package run

import (
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/run/config"
)

func TestAFolderIsForOneEmbeddedBrokerAtATime(t *testing.T) {
	source := config.Source{
		Stream: config.Text{Value: "ORDERS"}, Subjects: []string{"orders.>"}, Directory: t.TempDir() + "/a folder with % and #", Listen: "127.0.0.1:0",
	}
	first, err := startEmbedded(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := startEmbedded(t.Context(), source); err == nil || !strings.Contains(err.Error(), "does another broker run on it?") {
		second.close()
		t.Errorf("a second broker in the same folder: %v", err)
	}
	first.close()
	again, err := startEmbedded(t.Context(), source)
	if err != nil {
		t.Fatalf("when the first has ended: %v", err)
	}
	again.close()
}
