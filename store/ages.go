package store

import (
	"context"
	"time"
)

// Ager is what a Store offers that can tell how long ago keys were processed.
// It is asked for duplicates alone, after their transaction has ended.
type Ager interface {
	// Ages returns for each key of c how long ago its row was written, by the
	// database's clock and above zero; 0 if there is no row, or none with a
	// time that can be read.
	Ages(ctx context.Context, c Claim) ([]time.Duration, error)
}

// AgesOf sorts ages by stored key into the order of the claim's keys. micros
// are microseconds; a row that another clock dated into the future is as young
// as can be.
func AgesOf(c Claim, micros map[string]int64) []time.Duration {
	ages := make([]time.Duration, len(c.Keys))
	for i, k := range c.Keys {
		if age, there := micros[StoredKey(k.Raw)]; there {
			ages[i] = time.Duration(max(age, 1)) * time.Microsecond
		}
	}
	return ages
}
