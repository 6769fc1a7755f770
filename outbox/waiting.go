package outbox

import (
	"math/rand/v2"
	"sync"
	"time"
)

// waiting are ordering keys that wait for the next attempt of their first
// event.
type waiting struct {
	initial, most time.Duration

	mu   sync.Mutex
	keys map[string]*wait
}

type wait struct {
	tries int
	until time.Time
}

// maxKeys bounds how many keys wait one by one. Beyond it, which is when a
// broker refuses nearly everything, all wait for the first.
const maxKeys = 1000

func newWaiting(initial, most time.Duration) *waiting {
	return &waiting{initial: initial, most: most, keys: map[string]*wait{}}
}

// failed has a key wait, longer each time, and returns how long.
func (w *waiting) failed(key []byte) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.keys[string(key)]
	if x == nil {
		x = &wait{}
		w.keys[string(key)] = x
	}
	x.tries++
	pause := backoff(w.initial, w.most, x.tries)
	x.until = time.Now().Add(pause)
	return pause
}

// succeeded forgets a key.
func (w *waiting) succeeded(key []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.keys, string(key))
}

// now returns the keys that wait. full tells that there are too many.
func (w *waiting) now() (keys [][]byte, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, x := range w.keys {
		if time.Now().Before(x.until) {
			keys = append(keys, []byte(key))
		}
	}
	return keys, len(keys) > maxKeys
}

// until returns how long to wait at most before somebody's time has come.
func (w *waiting) until(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.keys {
		if left := time.Until(x.until); left > 0 {
			most = min(most, left)
		}
	}
	return most
}

// backoff returns a random pause whose bound doubles from try to try.
func backoff(initial, most time.Duration, n int) time.Duration {
	bound := initial
	for range n - 1 {
		if bound >= most/2 {
			bound = most
			break
		}
		bound *= 2
	}
	return rand.N(bound) + 1
}
