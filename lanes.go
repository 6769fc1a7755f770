package sekali

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

// job is a delivery in hand, from its receipt to its settlement.
type job struct {
	delivery *broker.Delivery
	message  *Message // what observers see: the original, with its key
	order    string   // the ordering key; empty: none
	orderErr error    // why it could not be taken

	attempts  int // calls of the handler in vain
	conflicts int // transactions in a row that others got in the way of
	outages   int // tries in a row on which the database was not there

	fingerprint []byte // of the body; taken once, with the key
	free        bool   // nothing before it in its ordering key blocks it

	// revoked is set when its lane has gone to another instance while it was
	// in work: it is not tried again here.
	revoked bool

	// letter is set once the message is to become a dead letter: then only
	// writing it is left to do.
	letter *deadletter.Letter
}

// suspect tells that a process may have died of the message.
func (j *job) suspect() bool { return j.delivery.Redelivered || j.delivery.Attempt > 1 }

// lineName says which jobs take effect one after another: those of one
// ordering key, whatever lanes they came by, or without one those of a lane.
type lineName struct{ order, lane string }

func (j *job) line() lineName {
	if j.order != "" {
		return lineName{order: j.order}
	}
	return lineName{lane: j.delivery.Lane}
}

// line is a queue of jobs that take effect one after another. A job that has
// neither ordering key nor lane has a line of its own.
type line struct {
	name    lineName
	jobs    []*job // the first is in work, waits for its next attempt, or is next
	busy    bool   // the first is in work
	waiting *time.Timer
}

// lanes holds the jobs in hand and hands them to workers: each line to one
// worker at a time, a line whose first job waits to none.
type lanes struct {
	mu      sync.Mutex
	changed *sync.Cond // a line became ready, room came free, or all stopped
	named   map[lineName]*line
	all     map[*line]struct{}
	ready   []*line
	held    int // jobs in hand
	stopped bool
}

func newLanes() *lanes {
	l := &lanes{named: map[lineName]*line{}, all: map[*line]struct{}{}}
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
		name := j.line()
		in := l.named[name]
		if in == nil || name == (lineName{}) {
			in = &line{name: name}
			l.all[in] = struct{}{}
			if name != (lineName{}) {
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

// deep is how many jobs may be in hand for each line that is wanted: jobs
// behind others of their line give workers nothing to do, but among those that
// are received next there may be other lines.
const deep = 16

// room waits until more deliveries are wanted and returns how many; 0 when the
// lanes have stopped. Deliveries are not hoarded: want lines may be ready for
// a worker, deep times as many jobs be in hand, not counting those whose line
// waits for a further attempt, and never more than most in all.
func (l *lanes) room(want, most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.stopped {
			return 0
		}
		if n := min(want-len(l.ready), deep*want-l.moving(), most-l.held); n > 0 {
			return n
		}
		l.changed.Wait()
	}
}

// moving counts the jobs whose line does not wait.
func (l *lanes) moving() int {
	n := l.held
	for in := range l.all {
		if in.waiting != nil {
			n -= len(in.jobs)
		}
	}
	return n
}

// next waits for a line that is ready and returns it with its first job; nil
// when the lanes have stopped.
func (l *lanes) next() (*line, *job) {
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
	l.changed.Broadcast()
	return in, in.jobs[0]
}

// done takes the first job out of a line that next returned.
func (l *lanes) done(in *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropFirst(in)
	l.changed.Broadcast()
}

func (l *lanes) dropFirst(in *line) {
	in.jobs[0] = nil
	in.jobs = in.jobs[1:]
	in.busy = false
	l.held--
	l.resume(in)
}

// resume makes a line ready for a worker, or forgets it if nothing is in it.
func (l *lanes) resume(in *line) {
	switch {
	case len(in.jobs) == 0:
		delete(l.all, in)
		if in.name != (lineName{}) {
			delete(l.named, in.name)
		}
	case !l.stopped:
		l.ready = append(l.ready, in)
	}
}

// abandon takes a line that next returned apart, because its first job
// expired: those behind it must not overtake it. It returns them.
func (l *lanes) abandon(in *line) (behind []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	behind = in.jobs[1:]
	l.held -= len(in.jobs)
	in.jobs = nil
	l.resume(in)
	l.changed.Broadcast()
	return behind
}

// later makes a line that next returned ready again after d, with the same
// first job. After a stop the line stays where it is, for drain; a job whose
// lane was revoked is dropped.
func (l *lanes) later(in *line, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.changed.Broadcast()
	in.busy = false
	if in.jobs[0].revoked {
		l.dropFirst(in)
		return
	}
	if l.stopped {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if in.waiting != timer {
			return
		}
		in.waiting = nil
		l.resume(in)
		l.changed.Broadcast()
	})
	in.waiting = timer
}

// stop ends the handing out. Workers finish what they have in work. It may be
// called twice.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.ready = nil
	for in := range l.all {
		in.stopWaiting()
	}
	l.changed.Broadcast()
}

func (in *line) stopWaiting() {
	if in.waiting != nil {
		in.waiting.Stop()
		in.waiting = nil
	}
}

// drain, after a stop, takes out the jobs of all lines that no worker has in
// work, in the order of each line. Those behind a job in work stay, so that
// the broker does not get them back before it.
func (l *lanes) drain() []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var idle []*job
	for in := range l.all {
		if !in.busy {
			idle = append(idle, in.jobs...)
			l.held -= len(in.jobs)
			in.jobs = nil
			l.resume(in)
		}
	}
	return idle
}

// revoke drops the jobs of broker lanes that have gone to another instance,
// and waits until those of them that are in work are not any more, or until
// ctx ends. It returns those that it dropped.
func (l *lanes) revoke(ctx context.Context, gone []string) (dropped []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var inWork []*job
	for in := range l.all {
		inWork, dropped = l.revokeIn(in, gone, inWork, dropped)
	}
	l.changed.Broadcast()
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})()
	for ctx.Err() == nil && slices.ContainsFunc(inWork, l.holds) {
		l.changed.Wait()
	}
	return dropped
}

// revokeIn does it for one line.
func (l *lanes) revokeIn(in *line, gone []string, inWork, dropped []*job) (_, _ []*job) {
	first := in.jobs[0]
	kept := in.jobs[:0:0]
	for i, j := range in.jobs {
		switch {
		case !slices.Contains(gone, j.delivery.Lane):
			kept = append(kept, j)
		case i == 0 && in.busy:
			j.revoked = true
			inWork = append(inWork, j)
			kept = append(kept, j)
		default:
			dropped = append(dropped, j)
			l.held--
		}
	}
	if len(kept) == len(in.jobs) {
		return inWork, dropped
	}
	in.jobs = kept
	if in.busy || len(kept) > 0 && kept[0] == first {
		return inWork, dropped // its first job is in work, waits, or is ready as before
	}
	in.stopWaiting()
	l.ready = slices.DeleteFunc(l.ready, func(o *line) bool { return o == in })
	l.resume(in)
	return inWork, dropped
}

// holds tells whether a job that was in work still is.
func (l *lanes) holds(j *job) bool {
	in := l.named[j.line()]
	return in != nil && in.busy && in.jobs[0] == j
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
