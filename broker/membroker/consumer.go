package membroker

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

// consumer is what the broker knows of one consumer: which of the messages
// wait, are in a source's hand, or are done.
type consumer struct {
	ackWait time.Duration
	pins    bool // lanes have an order, and an owner at a time

	mu      sync.Mutex
	seen    int // how much of the broker's log has been taken in
	pending int
	lanes   []*lane // one, without order, where there are no lanes
	turn    int     // the lane to look at first, so that none starves
	due     dueHeap
	live    int // entries of due that are not void
	timer   *time.Timer
	armed   time.Time     // for when the timer is set; zero: it is not
	changed chan struct{} // closed, and replaced, at every change
}

// lane is a line of messages.
type lane struct {
	name  string
	owner *Source // whose hand the deliveries out are in; nil: nobody's
	out   int
	ready []*item // those to hand over, first first
}

type state uint8

const (
	waiting state = iota // in its lane's ready list
	delayed              // waits for the end of a delay
	out                  // in a source's hand
	done
)

// item is a message on its way to a consumer.
type item struct {
	stored   *stored
	seq      int
	lane     *lane
	state    state
	attempts int
	holder   *Source
	// turn grows whenever the state changes: a ticket of an earlier turn is
	// lost, a due entry of an earlier turn is void.
	turn int
	// until is when a delivery, or a delay, is over.
	until time.Time
}

// ticket is the Handle of a delivery.
type ticket struct {
	item *item
	turn int
}

func newConsumer(o Options) *consumer {
	c := &consumer{ackWait: o.AckWait, pins: o.Lanes > 0, changed: make(chan struct{})}
	for i := range max(o.Lanes, 1) {
		l := &lane{}
		if c.pins {
			l.name = laneName(i)
		}
		c.lanes = append(c.lanes, l)
	}
	c.timer = time.AfterFunc(time.Hour, c.expire)
	c.timer.Stop()
	return c
}

// catchUp takes in what the log has that was not seen yet.
func (c *consumer) catchUp(log []stored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; c.seen < len(log); c.seen++ {
		s := log[c.seen]
		l := c.lanes[s.lane]
		l.ready = append(l.ready, &item{stored: &s, seq: c.seen, lane: l})
		c.pending++
	}
	c.tell()
}

// tell wakes all that wait for a change. c.mu is held.
func (c *consumer) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// take hands over up to most messages to s, or returns what to wait for.
func (c *consumer) take(s *Source, most int) (got []*broker.Delivery, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed() { // under the lock: what Close gave back is not to be taken again
		return nil, c.changed
	}
	for i := range c.lanes {
		l := c.lanes[(c.turn+i)%len(c.lanes)]
		if c.pins && l.owner != nil && l.owner != s {
			continue
		}
		for len(got) < most && len(l.ready) > 0 {
			it := l.ready[0]
			l.ready[0] = nil
			l.ready = l.ready[1:]
			got = append(got, c.handOver(it, s))
		}
	}
	c.turn++
	return got, c.changed
}

func (c *consumer) handOver(it *item, s *Source) *broker.Delivery {
	it.attempts++
	it.lane.owner, it.holder = s, s
	it.lane.out++
	d := &broker.Delivery{
		Message: it.stored.message.Clone(), Lane: it.lane.name,
		Attempt: it.attempts, Redelivered: it.attempts > 1,
	}
	d.Extend(c.ackWait) // before the broker's own clock starts: never later
	c.turnTo(it, out, c.ackWait)
	d.Handle = &ticket{it, it.turn}
	return d
}

// turnTo changes an item's state. after > 0 is when it is due to be looked at.
func (c *consumer) turnTo(it *item, to state, after time.Duration) {
	if it.state == out || it.state == delayed {
		c.live--
	}
	it.state = to
	it.turn++
	if after > 0 {
		c.live++
		it.until = time.Now().Add(after)
		heap.Push(&c.due, dueEntry{it.until, it, it.turn})
		c.schedule()
	}
}

// schedule sets the timer for whatever is due first. c.mu is held.
func (c *consumer) schedule() {
	for len(c.due) > 0 && c.due[0].void() {
		heap.Pop(&c.due)
	}
	if len(c.due) > 2*c.live+1024 { // those acknowledged long before their time
		c.due = slices.DeleteFunc(c.due, dueEntry.void)
		heap.Init(&c.due)
	}
	if len(c.due) == 0 {
		c.timer.Stop()
		c.armed = time.Time{}
		return
	}
	if at := c.due[0].at; !at.Equal(c.armed) {
		c.armed = at
		c.timer.Reset(time.Until(at))
	}
}

// expire takes back deliveries whose time is over and ends delays.
func (c *consumer) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = time.Time{}
	now := time.Now()
	for len(c.due) > 0 && !c.due[0].at.After(now) {
		e := heap.Pop(&c.due).(dueEntry)
		switch {
		case e.void():
		case e.item.until.After(now): // kept alive meanwhile
			heap.Push(&c.due, dueEntry{e.item.until, e.item, e.item.turn})
		default:
			c.giveBack(e.item, 0)
		}
	}
	c.schedule()
	c.tell()
}

// giveBack makes an item wait again, in its place. In a lane with an order,
// all that was handed over after it comes back too: nothing overtakes it.
func (c *consumer) giveBack(it *item, delay time.Duration) {
	if !c.pins {
		c.leave(it)
		if delay > 0 {
			c.turnTo(it, delayed, delay)
			return
		}
		c.turnTo(it, waiting, 0)
		it.lane.insert(it)
		return
	}
	for _, other := range c.outFrom(it) {
		c.leave(other)
		c.turnTo(other, waiting, 0)
		it.lane.insert(other)
	}
}

// outFrom returns what is out of it's lane from it on, in order.
func (c *consumer) outFrom(it *item) []*item {
	var found []*item
	for _, e := range c.due {
		if o := e.item; !e.void() && o.state == out && o.lane == it.lane && o.seq > it.seq {
			found = append(found, o)
		}
	}
	found = append(found, it) // its due entry may have been taken out
	slices.SortFunc(found, func(a, b *item) int { return a.seq - b.seq })
	return found
}

// leave takes an item out of its holder's hand, if it is in one.
func (c *consumer) leave(it *item) {
	if it.state != out {
		return
	}
	it.holder = nil
	it.lane.out--
	if it.lane.out == 0 {
		it.lane.owner = nil
	}
}

// insert puts an item in its place among those that wait.
func (l *lane) insert(it *item) {
	at, _ := slices.BinarySearchFunc(l.ready, it.seq, func(o *item, seq int) int { return o.seq - seq })
	l.ready = slices.Insert(l.ready, at, it)
}

// dueEntry tells when an item must be looked at.
type dueEntry struct {
	at   time.Time
	item *item
	turn int
}

func (e dueEntry) void() bool { return e.item.turn != e.turn }

// dueHeap has what is due first at its top.
type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = dueEntry{}
	*h = old[:len(old)-1]
	return last
}
