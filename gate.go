package sekali

import (
	"sync"
	"time"
)

// inProcess is the one thing that all Consumers of a process share. When a
// process dies, everything that was in work in it is suspect; to know which
// message it was, that message must have been alone in the whole process, not
// only in its Consumer.
var inProcess = newGate()

// gate lets any number of messages into work at once, or one alone.
type gate struct {
	mu      sync.Mutex
	changed *sync.Cond
	inside  int
	alone   bool
	waiting int // those that want to be alone
}

func newGate() *gate {
	g := &gate{}
	g.changed = sync.NewCond(&g.mu)
	return g
}

// enter waits until nobody is alone, or wants to be, and enters.
func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.alone || g.waiting > 0 {
		g.changed.Wait()
	}
	g.inside++
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.tell()
}

// enterAlone waits until nobody is inside, for patience at most, and enters
// alone. While it waits nobody else enters, so patience bounds what one that
// is inside and does not come out (it may wait for a rival that is frozen)
// costs the others.
func (g *gate) enterAlone(patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := false
	timer := time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		over = true
		g.changed.Broadcast()
	})
	defer timer.Stop()
	g.waiting++
	for (g.inside > 0 || g.alone) && !over {
		g.changed.Wait()
	}
	g.waiting--
	if g.inside > 0 || g.alone {
		g.tell()
		return false
	}
	g.alone = true
	return true
}

func (g *gate) leaveAlone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = false
	g.tell()
}

// tell wakes those that wait, if any of them can go on.
func (g *gate) tell() {
	if g.inside == 0 || g.waiting == 0 {
		g.changed.Broadcast()
	}
}
