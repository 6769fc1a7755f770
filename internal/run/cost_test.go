package run

import (
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// BenchmarkJob is what sekali run does for a message besides the database's
// work: read its body, evaluate, bind.
func BenchmarkJob(b *testing.B) {
	plan, err := Load(`
consumer: stock-service
source: {url: "kafka://127.0.0.1:1", topics: orders}
database: sqlite:x.db
key: message_id
handle:
  - sql: UPDATE stock SET quantity = quantity - 1 WHERE sku = :sku
    params: {sku: body.sku}
`, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := &sekali.Message{Message: broker.Message{Body: []byte(`{"sku":"SKU-0001","order":"0123456789abcdef0123456789abcdef0123","quantity":1,"n":17}`)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := plan.whole(m); err != nil {
			b.Fatal(err)
		}
	}
}
