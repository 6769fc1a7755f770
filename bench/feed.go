package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

const skus = 1000

// order is a message, as every mode gets it.
type order struct {
	key string
	sku int
}

// feed is an endless queue of orders in memory, for workers and, as a
// broker.Source, for a Consumer. It ends with its time.
type feed struct {
	c     Case
	until time.Time
	run   string

	mu     sync.Mutex
	chance *mrand.Rand
	made   int
	recent []order

	acked atomic.Int64

	// start is called by the first Receive, if it is set: what is measured begins
	// only then.
	start sync.Once
	begin func()
}

var body = make([]byte, 100)

func newFeed(c Case, each time.Duration) *feed {
	var run [6]byte
	_, _ = rand.Read(run[:])
	return &feed{c: c, until: time.Now().Add(each), run: hex.EncodeToString(run[:]), chance: mrand.New(mrand.NewPCG(1, 2))}
}

func (f *feed) over() bool { return time.Now().After(f.until) }

// next returns n orders; those of a share of the skus alone if only > 0.
func (f *feed) next(n, worker, workers int) []order {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]order, n)
	for i := range all {
		if f.c.Duplicates > 0 && len(f.recent) > 0 && f.chance.Float64() < f.c.Duplicates {
			all[i] = f.recent[f.chance.IntN(len(f.recent))]
			continue
		}
		all[i] = order{f.key(), f.sku(worker, workers)}
		if f.c.Duplicates > 0 {
			if len(f.recent) < 1000 {
				f.recent = append(f.recent, all[i])
			} else {
				f.recent[f.chance.IntN(len(f.recent))] = all[i]
			}
		}
	}
	return all
}

// key makes a key as long as a UUID: random, or in the order of time.
func (f *feed) key() string {
	f.made++
	if f.c.TimeOrder {
		return fmt.Sprintf("%016x-%s-%06x", time.Now().UnixNano(), f.run, f.made)
	}
	return fmt.Sprintf("%016x%016x", f.chance.Uint64(), f.chance.Uint64()) + f.run[:4]
}

func (f *feed) sku(worker, workers int) int {
	if f.c.HotRows > 0 {
		return f.chance.IntN(f.c.HotRows)
	}
	n := f.chance.IntN(skus)
	if workers > 1 {
		n = n/workers*workers + worker
		if n >= skus {
			n -= workers
		}
	}
	return n
}

// Receive implements broker.Source.
func (f *feed) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if f.begin != nil {
		f.start.Do(f.begin)
	}
	if f.over() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	orders := f.next(max, 0, 1)
	slab := make([]broker.Delivery, len(orders))
	headers := make([]broker.Header, len(orders))
	got := make([]*broker.Delivery, len(orders))
	for i, o := range orders {
		sku := []byte(skuName(o.sku))
		headers[i] = broker.Header{Name: "sku", Value: sku}
		slab[i].Message = broker.Message{ID: o.key, Topic: "orders", Body: body, Headers: headers[i : i+1 : i+1]}
		if f.c.Mode == FromFile {
			slab[i].Message.Body = bodyOf(o)
		}
		if f.c.HotRows == 0 {
			slab[i].Message.OrderingKey = sku
		}
		got[i] = &slab[i]
	}
	return got, nil
}

// Settle implements broker.Source.
func (f *feed) Settle(_ context.Context, s []broker.Settlement) error {
	acks := 0
	for i := range s {
		if s[i].Action == broker.Ack {
			acks++
		}
	}
	f.acked.Add(int64(acks))
	return nil
}

// Close implements broker.Source.
func (f *feed) Close(context.Context) error { return nil }

func skuName(n int) string { return names[n] }

var names = func() (all [skus]string) {
	for i := range all {
		all[i] = fmt.Sprintf("SKU-%04d", i)
	}
	return all
}()

// skuOf returns the sku of a message.
func skuOf(m *sekali.Message) string { return string(m.Headers[0].Value) }

// counted is sku by sku how many of it are to be taken, in one order for all.
type counted struct {
	skus []string
	n    []int32
}

func count(n int, sku func(i int) string) counted {
	at := make(map[string]int, n)
	var c counted
	for i := range n {
		s := sku(i)
		j, ok := at[s]
		if !ok {
			j = len(c.skus)
			at[s] = j
			c.skus, c.n = append(c.skus, s), append(c.n, 0)
		}
		c.n[j]++
	}
	return c
}
