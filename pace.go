package sekali

import (
	"sync"
	"time"
)

// Batch says how many messages may share a transaction. Each is deduplicated
// by itself; one that fails is given a transaction of its own, and the others
// are committed without it.
type Batch struct {
	// Size is how many messages share a transaction at most. A batch is
	// whatever has arrived: no message waits for others. Defaults to 100; 1
	// gives each message a transaction of its own.
	Size int
	// MaxOpen is how long handlers may keep a transaction open before what
	// they have done is committed and the rest of the batch goes into another
	// one. Batches of slow handlers are smaller from the start. It does not
	// interrupt a handler. Defaults to 200 ms.
	MaxOpen time.Duration
}

// pace is how fast a Consumer dares to go: how many messages share a
// transaction, and how many transactions are open at once.
//
// Transactions that change the same rows wait for each other, and in different
// orders they deadlock; the larger they are and the more of them, the surer.
// Then one at a time does far more than sixteen, and running a batch again as
// it is only meets the same rivals. So a Consumer begins with one transaction
// at a time and doubles that while it does not do less for it. A conflict
// makes it humbler: fewer transactions at once, as long as its own batches may
// have met each other; then smaller ones, for then it met another process. What
// was a mistake is tried again later, and each time later.
type pace struct {
	mu      sync.Mutex
	changed *sync.Cond
	most    Batch
	workers int

	size  int           // of a batch, at present
	width int           // how many transactions at once, at present
	open  int           // how many there are
	slow  time.Duration // how long a handler takes, a moving average

	patience time.Duration // before it grows
	since    time.Time     // the last change
	ended    time.Time     // when a transaction ended last

	window window
	proven float64 // messages a second before it grew last; 0: that was no mistake
}

// window is a stretch of time in which the rate is measured.
type window struct {
	began        time.Time
	messages     int
	transactions int
	full         bool // as many transactions as may be were open when it began
}

const (
	// measured is how long a window is at least.
	measured = 20 * time.Millisecond
	// mistake is a rate, as a share of the one before, that says that growing
	// was one. Rates are not steady.
	mistake = 0.7
	// How long a Consumer waits before it grows: at the start, after the first
	// mistake or conflict, and at most.
	startPatience = 0
	firstPatience = 10 * time.Second
	lastPatience  = 2 * time.Minute
)

func newPace(b Batch, workers int) *pace {
	p := &pace{most: b, workers: workers, size: b.Size, width: 1, patience: startPatience}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// batch returns how many messages the next transaction may have.
func (p *pace) batch() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow <= 0 {
		return p.size
	}
	return max(1, min(p.size, int(p.most.MaxOpen/p.slow)))
}

// want returns how many jobs the workers can begin, and how many of them in a
// batch.
func (p *pace) want() (jobs, batch int) {
	batch = p.batch()
	return 2 * p.workers * batch, batch
}

// stalled is how long no transaction may end while others wait to begin: then
// it is slow handlers that keep them, not rivals, and one more may be open. It
// is longer than PostgreSQL takes to notice a deadlock.
const stalled = 1500 * time.Millisecond

// enter waits until one more transaction may be open.
func (p *pace) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open >= p.width {
		p.wait()
	}
	p.open++
}

func (p *pace) wait() {
	from := time.Now()
	look := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	}
	timer := time.AfterFunc(stalled, look)
	defer func() { timer.Stop() }()
	for p.open >= p.width {
		if p.ended.After(from) {
			from = p.ended
		}
		left := stalled - time.Since(from)
		if left <= 0 {
			p.width = min(p.width+1, p.workers)
			return
		}
		timer.Reset(left)
		p.changed.Wait()
	}
}

func (p *pace) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.ended = time.Now()
	p.changed.Signal()
}

// went tells that n messages were handled in a transaction without a conflict,
// and how long that took.
func (p *pace) went(n int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	each := took / time.Duration(n)
	p.slow += (each - p.slow) / 8
	w, now := &p.window, time.Now()
	if w.began.IsZero() {
		*w = window{began: now, full: p.open >= p.width}
		return
	}
	w.messages += n
	w.transactions++
	length := now.Sub(w.began)
	if length < measured || w.transactions < 2*p.width {
		return
	}
	rate := float64(w.messages) / length.Seconds()
	full := w.full && p.open >= p.width
	*w = window{began: now, full: p.open >= p.width}
	if full { // else it was the broker that had no more
		p.weigh(rate, now)
	}
}

// weigh decides, by the rate, whether to grow, or to take the last growth back.
func (p *pace) weigh(rate float64, now time.Time) {
	switch {
	case p.proven > 0 && rate < mistake*p.proven:
		p.width = max(1, p.width/2)
		p.regret(now)
		return
	case now.Sub(p.since) < p.patience:
		p.proven = 0
		return
	case p.size < p.most.Size:
		p.size = min(2*p.size, p.most.Size)
	case p.width < p.workers:
		p.width = min(2*p.width, p.workers)
		p.changed.Broadcast()
	default:
		p.proven = 0
		return
	}
	p.proven, p.since = rate, now
	p.window = window{}
}

// regret has it wait longer before it grows.
func (p *pace) regret(now time.Time) {
	p.patience = min(max(2*p.patience, firstPatience), lastPatience)
	p.since, p.proven, p.window = now, 0, window{}
}

// conflict tells that a transaction of several messages met a rival.
func (p *pace) conflict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 1 && p.width > 1 {
		p.width = max(1, p.width/2)
	} else {
		p.size = max(1, p.size/2)
	}
	if now := time.Now(); p.since.IsZero() || now.Sub(p.since) > p.patience/2 {
		p.regret(now) // else it is the last conflict's rival
	}
}
