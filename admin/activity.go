package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// Span says which activity to return.
type Span struct {
	// Consumer whose activity it is. Defaults to all.
	Consumer string
	// From and To are its ends, in whole minutes: From belongs to it, To does
	// not. To is required; From defaults to 24 hours before it.
	From, To time.Time
	// Step is how long a bucket is, in whole minutes: an hour, a day. Buckets
	// begin at multiples of it since 1970 in UTC. Defaults to a minute.
	Step time.Duration
}

// Bucket is what a consumer did in a step. Steps in which it did nothing are
// left out.
type Bucket struct {
	Consumer string
	// At is the step's begin, in UTC.
	At time.Time
	store.Counts
}

// WithDefaults returns s with its empty fields filled in, or an error.
func (s Span) WithDefaults() (Span, error) {
	if s.To.IsZero() {
		return s, errors.New("the span has no end: set To")
	}
	if s.From.IsZero() {
		s.From = s.To.Add(-24 * time.Hour)
	}
	if s.Step == 0 {
		s.Step = time.Minute
	}
	if s.Step < time.Minute || s.Step%time.Minute != 0 {
		return s, fmt.Errorf("a step of %v: use whole minutes, one at least", s.Step)
	}
	return s, nil
}
