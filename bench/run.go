package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run"
)

// Runs returns what sekali run is measured against: Go code with Handle that does
// the same, in the same batches and with one message a transaction.
func Runs(kind dburl.Kind) (all []Case) {
	for _, workers := range []int{1, 4} {
		all = append(all, Case{Mode: Handle, Batch: 1, Workers: workers}, Case{Mode: Handle, Batch: 100, Workers: workers})
		if kind == dburl.PostgreSQL {
			all = append(all, Case{Mode: Pipelined, Batch: 100, Workers: workers})
		}
		all = append(all, Case{Mode: FromFile, Batch: 100, Workers: workers})
	}
	return all
}

// file is the consumer of the benchmark as people write it for sekali run: the
// message is JSON, and its sku is in it.
const file = `
consumer: ` + consumer + `
source: {url: "kafka://127.0.0.1:1", topics: orders} # the feed stands in for it
database: ${DATABASE}
key: message_id
batch: {size: %d}
workers: %d
handle:
  - sql: UPDATE stock SET quantity = quantity - 1 WHERE sku = :sku
    params: {sku: body.sku}
`

// fromFile is sekali run on the feed.
func fromFile(ctx context.Context, database string, c Case, f *feed) error {
	plan, err := run.Load(fmt.Sprintf(file, c.Batch, c.Workers), func(name string) (string, bool) {
		return database, name == "DATABASE"
	})
	if err != nil {
		return err
	}
	trouble := &watcher{}
	each := time.Until(f.until)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.begin = func() {
		f.until = time.Now().Add(each)
		timer := time.AfterFunc(each, cancel)
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	err = run.Run(ctx, plan, run.Options{Source: f, Observer: trouble, Log: slog.New(slog.DiscardHandler)})
	return errors.Join(err, trouble.err)
}

// bodyOf is the body of an order in JSON, about as long as others.
func bodyOf(o order) []byte {
	return []byte(`{"sku":"` + skuName(o.sku) + `","order":"` + o.key + `","quantity":1,"n":` + strconv.Itoa(o.sku) + `}`)
}
