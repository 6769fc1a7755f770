package demo

import (
	"fmt"
	"math/rand/v2"
)

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
	again   map[string]bool  // keys of the orders that are published a second time
	crashes map[string][]int // per consumer: after how many further messages it is killed
}

// newPlan plans a demo. The same arguments give the same plan.
func newPlan(cfg Config) plan {
	chance := rand.New(rand.NewPCG(cfg.Seed, 0x5eca11))
	p := plan{again: map[string]bool{}, crashes: map[string][]int{}}
	for i := range cfg.Orders {
		p.orders = append(p.orders, order{
			ID: fmt.Sprintf("order-%06d", i+1), SKU: skus[chance.IntN(len(skus))], Quantity: 1 + chance.IntN(3),
		})
	}
	for _, i := range chance.Perm(cfg.Orders)[:int(float64(cfg.Orders)*cfg.Duplicates+0.5)] {
		p.again[p.orders[i].key()] = true
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

// copies returns how many messages the orders become at the broker.
func (p plan) copies() int { return len(p.orders) + len(p.again) }

// expected returns what each sku must lose, and how much that is in all.
func (p plan) expected() (bySKU map[string]int, total int) {
	bySKU = map[string]int{}
	for _, o := range p.orders {
		bySKU[o.SKU] += o.Quantity
		total += o.Quantity
	}
	return bySKU, total
}
