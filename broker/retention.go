package broker

import (
	"context"
	"time"
)

// Retention is what a Source offers whose broker tells how long it keeps
// messages. A message can come again as long as it is kept, so its key must not
// be forgotten sooner.
type Retention interface {
	// Retention returns the longest time after its publication at which the
	// broker can still deliver a message, of all that this Source reads. limited
	// is false if it keeps them without a limit of time, or until they are
	// acknowledged, or if that cannot be known.
	Retention(ctx context.Context) (age time.Duration, limited bool, err error)
}
