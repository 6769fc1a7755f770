package main

import "testing"

func TestEveryOrderIsPaidAndShippedOnce(t *testing.T) {
	const n = 100
	c, err := run(t.Context(), t.TempDir(), n)
	if err != nil {
		t.Fatal(err)
	}
	// Two events of each order, each of them twice at least.
	if c.orders != n || c.payments != n || c.shipments != n || c.messages < 4*n {
		t.Errorf("%+v", c)
	}
}
