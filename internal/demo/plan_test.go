package demo

import (
	"maps"
	"slices"
	"testing"
)

func TestAPlanComesFromItsSeedAlone(t *testing.T) {
	cfg := Config{Orders: 500, Duplicates: 0.3, Crashes: 7, Seed: 42}
	a, b := newPlan(cfg), newPlan(cfg)
	if !slices.Equal(a.orders, b.orders) || !maps.Equal(a.again, b.again) || !slices.Equal(a.crashes[stockService], b.crashes[stockService]) {
		t.Error("one seed gave two plans")
	}
	cfg.Seed++
	if slices.Equal(a.orders, newPlan(cfg).orders) {
		t.Error("two seeds gave one plan")
	}
}

func TestAPlanSendsEachOrderAndTheRightShareTwice(t *testing.T) {
	for _, cfg := range []Config{
		{Orders: 1, Duplicates: 1, Crashes: 1}, {Orders: 10, Duplicates: 0}, {Orders: 1000, Duplicates: 0.2, Crashes: 1000}, {Orders: 5, Duplicates: 0.1, Crashes: 5},
	} {
		p := newPlan(cfg)
		for key := range p.again {
			if !slices.ContainsFunc(p.orders, func(o order) bool { return o.key() == key }) {
				t.Errorf("%+v: %s is published twice and is no order", cfg, key)
			}
		}
		if want := int(float64(cfg.Orders)*cfg.Duplicates + 0.5); len(p.again) != want || p.copies() != cfg.Orders+want {
			t.Errorf("%+v: %d orders are published twice, want %d", cfg, len(p.again), want)
		}
		for name, points := range p.crashes {
			sum := 0
			for _, n := range points {
				if n < 1 {
					t.Errorf("%+v: %s is to crash after %d messages", cfg, name, n)
				}
				sum += n
			}
			if len(points) != cfg.Crashes || sum > cfg.Orders {
				t.Errorf("%+v: %s crashes %d times within %d messages", cfg, name, len(points), sum)
			}
		}
	}
}

func TestNumbersAreWrittenWithCommas(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 12005: "12,005", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}
