package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/store"
)

func TestADuplicateIsCountedInTheFirstClassThatIsNotBelowItsAge(t *testing.T) {
	bounds := store.AgeBounds()
	if len(bounds) != store.NumAges-1 || !slices.IsSorted(bounds) {
		t.Fatalf("the bounds are %v", bounds)
	}
	for i, bound := range bounds {
		if at, above := store.AgeClass(bound), store.AgeClass(bound+1); at != i || above != i+1 {
			t.Errorf("%v is in class %d, and what is above it in %d", bound, at, above)
		}
	}
}

func TestWithinWhatTimeMostDuplicatesCame(t *testing.T) {
	var none, c store.Counts
	c.Ages[0], c.Ages[4], c.Ages[6] = 990, 9, 1
	longest := c
	longest.Ages[store.NumAges-1] = 1
	for _, x := range []struct {
		c     store.Counts
		share float64
		want  time.Duration
		ok    bool
	}{
		{none, 0.5, 0, false},
		{c, 0.5, time.Second, true},
		{c, 0.99, time.Second, true},
		{c, 0.999, time.Hour, true},
		{c, 0.9991, 24 * time.Hour, true},
		{c, 1, 24 * time.Hour, true},
		{longest, 1, 0, false},
		{c, 0, time.Second, true},
	} {
		if got, ok := x.c.Within(x.share); got != x.want || ok != x.ok {
			t.Errorf("%v of %v: %v, %v, want %v, %v", x.share, x.c.Ages, got, ok, x.want, x.ok)
		}
	}
}
