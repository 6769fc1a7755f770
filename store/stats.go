package store

import (
	"context"
	"time"
)

// Stats is what a Store offers, by a method Stats() Stats, that can keep the
// table consumer_stats: what consumers did, minute by minute, for whoever asks
// later or from another process. All methods may be called at once from many
// goroutines.
type Stats interface {
	// Add adds counts to those of the present minute, by the database's clock,
	// in one statement.
	Add(ctx context.Context, consumer string, c Counts) error

	// Stats returns the minutes from from, and before to, in which a consumer
	// did something, oldest first. An empty consumer means all: they follow
	// each other within a minute.
	Stats(ctx context.Context, consumer string, from, to time.Time) ([]Minute, error)

	// Check tells whether the table is there and fit, as a *SchemaError.
	Check(ctx context.Context) error
}

// Minute is what a consumer did in a minute.
type Minute struct {
	Consumer string
	// At is the minute's begin, in UTC.
	At time.Time
	Counts
}

// Counts are numbers of messages.
type Counts struct {
	// Processed, Stale and Conflicts are outcomes.
	Processed, Stale, Conflicts int64
	// Redriven, LostRaces, Redelivered and Repeated are duplicates, by cause.
	Redriven, LostRaces, Redelivered, Repeated int64
	// Retries are attempts after which a message was tried again, whoever's
	// fault it was.
	Retries int64
	// DeadLetters are letters written.
	DeadLetters int64
	// Ages counts duplicates by how long after their first processing they
	// came: each as the first of AgeBounds that is not below, or as the last
	// entry if all are. Duplicates whose age is unknown are not in it.
	Ages [NumAges]int64
}

// NumAges is how many classes of ages there are.
const NumAges = 12

const day = 24 * time.Hour

var ageBounds = [NumAges - 1]time.Duration{
	time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour,
	day, 3 * day, 7 * day, 14 * day, 30 * day,
}

// AgeBounds returns the upper bounds of the classes of ages, but of the last,
// which has none.
func AgeBounds() []time.Duration { return append([]time.Duration(nil), ageBounds[:]...) }

// AgeClass returns the index in Counts.Ages for a duplicate of that age.
func AgeClass(age time.Duration) int {
	for i, bound := range ageBounds {
		if age <= bound {
			return i
		}
	}
	return NumAges - 1
}

// Duplicates returns how many duplicates there were, whatever their cause.
func (c Counts) Duplicates() int64 { return c.Redriven + c.LostRaces + c.Redelivered + c.Repeated }

// Plus returns the sums of c and d.
func (c Counts) Plus(d Counts) Counts {
	c.Processed += d.Processed
	c.Stale += d.Stale
	c.Conflicts += d.Conflicts
	c.Redriven += d.Redriven
	c.LostRaces += d.LostRaces
	c.Redelivered += d.Redelivered
	c.Repeated += d.Repeated
	c.Retries += d.Retries
	c.DeadLetters += d.DeadLetters
	for i := range c.Ages {
		c.Ages[i] += d.Ages[i]
	}
	return c
}

// Within returns the time within which that share of the duplicates (0.999,
// say) came, of those whose age is known: an upper bound, for classes are
// coarse. ok is false if there were none, or if it is longer than all bounds.
func (c Counts) Within(share float64) (_ time.Duration, ok bool) {
	all := int64(0)
	for _, n := range c.Ages {
		all += n
	}
	if all == 0 {
		return 0, false
	}
	so, left := int64(0), float64(all)*share
	for i, bound := range ageBounds {
		if so += c.Ages[i]; so > 0 && float64(so) >= left {
			return bound, true
		}
	}
	return 0, false
}
