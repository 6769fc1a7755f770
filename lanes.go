package sekali

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

// job is a delivery in hand, from its receipt to its settlement.
type job struct {
	from     *intake
	delivery *broker.Delivery
	redrive  *deadletter.Redrive // nil: it is the broker's
	message  Message             // what observers see: the original, with its key
	order    string              // the ordering key; empty: none
	bad      error               // why its key or ordering key could not be taken
	reason   deadletter.Reason

	attempts  int // calls of the handler in vain, the message alone in its transaction
	conflicts int // transactions in a row that others got in the way of
	outages   int // tries in a row on which the database was not there

	published time.Time // zero: unknown

	entity    string // whose state it carries
	version   int64
	versioned bool
	stale     bool // its last transaction found a newer version

	unprepared bool // Config.Prepare has to run before its transaction
	prepared   any  // the Commit[Tx] that it returned; nil: it has not run

	fingerprint []byte      // of the body; taken once, with the key
	fresh       bool        // its transaction claimed it
	done        bool        // to be acknowledged: it leaves its line
	expired     bool        // it stood behind one that had expired, and left with it
	revoked     atomic.Bool // its lane has gone to another instance while it was in work

	// For the Observer.
	preparing time.Duration // how long Prepare took
	handling  time.Duration // the handler, Prepare included, the last time it was called
	handled   time.Duration // when that ended, the message alone in its transaction: see Consumer.now
	received  time.Duration // when it came

	// letter is set once the message is to become a dead letter: then only
	// writing it is left to do.
	letter *deadletter.Letter

	// in is the line in which it stands: own, if it has neither ordering key
	// nor lane.
	in      *line
	own     line
	ownJobs [1]*job
}

// suspect tells that a process may have died of the message.
func (j *job) suspect() bool { return j.delivery.Redelivered || j.delivery.Attempt > 1 }

// companionable tells that it may share a transaction with others: nothing
// about it has been out of the ordinary.
func (j *job) companionable() bool {
	return j.bad == nil && j.letter == nil && j.redrive == nil && j.attempts == 0 && j.conflicts == 0 && !j.suspect()
}

// lineName says which jobs take effect one after another: those of one
// ordering key, whatever lanes they came by, or without one those of a lane.
type lineName struct{ order, lane string }

func (j *job) lineName() lineName {
	if j.order != "" {
		return lineName{order: j.order}
	}
	return lineName{lane: j.delivery.Lane}
}

// line is a queue of jobs that take effect one after another.
type line struct {
	name lineName
	jobs []*job
	// At most one of these: its first jobs are in work; it waits for the next
	// attempt of the first; it waits for another line's job of the same key.
	// None: it is ready.
	busy    int // how many
	waiting *time.Timer
	blocked string

	// What the worker that has it in work decides for its end.
	stuck bool
	pause time.Duration

	prev, next *line // among all
}

// lanes holds the jobs in hand and hands them to workers: each line to one
// worker at a time, a line whose first job waits to none; and each message key
// to one worker at a time, whatever line it came by.
type lanes struct {
	mu      sync.Mutex
	changed *sync.Cond // a line became ready, room came free, or all stopped
	named   map[lineName]*line
	all     line               // the ring of all lines
	ready   []*line            // for a transaction
	raw     []*line            // those whose first job is unprepared
	keys    map[string]*job    // begun and not done
	blocked map[string][]*line // behind those
	held    int                // jobs in hand
	stopped bool

	revocations int            // so far
	gone        map[string]int // broker lanes, and which revocation was their last
}

func newLanes() *lanes {
	l := &lanes{named: map[lineName]*line{}, keys: map[string]*job{}, blocked: map[string][]*line{}, gone: map[string]int{}}
	l.all.prev, l.all.next = &l.all, &l.all
	l.changed = sync.NewCond(&l.mu)
	return l
}

// revoked returns how many revocations there have been, for add.
func (l *lanes) revoked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revocations
}

// add takes jobs in. It returns those that it does not take, because the lanes
// have stopped, or because the job's lane was revoked after as many
// revocations as there had been before the job was received: it was on its way
// then, those before it in its lane were dropped, and it would overtake them.
// If the lane has come back meanwhile, the job comes again.
func (l *lanes) add(jobs []*job, revocations int) (refused []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return jobs
	}
	for _, j := range jobs {
		if l.gone[j.delivery.Lane] > revocations {
			refused = append(refused, j)
			continue
		}
		name := j.lineName()
		if name == (lineName{}) {
			j.ownJobs[0] = j
			j.own.jobs = j.ownJobs[:]
			j.in = &j.own
			l.link(j.in)
			l.queue(j.in)
		} else {
			if j.in = l.named[name]; j.in == nil {
				j.in = &line{name: name}
				l.named[name] = j.in
				l.link(j.in)
				j.in.jobs = append(j.in.jobs, j)
				l.queue(j.in)
			} else {
				j.in.jobs = append(j.in.jobs, j)
			}
		}
		l.held++
	}
	l.changed.Broadcast()
	return refused
}

// queue puts a line where those wait who do what its first job needs.
func (l *lanes) queue(in *line) {
	if in.jobs[0].unprepared {
		l.raw = append(l.raw, in)
		return
	}
	l.ready = append(l.ready, in)
}

func (l *lanes) link(in *line) {
	in.prev, in.next = l.all.prev, &l.all
	in.prev.next, in.next.prev = in, in
}

// each calls f for every line; f may forget it.
func (l *lanes) each(f func(in *line)) {
	for in := l.all.next; in != &l.all; {
		next := in.next
		f(in)
		in = next
	}
}

// deep is how many jobs may be in hand for each line that is wanted: jobs
// behind others of their line give workers little to do, but among those that
// are received next there may be other lines.
const deep = 16

// room waits until more deliveries are wanted and returns how many; 0 when the
// lanes have stopped. Deliveries are not hoarded: workers can begin want jobs,
// of each line as many as batch; some more may be in hand behind them, not
// counting those whose line waits for a further attempt; and never more than
// most in all.
func (l *lanes) room(want func() (jobs, batch int), most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.stopped {
			return 0
		}
		jobs, batch := want()
		begin, moving := l.supply(batch)
		if n := min(jobs-begin, deep*jobs-moving, most-l.held); n > 0 {
			return n
		}
		l.changed.Wait()
	}
}

// supply counts the jobs that workers can begin, and those that do not stand
// in a line that waits.
func (l *lanes) supply(batch int) (begin, moving int) {
	for _, in := range l.ready {
		begin += min(len(in.jobs), batch)
	}
	begin += len(l.raw)
	moving = l.held
	l.each(func(in *line) {
		if in.waiting != nil {
			moving -= len(in.jobs)
		}
	})
	return begin, moving
}

// next waits until there is something to do, and returns it: one job, or up to
// batch jobs that may share a transaction, those of a line in their order. nil
// when the lanes have stopped.
func (l *lanes) next(batch func() int) []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.stopped {
		if jobs := l.take(batch()); len(jobs) > 0 {
			l.changed.Broadcast()
			return jobs
		}
		l.changed.Wait()
	}
	return nil
}

// nextRaw waits for a job that is to be prepared; nil when the lanes have
// stopped.
func (l *lanes) nextRaw() *job {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.stopped {
		if len(l.raw) > 0 {
			in := l.raw[0]
			l.raw[0] = nil
			l.raw = l.raw[1:]
			if jobs := l.begin(in, nil, 1); len(jobs) > 0 {
				l.changed.Broadcast()
				return jobs[0]
			}
			continue
		}
		l.changed.Wait()
	}
	return nil
}

func (l *lanes) take(most int) (jobs []*job) {
	for len(jobs) < most && len(l.ready) > 0 {
		in := l.ready[0]
		if len(jobs) > 0 && !(jobs[0].companionable() && in.jobs[0].companionable()) {
			break // one of them goes alone
		}
		l.ready[0] = nil
		l.ready = l.ready[1:]
		jobs = l.begin(in, jobs, most)
	}
	return jobs
}

// begin takes the first jobs of a line into work, and appends them to jobs. If
// another line's job of the same key is in work, the line waits for it.
func (l *lanes) begin(in *line, jobs []*job, most int) []*job {
	for _, j := range in.jobs {
		if len(jobs) == most || len(jobs) > 0 && (!j.companionable() || j.unprepared) {
			break
		}
		if j.message.key != "" {
			if first := l.keys[j.message.key]; first != nil && first != j {
				if in.busy == 0 {
					in.blocked = j.message.key
					l.blocked[in.blocked] = append(l.blocked[in.blocked], in)
				}
				break
			}
			l.keys[j.message.key] = j
		}
		in.busy++
		in.stuck, in.pause = false, 0
		jobs = append(jobs, j)
		if !j.companionable() {
			break
		}
	}
	return jobs
}

// end takes back what next returned. Jobs that are done leave their lines; a
// line that is stuck waits for its pause, others are ready again.
func (l *lanes) end(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range jobs {
		if in := j.in; in.busy > 0 {
			l.endLine(in)
		}
	}
	l.changed.Broadcast()
}

func (l *lanes) endLine(in *line) {
	worked := in.busy
	in.busy = 0
	kept := in.jobs[:0]
	for i, j := range in.jobs {
		if i < worked && (j.done || j.revoked.Load()) {
			l.left(j)
			continue
		}
		kept = append(kept, j)
	}
	clear(in.jobs[len(kept):])
	in.jobs = kept
	if in.stuck && len(in.jobs) > 0 && !l.stopped && in.pause > 0 {
		l.wait(in)
		return
	}
	l.resume(in)
}

// left is called for each job that leaves.
func (l *lanes) left(j *job) {
	l.held--
	if key := j.message.key; key != "" && l.keys[key] == j {
		delete(l.keys, key)
		for _, in := range l.blocked[key] {
			in.blocked = ""
			l.resume(in)
		}
		delete(l.blocked, key)
	}
}

// wait makes a line ready after its pause.
func (l *lanes) wait(in *line) {
	var timer *time.Timer
	timer = time.AfterFunc(in.pause, func() {
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

// resume makes a line ready for a worker, or forgets it if nothing is in it.
func (l *lanes) resume(in *line) {
	switch {
	case len(in.jobs) == 0:
		l.forget(in)
	case !l.stopped:
		l.queue(in)
	}
}

func (l *lanes) forget(in *line) {
	if in.prev == nil {
		return
	}
	in.prev.next, in.next.prev = in.next, in.prev
	in.prev, in.next = nil, nil
	if in.name != (lineName{}) {
		delete(l.named, in.name)
	}
}

// expire takes a line that is in work apart from j on, because j has expired:
// those behind it must not overtake it. It returns those.
func (l *lanes) expire(j *job) (behind []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := j.in
	at := slices.Index(in.jobs, j)
	behind = slices.Clone(in.jobs[at+1:])
	for _, gone := range in.jobs[at:] {
		l.left(gone)
	}
	in.jobs = in.jobs[:at]
	in.busy = min(in.busy, at)
	if in.busy == 0 {
		l.resume(in)
	}
	l.changed.Broadcast()
	return behind
}

// stop ends the handing out. Workers finish what they have in work. It may be
// called twice.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.ready, l.raw = nil, nil
	l.each((*line).stopWaiting)
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
	l.each(func(in *line) {
		if in.busy > 0 {
			return
		}
		idle = append(idle, in.jobs...)
		l.held -= len(in.jobs)
		in.jobs = nil
		l.forget(in)
	})
	return idle
}

// revoke drops the jobs of broker lanes that have gone to another instance,
// and waits until those of them that are in work are not any more, or until
// ctx ends. It returns those that it dropped.
func (l *lanes) revoke(ctx context.Context, gone []string) (dropped []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revocations++
	for _, lane := range gone {
		l.gone[lane] = l.revocations
	}
	var inWork []*job
	l.each(func(in *line) { inWork, dropped = l.revokeIn(in, gone, inWork, dropped) })
	l.changed.Broadcast()
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})()
	for ctx.Err() == nil && slices.ContainsFunc(inWork, (*job).inWork) {
		l.changed.Wait()
	}
	for _, j := range inWork {
		if !j.inWork() && !j.done {
			dropped = append(dropped, j) // not begun, though its batch was
		}
	}
	return dropped
}

// inWork tells whether a worker has it.
func (j *job) inWork() bool {
	return j.in.busy > 0 && slices.Contains(j.in.jobs[:j.in.busy], j)
}

// revokeIn does it for one line.
func (l *lanes) revokeIn(in *line, gone []string, inWork, dropped []*job) (_, _ []*job) {
	first := in.jobs[0]
	var kept []*job
	for i, j := range in.jobs {
		switch {
		case !slices.Contains(gone, j.delivery.Lane):
			kept = append(kept, j)
		case i < in.busy:
			j.revoked.Store(true)
			inWork = append(inWork, j)
			kept = append(kept, j)
		default:
			dropped = append(dropped, j)
			l.left(j)
		}
	}
	if len(kept) == len(in.jobs) {
		return inWork, dropped
	}
	in.jobs = kept
	if in.busy > 0 || len(kept) > 0 && kept[0] == first {
		return inWork, dropped // its first job is in work, waits, or is ready as before
	}
	in.stopWaiting()
	if in.blocked != "" {
		l.blocked[in.blocked] = slices.DeleteFunc(l.blocked[in.blocked], func(o *line) bool { return o == in })
		in.blocked = ""
	}
	l.ready = slices.DeleteFunc(l.ready, func(o *line) bool { return o == in })
	l.raw = slices.DeleteFunc(l.raw, func(o *line) bool { return o == in })
	l.resume(in)
	return inWork, dropped
}

// deliveries returns those in hand of an intake, to be kept alive.
func (l *lanes) deliveries(from *intake) []*broker.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make([]*broker.Delivery, 0, l.held)
	l.each(func(in *line) {
		for _, j := range in.jobs {
			if j.from == from {
				held = append(held, j.delivery)
			}
		}
	})
	return held
}
