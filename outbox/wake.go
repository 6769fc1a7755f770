package outbox

import (
	"context"
	"sync"
)

// Notifier carries the word that something was committed to other processes.
type Notifier interface {
	// Notify has the word sent, soon and in a connection of its own. It does
	// not block, and what gathers meanwhile is sent once.
	Notify()
	// Listen calls f for every word that comes, and whenever one may have been
	// missed, until ctx ends.
	Listen(ctx context.Context, f func())
}

// wakes are the Relays of this process that wait for something to publish.
type wakes struct {
	notifier Notifier

	mu     sync.Mutex
	relays map[chan struct{}]struct{}
}

func newWakes(n Notifier) *wakes {
	return &wakes{notifier: n, relays: map[chan struct{}]struct{}{}}
}

// join returns a channel that holds a token when there may be something to
// publish.
func (w *wakes) join() (woken chan struct{}, leave func()) {
	woken = make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relays[woken] = struct{}{}
	return woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.relays, woken)
	}
}

// all wakes the Relays, those of other processes too.
func (w *wakes) all() {
	w.mine()
	if w.notifier != nil {
		w.notifier.Notify()
	}
}

// mine wakes those of this process.
func (w *wakes) mine() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for woken := range w.relays {
		select {
		case woken <- struct{}{}:
		default: // it has one
		}
	}
}
