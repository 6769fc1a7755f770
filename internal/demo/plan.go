package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sekali/sekali/broker"
)

// keyHeader is the header in which the producer sends an order's key.
const keyHeader = "idempotency-key"

// skus are what the shop sells.
var skus = []string{
	"KOPI-250", "KOPI-500", "KOPI-1000", "TEH-100", "GULA-500", "SUSU-1L", "CANGKIR", "FILTER-100", "TERMOS", "SENDOK",
}

// stockAtStart is how much there is of each sku: enough for anything.
const stockAtStart = 100_000_000

type order struct {
	ID       string `json:"order_id"`
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

func (o order) key() string { return o.ID + ":placed" }

// plan is everything that chance decides in a demo, from its seed.
type plan struct {
	orders  []order
	sending []int            // indexes of orders, in the order in which they are published
	twice   int              // how many orders are published a second time
	crashes map[string][]int // per consumer: after how many further messages it is killed
}

// newPlan plans a demo. The same arguments give the same plan.
func newPlan(cfg Config) plan {
	chance := rand.New(rand.NewPCG(cfg.Seed, 0x5eca11))
	p := plan{twice: int(float64(cfg.Orders)*cfg.Duplicates + 0.5), crashes: map[string][]int{}}
	for i := range cfg.Orders {
		p.orders = append(p.orders, order{
			ID: fmt.Sprintf("order-%06d", i+1), SKU: skus[chance.IntN(len(skus))], Quantity: 1 + chance.IntN(3),
		})
		p.sending = append(p.sending, i)
	}
	// A producer that got no answer sends again: at once, or a little later.
	type resend struct{ at, order int }
	var again []resend
	for _, i := range chance.Perm(cfg.Orders)[:p.twice] {
		again = append(again, resend{min(cfg.Orders, i+1+chance.IntN(50)), i})
	}
	slices.SortStableFunc(again, func(a, b resend) int { return b.at - a.at })
	for _, r := range again {
		p.sending = slices.Insert(p.sending, r.at, r.order)
	}
	for _, s := range services {
		p.crashes[s.name] = crashPoints(chance, cfg.Orders, cfg.Crashes)
	}
	return p
}

// crashPoints spreads crashes over a consumer's run: each one comes after so
// many messages since the one before.
func crashPoints(chance *rand.Rand, orders, crashes int) []int {
	var points []int
	last := 0
	for i := range crashes {
		// Somewhere in its own slice of the run, so that all of them happen.
		from, to := orders*i/crashes, orders*(i+1)/crashes
		at := max(last+1, from+1+chance.IntN(max(1, (to-from)*3/4)))
		if at > orders {
			break
		}
		points = append(points, at-last)
		last = at
	}
	return points
}

// expected returns what each sku must lose, and how much that is in all.
func (p plan) expected() (bySKU map[string]int, total int) {
	bySKU = map[string]int{}
	for _, o := range p.orders {
		bySKU[o.SKU] += o.Quantity
		total += o.Quantity
	}
	return bySKU, total
}

// message returns an order as the producer sends it. Its ordering key is its
// sku, where the broker has a place for one. It has no broker id: the
// broker would drop the second copy by itself within its duplicate window, and
// the demo is about those that it does not see.
func (o order) message(topic string) (broker.Message, error) {
	body, err := json.Marshal(o)
	return broker.Message{
		Topic: topic, OrderingKey: []byte(o.SKU), Body: body,
		Headers: broker.Headers{{Name: keyHeader, Value: []byte(o.key())}},
	}, err
}
