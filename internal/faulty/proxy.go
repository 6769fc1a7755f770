package faulty

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy stands between a client and a real server, on loopback. It knows no
// protocol: it looks for patterns of bytes in what the client sends, also
// where they come in pieces.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	refuse bool
	links  map[*link]struct{}
	rules  []*Rule
	pause  chan struct{} // closed: traffic flows
}

// action is what a rule does.
type action uint8

const (
	dropAnswer action = iota
	cutBefore
	delay
)

// Rule is a fault that a pattern sets off.
type Rule struct {
	pattern []byte
	action  action
	wait    time.Duration

	mu    sync.Mutex
	left  int // how often it still acts; below 0: always
	fired int
}

// Fired returns how often the rule has acted.
func (r *Rule) Fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

// use counts a use of the rule; false if it has acted often enough.
func (r *Rule) use() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	r.left--
	r.fired++
	return true
}

// link is one client's connection with the server's.
type link struct {
	client, server net.Conn
	// answered is set once a rule wants the answer dropped: whatever the server
	// sends next is its answer, and then the connection is cut.
	mu       sync.Mutex
	answered bool
	// forgotten is set once nothing passes any more.
	forgotten atomic.Bool
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// NewProxy starts a proxy for the server at target, host:port. Close ends it.
func NewProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	flowing := make(chan struct{})
	close(flowing)
	p := &Proxy{listener: listener, target: target, links: map[*link]struct{}{}, pause: flowing}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns where clients connect, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close cuts all connections, ends the proxy and waits for it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Resume()
	p.Cut()
	p.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Cut breaks all connections that there are.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Forget has nothing pass any more through the connections that there are, in
// either direction, and tells neither side: as a firewall that has forgotten
// them. New ones work.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.forgotten.Store(true)
	}
}

// Refuse has new connections broken at once, until Accept.
func (p *Proxy) Refuse() { p.setRefuse(true) }

// Accept lets new connections in again.
func (p *Proxy) Accept() { p.setRefuse(false) }

func (p *Proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Pause holds all traffic back, in both directions, until Resume.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.pause:
		p.pause = make(chan struct{})
	default: // it is paused
	}
}

// Resume lets traffic flow again.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.pause:
	default:
		close(p.pause)
	}
}

// DropAnswer has the server get what holds the pattern, waits for the first
// bytes of its answer, so that the server has done it, and cuts the connection
// instead of passing them on. It acts n times; below 0: always.
func (p *Proxy) DropAnswer(pattern string, n int) *Rule {
	return p.rule(&Rule{pattern: []byte(pattern), action: dropAnswer, left: n})
}

// CutBefore cuts the connection instead of passing on what holds the pattern,
// so that the server certainly does not do it. It acts n times.
func (p *Proxy) CutBefore(pattern string, n int) *Rule {
	return p.rule(&Rule{pattern: []byte(pattern), action: cutBefore, left: n})
}

// Delay passes what holds the pattern on after wait. It acts n times.
func (p *Proxy) Delay(pattern string, wait time.Duration, n int) *Rule {
	return p.rule(&Rule{pattern: []byte(pattern), action: delay, wait: wait, left: n})
}

func (p *Proxy) rule(r *Rule) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.closed {
		l.cut()
	}
	p.mu.Unlock()
	p.running.Go(func() { p.answers(l) })
	p.requests(l)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// requests carries what the client sends.
func (p *Proxy) requests(l *link) {
	defer l.cut()
	var tail []byte // of what was sent before: a pattern may straddle reads
	buffer := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buffer)
		if n > 0 && !l.forgotten.Load() {
			p.flow()
			seen := append(tail, buffer[:n]...)
			if !p.apply(l, seen, len(tail)) {
				return
			}
			if _, err := l.server.Write(buffer[:n]); err != nil {
				return
			}
			tail = bytes.Clone(seen[max(0, len(seen)-p.longest()+1):])
		}
		if err != nil {
			return
		}
	}
}

// apply acts on patterns that end in the new part of seen. It returns false
// if the connection is to be cut.
func (p *Proxy) apply(l *link, seen []byte, old int) bool {
	p.mu.Lock()
	rules := p.rules
	p.mu.Unlock()
	for _, r := range rules {
		from := max(0, old-len(r.pattern)+1)
		if !bytes.Contains(seen[from:], r.pattern) || !r.use() {
			continue
		}
		switch r.action {
		case cutBefore:
			return false
		case delay:
			time.Sleep(r.wait)
		case dropAnswer:
			l.mu.Lock()
			l.answered = true
			l.mu.Unlock()
		}
	}
	return true
}

// longest returns the length of the longest pattern.
func (p *Proxy) longest() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 1
	for _, r := range p.rules {
		n = max(n, len(r.pattern))
	}
	return n
}

// answers carries what the server sends.
func (p *Proxy) answers(l *link) {
	defer l.cut()
	buffer := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buffer)
		if n > 0 && !l.forgotten.Load() {
			p.flow()
			l.mu.Lock()
			dropped := l.answered
			l.mu.Unlock()
			if dropped {
				return
			}
			if _, err := l.client.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// flow waits while traffic is held back.
func (p *Proxy) flow() {
	p.mu.Lock()
	pause := p.pause
	p.mu.Unlock()
	<-pause
}
