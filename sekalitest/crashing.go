package sekalitest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// requested tells whether a letter is going to be processed by itself.
func requested(l deadletter.Letter) bool {
	return l.Status == deadletter.Requested || l.Status == deadletter.Held
}

// crashingStore is a Store whose process can crash.
type crashingStore[Tx any] struct {
	p *process[Tx]
	store.Store[Tx]
}

// Unwrap is for store.As.
func (s *crashingStore[Tx]) Unwrap() any { return s.Store }

// Begin implements store.Store.
func (s *crashingStore[Tx]) Begin(ctx context.Context, c store.Claim) (tx Tx, states []store.State, err error) {
	if s.p.isDead() {
		return tx, nil, errCrashed
	}
	s.claims(c)
	s.p.together.meet(ctx, c)
	began := time.Now()
	if tx, states, err = s.Store.Begin(ctx, c); err != nil {
		return tx, states, err
	}
	s.p.together.claimed(ctx, c, states, time.Since(began))
	s.p.mu.Lock()
	s.p.open[tx] = nil
	s.p.mu.Unlock()
	return tx, states, nil
}

func (s *crashingStore[Tx]) claims(c store.Claim) {
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	for _, k := range c.Keys {
		s.p.w.claimed[k.Raw] = true
	}
}

// Commit implements store.Store.
func (s *crashingStore[Tx]) Commit(ctx context.Context, tx Tx) error {
	p := s.p
	p.mu.Lock()
	messages := p.open[tx]
	delete(p.open, tx)
	p.mu.Unlock()
	_, crash := p.fires(crashHandled, "", messages)
	if crash {
		_ = p.die("after the handler: its transaction is rolled back")
	}
	if p.isDead() {
		return errors.Join(errCrashed, s.bare().Rollback(ctx, tx))
	}
	if err := s.Store.Commit(ctx, tx); err != nil {
		return err
	}
	p.w.mu.Lock()
	p.w.committed = append(p.w.committed, messages...)
	p.w.mu.Unlock()
	if _, ok := p.fires(crashCommitted, "", messages); ok {
		return p.die("after the commit")
	}
	return nil
}

// Rollback implements store.Store.
func (s *crashingStore[Tx]) Rollback(ctx context.Context, tx Tx) error {
	s.p.mu.Lock()
	delete(s.p.open, tx)
	s.p.mu.Unlock()
	if s.p.isDead() {
		return s.bare().Rollback(ctx, tx)
	}
	return s.Store.Rollback(ctx, tx)
}

// bare is the Store below all wrappers: when a process crashes it is the
// server that rolls back, and nothing of the user's runs.
func (s *crashingStore[Tx]) bare() store.Store[Tx] {
	bare := s.Store
	for {
		w, ok := bare.(interface{ Unwrap() any })
		if !ok {
			return bare
		}
		below, ok := w.Unwrap().(store.Store[Tx])
		if !ok {
			return bare
		}
		bare = below
	}
}

// Seen implements store.Store.
func (s *crashingStore[Tx]) Seen(ctx context.Context, c store.Claim) ([]store.State, error) {
	if s.p.isDead() {
		return nil, errCrashed
	}
	return s.Store.Seen(ctx, c)
}

// Classify implements store.Store.
func (s *crashingStore[Tx]) Classify(err error) store.Class {
	if errors.Is(err, errCrashed) {
		return store.ClassUnavailable
	}
	return s.Store.Classify(err)
}

// wrapHandlers puts the troubles around what is the user's.
func (p *process[Tx]) wrapHandlers(cfg *sekali.Config[Tx]) {
	if handle := cfg.Handle; handle != nil {
		cfg.Handle = func(ctx context.Context, tx Tx, m *sekali.Message) error {
			return p.work(ctx, &tx, "Handle", p.indexes(m), func(ctx context.Context, tx Tx) error { return handle(ctx, tx, m) })
		}
	}
	if handle := cfg.HandleBatch; handle != nil {
		cfg.HandleBatch = func(ctx context.Context, tx Tx, m []*sekali.Message) error {
			return p.work(ctx, &tx, "HandleBatch", p.indexes(m...), func(ctx context.Context, tx Tx) error { return handle(ctx, tx, m) })
		}
	}
	prepare := cfg.Prepare
	if prepare == nil {
		return
	}
	cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[Tx], error) {
		which := p.indexes(m)
		var commit sekali.Commit[Tx]
		err := p.work(ctx, nil, "Prepare", which, func(ctx context.Context, _ Tx) (err error) {
			commit, err = prepare(ctx, m)
			return err
		})
		if err != nil {
			return nil, err
		}
		if commit == nil {
			commit = func(context.Context, Tx) error { return nil }
		}
		return func(ctx context.Context, tx Tx) error {
			return p.work(ctx, &tx, "Commit", which, commit)
		}, nil
	}
}

func (p *process[Tx]) indexes(m ...*sekali.Message) []int {
	list := make([]int, len(m))
	for i := range m {
		list[i] = p.w.indexOf(&m[i].Message)
	}
	return list
}

// work calls what is the user's for some messages, with the troubles before
// and behind it. tx is nil in Prepare.
func (p *process[Tx]) work(ctx context.Context, tx *Tx, phase string, messages []int, call func(context.Context, Tx) error) error {
	if p.isDead() {
		return errCrashed
	}
	var given Tx
	if tx != nil {
		if _, ok := p.fires(crashClaimed, "", messages); ok {
			return p.die("after the claim")
		}
		given = *tx
	}
	if _, ok := p.fires(stopping, "", messages); ok {
		p.w.tell("process %d is to stop", p.number)
		p.stop()
	}
	ctx, end := p.watching(ctx, phase, messages)
	ended := false
	defer func() {
		if !ended { // it panicked
			end()
		}
	}()
	err := call(ctx, watched(ctx, given))
	ended = true
	if fired := end(); err != nil {
		return p.hasten(err, fired)
	}
	return p.after(tx, phase, messages)
}

// after is what goes wrong when the work is done.
func (p *process[Tx]) after(tx *Tx, phase string, messages []int) error {
	if tx == nil {
		if _, ok := p.fires(crashPrepared, "", messages); ok {
			return p.die("after Prepare")
		}
	}
	if at, ok := p.fires(failing, phase, messages); ok {
		return failedAt(messages, at, errInjected)
	}
	if _, ok := p.fires(panicking, phase, messages); ok {
		panic("sekalitest: the handler panics after its work")
	}
	if tx == nil {
		return nil
	}
	if at, ok := p.fires(poisoned, phase, messages); ok {
		p.w.mu.Lock()
		p.w.poisoned[messages[at]] = true
		p.w.mu.Unlock()
		return failedAt(messages, at, sekali.Permanent(errPoison))
	}
	p.mu.Lock()
	p.open[*tx] = append(p.open[*tx], messages...)
	p.mu.Unlock()
	return nil
}

// failedAt says which of several messages is at fault.
func failedAt(messages []int, at int, err error) error {
	if len(messages) == 1 {
		return err
	}
	return &store.FailedAt{Index: at, Err: err}
}

// hasten makes short of what an error asks to wait for. An error because we
// disturbed its statements does not count.
func (p *process[Tx]) hasten(err error, disturbed bool) error {
	var later interface{ RetryAfter() time.Duration }
	switch {
	case errors.As(err, &later):
		return &hastened{err, later.RetryAfter()}
	case disturbed:
		return &hastened{error: err}
	}
	return err
}

// hastened is an error whose message is tried again soon, and uncounted.
type hastened struct {
	error
	asked time.Duration // what was to be waited for
}

func (h *hastened) Unwrap() error             { return h.error }
func (h *hastened) RetryAfter() time.Duration { return soon }

// waited lets pass what an attempt asked to wait for, now that its transaction
// is over. Where other processes run, it really takes its time with them.
func (p *process[Tx]) waited(err error) {
	var h *hastened
	if errors.As(err, &h) && h.asked > soon && p.life.together < 2 {
		p.w.tell("%v pass", h.asked)
		p.w.scope.elapse(h.asked)
	}
}

// gathering is where processes meet that are to do something together.
type gathering struct {
	n int // processes

	mu       sync.Mutex
	gone     int
	arrivals map[string]*arrival // by key
	holders  map[string][]func() // by key: those who wait for a rival with a fresh claim
}

// arrival is how many processes have come to their first claim of a key.
type arrival struct {
	n   int
	all chan struct{} // closed when all have
}

func newGathering(n int) *gathering {
	return &gathering{n: n, arrivals: map[string]*arrival{}, holders: map[string][]func(){}}
}

// meetTime bounds how long a process waits for the others at a key: they may
// have it in another batch.
const meetTime = time.Second

// meet waits until each process has come to its first claim of the same keys.
func (g *gathering) meet(ctx context.Context, c store.Claim) {
	if g.n < 2 {
		return
	}
	timer := time.NewTimer(meetTime)
	defer timer.Stop()
	for _, all := range g.arrive(c) {
		select {
		case <-all:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (g *gathering) arrive(c store.Claim) (waits []chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range c.Keys {
		a := g.arrivals[k.Raw]
		if a == nil {
			a = &arrival{all: make(chan struct{})}
			g.arrivals[k.Raw] = a
		}
		a.n++
		if a.n+g.gone == g.n {
			close(a.all)
		}
		if a.n+g.gone <= g.n {
			waits = append(waits, a.all)
		}
	}
	return waits
}

// leave says that a process is over.
func (g *gathering) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone++
	for _, a := range g.arrivals {
		if a.n+g.gone == g.n {
			close(a.all)
		}
	}
}

// A fresh claim waits for a rival's as long as rivalTimes claims take, and so
// long at least and at most. Where the database refuses the second, which waits
// for the first, that passes in vain.
const (
	rivalTimes = 10
	minRival   = 50 * time.Millisecond
	maxRival   = 500 * time.Millisecond
)

// claimed gives rivals the time to make the same claim, if the store lets
// them. took is how long this one took.
func (g *gathering) claimed(ctx context.Context, c store.Claim, states []store.State, took time.Duration) {
	if g.n < 2 {
		return
	}
	met := make(chan struct{})
	done := sync.OnceFunc(func() { close(met) })
	wait := false
	g.mu.Lock()
	for i, k := range c.Keys {
		if states[i] != store.Fresh {
			continue
		}
		wait = true
		for _, rival := range g.holders[k.Raw] {
			rival()
			done()
		}
		g.holders[k.Raw] = append(g.holders[k.Raw], done)
	}
	g.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(min(max(rivalTimes*took, minRival), maxRival))
	defer timer.Stop()
	select {
	case <-met:
	case <-timer.C:
	case <-ctx.Done():
	}
}
