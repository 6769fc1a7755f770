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
// Transactions that change the same rows in different orders deadlock, and the
// larger they are and the more of them there are, the surer. Running a batch
// again as it is would only meet the same rivals, so each conflict makes the
// Consumer humbler: fewer transactions at once, as long as its own batches
// may have met each other; then smaller ones, for then it met another process.
// It grows again after a time without conflicts, which gets longer each time
// that growing was a mistake.
type pace struct {
	mu      sync.Mutex
	changed *sync.Cond
	most    Batch
	workers int

	size  int           // of a batch, at present
	width int           // how many transactions at once, at present
	open  int           // how many there are
	slow  time.Duration // how long a handler takes, a moving average

	patience time.Duration // without a conflict, before it grows
	since    time.Time     // the last conflict or growth
}

// How long a Consumer waits after a conflict before it grows again.
const (
	firstPatience = 5 * time.Second
	lastPatience  = time.Minute
)

func newPace(b Batch, workers int) *pace {
	p := &pace{most: b, workers: workers, size: b.Size, width: workers, patience: firstPatience}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// batch returns how many messages the next transaction may have.
func (p *pace) batch() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit()
}

func (p *pace) limit() int {
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

// enter waits until one more transaction may be open.
func (p *pace) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open >= p.width {
		p.changed.Wait()
	}
	p.open++
}

func (p *pace) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.changed.Signal()
}

// went tells that n messages were handled in a transaction without a conflict,
// and how long that took.
func (p *pace) went(n int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	each := took / time.Duration(n)
	p.slow += (each - p.slow) / 8
	if p.size == p.most.Size && p.width == p.workers || time.Since(p.since) < p.patience {
		return
	}
	p.since = time.Now()
	if p.size < p.most.Size {
		p.size = min(2*p.size, p.most.Size)
		return
	}
	p.width = min(2*p.width, p.workers)
	p.changed.Broadcast()
}

// conflict tells that a transaction of several messages met a rival.
func (p *pace) conflict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() && time.Since(p.since) > p.patience/2 {
		p.patience = min(2*p.patience, lastPatience)
	}
	p.since = time.Now()
	if p.open > 1 && p.width > 1 {
		p.width = max(1, p.width/2)
		return
	}
	p.size = max(1, p.size/2)
}
