package run

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali"
)

// health is how the consumer does, by what it tells its Observer, and whether
// the database answers.
type health struct {
	mu      sync.Mutex
	state   string                         // starting, running, stopping, stopped
	trouble map[sekali.EventKind]time.Time // until when it is taken to last
	ping    func(context.Context) error    // nil: there is no database yet

	troubled atomic.Bool // that there is trouble, for who has no time to look
}

func newHealth() *health {
	return &health{state: "starting", trouble: map[sekali.EventKind]time.Time{}}
}

// repeated is how long after its pause a trouble must have been told again, or
// it is over: where no message comes no event says so. An attempt to reach a
// broker may take as long.
const repeated = 20 * time.Second

// pingTimeout bounds the question whether the database is there.
const pingTimeout = 2 * time.Second

// troubles are cleared by the event beside them.
var troubles = map[sekali.EventKind][]sekali.EventKind{
	sekali.Started:      {sekali.CheckFailed},
	sekali.Received:     {sekali.ReceiveFailed},
	sekali.Committed:    {sekali.Interrupted},
	sekali.Finished:     {sekali.Interrupted},
	sekali.DeadLettered: {sekali.DeadLetterFailed},
	sekali.Settled:      {sekali.SettleFailed},
}

// Observe implements sekali.Observer.
func (h *health) Observe(e sekali.Event) {
	cleared := troubles[e.Kind]
	switch e.Kind {
	case sekali.Started, sekali.Stopped, sekali.CheckFailed, sekali.ReceiveFailed, sekali.Interrupted, sekali.DeadLetterFailed, sekali.SettleFailed:
	default:
		if cleared == nil || !h.troubled.Load() {
			return // nearly always
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range cleared {
		delete(h.trouble, kind)
	}
	defer func() { h.troubled.Store(len(h.trouble) > 0) }()
	switch e.Kind {
	case sekali.Started:
		h.state = "running"
	case sekali.Stopped:
		h.state = "stopped"
	case sekali.CheckFailed, sekali.ReceiveFailed, sekali.Interrupted, sekali.DeadLetterFailed, sekali.SettleFailed:
		h.trouble[e.Kind] = time.Now().Add(e.Pause + repeated)
	}
}

func (h *health) stopping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != "stopped" {
		h.state = "stopping"
	}
}

// database has readiness ask whether it answers.
func (h *health) database(ping func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ping = ping
}

// ready tells whether it works, and what it says of itself: the consumer runs,
// the broker was there when it was last needed, the database answers now.
func (h *health) ready(ctx context.Context) (bool, string) {
	ok, text, ping := h.told(time.Now())
	if ping == nil {
		return ok, text
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if ping(ctx) != nil { // its error may name hosts and users
		return false, text + "; the database does not answer"
	}
	return ok, text
}

// told is what events have told.
func (h *health) told(now time.Time) (bool, string, func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.trouble, func(_ sekali.EventKind, until time.Time) bool { return now.After(until) })
	text := h.state
	for _, kind := range slices.Sorted(maps.Keys(h.trouble)) {
		text += "; " + kind.String()
	}
	return h.state == "running" && len(h.trouble) == 0, text, h.ping
}
