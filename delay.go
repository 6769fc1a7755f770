package sekali

import (
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

const (
	// delayFrom is the shortest pause that is left to the broker: a shorter one
	// costs less in the process.
	delayFrom = time.Second
	// maxDelayed bounds how many are remembered; beyond it all are counted anew.
	maxDelayed = 10_000
)

// delayer has the broker wait with a message that is to be tried again, where
// the broker can and the message has no order to keep. The broker knows
// nothing of attempts (its count rises for other reasons too), so they are
// remembered here, by key: if the message comes to another instance, or after
// a restart, they are counted anew.
type delayer struct {
	longest time.Duration

	mu       sync.Mutex
	attempts map[string]int
}

// newDelayer returns nil if the broker cannot wait.
func newDelayer(s broker.Source) *delayer {
	d, ok := broker.As[broker.DelayedRetry](s)
	if !ok {
		return nil
	}
	return &delayer{longest: d.MaxDelay(), attempts: map[string]int{}}
}

// takes tells whether the broker is to wait with a message, and remembers its
// attempts.
func (d *delayer) takes(j *job, pause time.Duration) bool {
	if d == nil || pause < delayFrom || pause > d.longest || j.redrive != nil || j.letter != nil ||
		j.lineName() != (lineName{}) || j.message.key == "" || j.attempts == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.attempts) >= maxDelayed {
		clear(d.attempts) // most of them have come to other instances
	}
	d.attempts[j.message.key] = j.attempts
	return true
}

// recall gives a message that comes again the attempts that it has had.
func (d *delayer) recall(j *job) {
	if d == nil || j.message.key == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, known := d.attempts[j.message.key]; known {
		j.attempts = n
		delete(d.attempts, j.message.key)
	}
}
