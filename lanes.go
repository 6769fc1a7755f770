package sekali

import (
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

// job is a delivery in hand, from its receipt to its settlement.
type job struct {
	delivery *broker.Delivery
	message  *Message // what observers see: the original, with its key

	attempts  int // calls of the handler in vain
	conflicts int // transactions in a row that others got in the way of
	outages   int // tries in a row on which the database was not there

	fingerprint []byte // of the body; taken once, with the key

	// letter is set once the message is to become a dead letter: then only
	// writing it is left to do.
	letter *deadletter.Letter
}

// lane is a line of jobs that take effect one after another. Jobs that stand
// in no line have a lane of their own.
type lane struct {
	name    string // empty: a lane of one job's own
	jobs    []*job // the first is in work, waits for its next attempt, or is next
	busy    bool   // the first is in work
	waiting *time.Timer
}

// lanes holds the jobs in hand and hands them to workers: each lane to one
// worker at a time, a lane whose first job waits to none.
type lanes struct {
	mu      sync.Mutex
	changed *sync.Cond // a lane became ready, room came free, or all stopped
	named   map[string]*lane
	all     map[*lane]struct{}
	ready   []*lane
	held    int // jobs in hand
	begun   int // jobs in work or waiting for a further attempt
	stopped bool
}

func newLanes() *lanes {
	l := &lanes{named: map[string]*lane{}, all: map[*lane]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// add takes jobs in. It returns those that it does not take because the
// lanes have stopped.
func (l *lanes) add(jobs []*job) (refused []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return jobs
	}
	for _, j := range jobs {
		name := j.delivery.Lane
		in := l.named[name]
		if in == nil || name == "" {
			in = &lane{name: name}
			l.all[in] = struct{}{}
			if name != "" {
				l.named[name] = in
			}
			l.ready = append(l.ready, in)
		}
		in.jobs = append(in.jobs, j)
		l.held++
	}
	l.changed.Broadcast()
	return nil
}

// room waits until more deliveries are wanted and returns how many; 0 when the
// lanes have stopped. Deliveries are not hoarded: besides those begun, want
// may wait in hand, and never more than most in all.
func (l *lanes) room(want, most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.stopped {
			return 0
		}
		if n := min(want-l.waitingToBegin(), most-l.held); n > 0 {
			return n
		}
		l.changed.Wait()
	}
}

// waitingToBegin counts jobs that a worker could begin or that stand behind
// one in work. Those behind one that waits for a further attempt do not keep
// other lanes from being filled; most bounds them.
func (l *lanes) waitingToBegin() int {
	n := l.held - l.begun
	for in := range l.all {
		if in.waiting != nil {
			n -= len(in.jobs) - 1
		}
	}
	return n
}

// next waits for a lane that is ready and returns it with its first job; nil
// when the lanes have stopped.
func (l *lanes) next() (*lane, *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ready) == 0 && !l.stopped {
		l.changed.Wait()
	}
	if l.stopped {
		return nil, nil
	}
	in := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	in.busy = true
	l.begun++
	l.changed.Broadcast()
	return in, in.jobs[0]
}

// done takes the first job out of a lane that next returned.
func (l *lanes) done(in *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in.jobs[0] = nil
	in.jobs = in.jobs[1:]
	in.busy = false
	l.held--
	l.begun--
	if len(in.jobs) > 0 {
		l.ready = append(l.ready, in)
	} else {
		l.forget(in)
	}
	l.changed.Broadcast()
}

// abandon takes a lane that next returned apart, because its first job
// expired: those behind it must not overtake it. It returns them.
func (l *lanes) abandon(in *lane) (behind []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	behind = in.jobs[1:]
	l.held -= len(in.jobs)
	l.begun--
	l.forget(in)
	l.changed.Broadcast()
	return behind
}

func (l *lanes) forget(in *lane) {
	delete(l.all, in)
	if in.name != "" {
		delete(l.named, in.name)
	}
}

// later makes a lane that next returned ready again after d, with the same
// first job. After a stop the lane stays where it is, for stop's caller.
func (l *lanes) later(in *lane, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in.busy = false
	if l.stopped {
		return
	}
	in.waiting = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if in.waiting == nil {
			return
		}
		in.waiting = nil
		l.begun--
		l.ready = append(l.ready, in)
		l.changed.Broadcast()
	})
	l.changed.Broadcast()
}

// stop ends the handing out. Workers finish what they have in work. It may be
// called twice.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.ready = nil
	for in := range l.all {
		if in.waiting != nil {
			in.waiting.Stop()
			in.waiting = nil
		}
	}
	l.changed.Broadcast()
}

// drain, after a stop, takes out the jobs of all lanes that no worker has in
// work, in the order of each lane. Those behind a job in work stay, so that
// the broker does not get them back before it.
func (l *lanes) drain() []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var idle []*job
	for in := range l.all {
		if !in.busy {
			idle = append(idle, in.jobs...)
			l.forget(in)
		}
	}
	return idle
}

// deliveries returns those in hand, to be kept alive.
func (l *lanes) deliveries() []*broker.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*broker.Delivery, 0, l.held)
	for in := range l.all {
		for _, j := range in.jobs {
			held = append(held, j.delivery)
		}
	}
	return held
}
