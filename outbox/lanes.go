package outbox

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lanes are those that this Relay has.
type lanes struct {
	mu      sync.Mutex
	mine    []int
	until   time.Time // of all of them
	leaving []int     // to be given up when nothing of them is under way
	inWork  []int     // of the sweep that is under way
}

// begin returns the lanes of which events may be published now.
func (l *lanes) begin() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inWork = nil
	if !time.Now().Before(l.until) {
		return nil
	}
	for _, lane := range l.mine {
		if !slices.Contains(l.leaving, lane) {
			l.inWork = append(l.inWork, lane)
		}
	}
	return l.inWork
}

func (l *lanes) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inWork = nil
}

// has tells whether a lane is still ours.
func (l *lanes) has(lane int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until) && slices.Contains(l.mine, lane)
}

// alive tells whether the lease goes on.
func (l *lanes) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

// idle returns those to be given up now.
func (l *lanes) idle() (idle []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lane := range l.leaving {
		if !slices.Contains(l.inWork, lane) {
			idle = append(idle, lane)
		}
	}
	return idle
}

// set notes what the database said, in answer to a question that was asked at a
// certain time: the lease is as long as asked for from then on, less something
// for clocks that do not go alike. It returns whether the lanes are others.
func (l *lanes) set(mine []int, share int, asked time.Time, lease time.Duration) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = !slices.Equal(l.mine, mine)
	l.mine, l.until = mine, asked.Add(lease*9/10)
	l.leaving = nil
	if len(mine) > share {
		l.leaving = slices.Clone(mine[share:])
	}
	return changed
}

// tend keeps the Relay's lanes, until ctx ends: it renews them three times
// while a lease lasts, and more often while it has less than its share or more.
func (r *Relay) tend(ctx context.Context, woken chan<- struct{}) {
	for failures := 0; ; {
		asked := time.Now()
		mine, share, err := r.rows.Tend(ctx, r.name, r.cfg.Lease, r.lanes.idle())
		pause := r.cfg.Lease / 3
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause = min(pause, backoff(50*time.Millisecond, time.Second, failures))
			r.cfg.Observer(Event{Kind: Interrupted, Err: err, Pause: pause})
		default:
			failures = 0
			if r.lanes.set(mine, share, asked, r.cfg.Lease) {
				r.cfg.Observer(Event{Kind: Shared, Count: len(mine)})
				select {
				case woken <- struct{}{}:
				default:
				}
			}
			if len(mine) != share {
				pause = min(pause, r.cfg.Lease/20)
			}
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}
