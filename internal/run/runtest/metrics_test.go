//go:build !fast

package runtest

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/dbtest"
)

// page gets one of a process; empty: it does not answer.
func page(t testing.TB, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	return string(text)
}

func TestPrometheusReadsWhatTheBinaryDoes(t *testing.T) {
	t.Parallel()
	db, broker, address, folder := dbtest.SQLite(t), freeAddress(t), freeAddress(t), t.TempDir()
	newShop(t, db)
	file := `consumer: stock-service
source: {url: nats://embedded, stream: ORDERS, subjects: orders.>, directory: broker, listen: "` + broker + `"}
database: ${SHOP_DATABASE}
key: {header: idempotency-key}
handle:
  - sql: UPDATE stock SET quantity = quantity - 1 WHERE sku = :sku
    params: {sku: body.sku}
    rows: 1
publish:
  - {topic: orders.taken, json: {sku: body.sku}, when: topic == "orders.paid"}
http: {listen: "` + address + `"}
`
	if err := os.WriteFile(filepath.Join(folder, "sekali.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, []string{"SHOP_DATABASE=" + db.URL}, folder)
	for _, m := range [][2]string{{"a", "SKU-1"}, {"a", "SKU-1"}, {"b", "SKU-2"}, {"c", "NONE"}} {
		command(t, nil, "publish", "--broker", "nats://"+broker, "--topic", "orders.paid", "--header", "idempotency-key="+m[0], `{"sku":"`+m[1]+`"}`)
	}
	// a and b, and the events that they publish, which come to the same stream.
	want := []string{
		`sekali_messages_total{consumer="stock-service",outcome="processed"} 4`,
		`sekali_messages_total{consumer="stock-service",outcome="duplicate"} 1`,
		`sekali_duplicates_total{cause="repeat",consumer="stock-service"} 1`,
		`sekali_dead_letters_total{consumer="stock-service",reason="permanent"} 1`,
		`sekali_outbox_published_total 2`,
		`sekali_dead_letters_waiting{status="open"} 1`,
		`sekali_database_up 1`,
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text := page(t, "http://"+address+"/metrics")
		missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return strings.Contains(text, line+"\n") })
		if len(missing) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("missing are %q of\n%s", missing, text)
		}
	}
	if text := page(t, "http://"+address+"/readyz"); text != "running\n" {
		t.Errorf("it says %q of itself", text)
	}
	p.term()
}
