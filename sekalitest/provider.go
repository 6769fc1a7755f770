package sekalitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// slowness is how long a slow provider takes.
const slowness = 50 * time.Millisecond

// Fault is what a Provider does to one request.
type Fault uint8

// The faults.
const (
	// Slow: it acts, and answers after 50 ms.
	Slow Fault = iota + 1
	// Refuse: it does not act, and answers 503 (Service Unavailable).
	Refuse
	// Mute: it acts, and closes the connection without an answer, as if it had
	// timed out.
	Mute
)

// Provider is a service on loopback with whom effects happen, as careful
// providers are: it acts once for each header Idempotency-Key, and gives the
// same answer again to a further request with that key; it answers 409 while the
// first is under way, and 422 to another request under the same key. A request
// without a key acts each time. What it does is counted and does nothing. It is
// safe for concurrent use.
type Provider struct {
	// URL leads to it: http://127.0.0.1 with a port.
	URL string
	// Answer makes the body of the answer to a request that acts, whose body it
	// is given. It must depend on nothing else. Defaults to a short text that
	// differs with path and body.
	Answer func(r *http.Request, body []byte) string

	mu       sync.Mutex
	requests map[string]int
	done     map[string]*act
	acts     int
	faults   []Fault
	slow     func(ctx context.Context) // takes the time of a slow one
}

// act is what was done under a key.
type act struct {
	request [sha256.Size]byte
	answer  string
	over    bool
}

// NewProvider starts a provider, which stops at the end of the test.
func NewProvider(t testing.TB) *Provider {
	t.Helper()
	p := &Provider{requests: map[string]int{}, done: map[string]*act{}, slow: beSlow}
	p.Answer = func(r *http.Request, body []byte) string {
		sum := sha256.Sum256(append([]byte(r.URL.Path+"\n"), body...))
		return "answer-" + hex.EncodeToString(sum[:4])
	}
	server := httptest.NewServer(http.HandlerFunc(p.serve))
	p.URL = server.URL
	t.Cleanup(server.Close)
	return p
}

func beSlow(ctx context.Context) {
	timer := time.NewTimer(slowness)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Acts returns how often it acted.
func (p *Provider) Acts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acts
}

// Requests returns how many requests came with each idempotency key; those
// without one are under the empty key.
func (p *Provider) Requests() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]int, len(p.requests))
	for key, n := range p.requests {
		all[key] = n
	}
	return all
}

// Next has the next requests meet faults, one each.
func (p *Provider) Next(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, faults...)
}

// next is Next for a kind of trouble.
func (p *Provider) next(k kind) {
	p.Next(map[kind]Fault{providerSlow: Slow, providerRefuses: Refuse, providerMute: Mute}[k])
}

func (p *Provider) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request did not come whole
	}
	key := r.Header.Get("Idempotency-Key")
	fault := p.came(key)
	if fault == Refuse {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	a, status := p.act(key, r, body)
	if fault == Slow {
		p.slow(r.Context())
	}
	p.mu.Lock()
	if status == 0 {
		a.over = true
	}
	p.mu.Unlock()
	switch {
	case fault == Mute:
		panic(http.ErrAbortHandler) // which closes the connection
	case status > 0:
		http.Error(w, http.StatusText(status), status)
	default:
		_, _ = io.WriteString(w, a.answer) // who is gone needs no answer
	}
}

// came counts a request and returns the fault that it is to meet.
func (p *Provider) came(key string) (f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[key]++
	if len(p.faults) > 0 {
		f, p.faults = p.faults[0], p.faults[1:]
	}
	return f
}

// act acts, unless that was done under the key. A status above 0: it must not.
func (p *Provider) act(key string, r *http.Request, body []byte) (*act, int) {
	request := sha256.Sum256(bytes.Join([][]byte{[]byte(r.Method), []byte(r.URL.String()), body}, []byte{0}))
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.done[key]; a != nil && key != "" {
		switch {
		case a.request != request:
			return a, http.StatusUnprocessableEntity
		case !a.over:
			return a, http.StatusConflict
		}
		return a, 0
	}
	a := &act{request: request, answer: p.Answer(r, body)}
	p.done[key] = a
	p.acts++
	return a, 0
}
