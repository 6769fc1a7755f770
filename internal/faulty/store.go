// Package faulty fails on command: a store, a source and a sink that fail at
// any boundary, and a TCP proxy that cuts, delays and drops what travels to a
// real server. It is for tests.
package faulty

import (
	"context"
	"errors"
	"sync"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// Point is a boundary at which something can fail.
type Point string

// The boundaries. A fault at a point that ends in After happens once the real
// operation has worked: its effect is there, and its answer is lost.
const (
	Check       Point = "check"
	Begin       Point = "begin"
	Claim       Point = "claim"
	Commit      Point = "commit"
	CommitAfter Point = "commit after"
	Rollback    Point = "rollback"
	Seen        Point = "seen"
	Receive     Point = "receive"
	Settle      Point = "settle"
	SettleAfter Point = "settle after"
	Close       Point = "close"
	Put         Point = "put"
	PutAfter    Point = "put after"
)

// Faults decides what fails. The zero value lets everything pass. It is safe
// for concurrent use.
type Faults struct {
	mu    sync.Mutex
	hooks map[Point]func(call int) error
	calls map[Point]int
}

// At has hook called at a point, with the number of the call, from 1. An error
// of it is the operation's; it may also wait, or end the process. nil takes
// the hook away.
func (f *Faults) At(p Point, hook func(call int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hooks == nil {
		f.hooks = map[Point]func(int) error{}
	}
	f.hooks[p] = hook
}

// Fail has the next n calls at a point fail with err.
func (f *Faults) Fail(p Point, n int, err error) {
	var mu sync.Mutex
	f.At(p, func(int) error {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return nil
		}
		n--
		return err
	})
}

// Hold holds the next call at a point back: entered is closed when it is
// there, and it goes on when release is called.
func (f *Faults) Hold(p Point) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.At(p, func(int) error {
		once.Do(func() {
			close(in)
			<-out
		})
		return nil
	})
	return in, sync.OnceFunc(func() { close(out) })
}

// Calls returns how often a point was reached.
func (f *Faults) Calls(p Point) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[p]
}

func (f *Faults) at(p Point) error {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[Point]int{}
	}
	f.calls[p]++
	hook, call := f.hooks[p], f.calls[p]
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(call)
}

// Store is a store that fails on command.
type Store[Tx any] struct {
	Faults
	real store.Store[Tx]
}

// NewStore returns a Store before a real one.
func NewStore[Tx any](real store.Store[Tx]) *Store[Tx] { return &Store[Tx]{real: real} }

// Unwrap returns the real store, for store.As.
func (s *Store[Tx]) Unwrap() any { return s.real }

// Begin implements store.Store. A fault opens nothing.
func (s *Store[Tx]) Begin(ctx context.Context, c store.Claim) (Tx, []store.State, error) {
	if err := s.at(Begin); err != nil {
		var none Tx
		return none, nil, err
	}
	return s.real.Begin(ctx, c)
}

// Claim implements store.Store.
func (s *Store[Tx]) Claim(ctx context.Context, tx Tx, c store.Claim) ([]store.State, error) {
	if err := s.at(Claim); err != nil {
		return nil, err
	}
	return s.real.Claim(ctx, tx, c)
}

// Commit implements store.Store. A fault at Commit rolls back, so that the
// transaction is over; one at CommitAfter comes when it is committed.
func (s *Store[Tx]) Commit(ctx context.Context, tx Tx) error {
	if err := s.at(Commit); err != nil {
		return errors.Join(err, s.real.Rollback(ctx, tx))
	}
	if err := s.real.Commit(ctx, tx); err != nil {
		return err
	}
	return s.at(CommitAfter)
}

// Rollback implements store.Store. It rolls back in any case.
func (s *Store[Tx]) Rollback(ctx context.Context, tx Tx) error {
	err := s.real.Rollback(ctx, tx)
	return errors.Join(s.at(Rollback), err)
}

// Seen implements store.Store.
func (s *Store[Tx]) Seen(ctx context.Context, c store.Claim) ([]store.State, error) {
	if err := s.at(Seen); err != nil {
		return nil, err
	}
	return s.real.Seen(ctx, c)
}

// Classify implements store.Store.
func (s *Store[Tx]) Classify(err error) store.Class { return s.real.Classify(err) }

// Check implements store.Store.
func (s *Store[Tx]) Check(ctx context.Context) error {
	if err := s.at(Check); err != nil {
		return err
	}
	return s.real.Check(ctx)
}

// Source is a source that fails on command.
type Source struct {
	Faults
	real broker.Source
}

// NewSource returns a Source before a real one. Optional interfaces of the
// real one are found by broker.As.
func NewSource(real broker.Source) *Source { return &Source{real: real} }

// Unwrap returns the real source, for broker.As.
func (s *Source) Unwrap() any { return s.real }

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if err := s.at(Receive); err != nil {
		return nil, err
	}
	return s.real.Receive(ctx, max)
}

// Settle implements broker.Source. A fault at Settle tells the broker
// nothing; one at SettleAfter comes when it was told.
func (s *Source) Settle(ctx context.Context, batch []broker.Settlement) error {
	if err := s.at(Settle); err != nil {
		return err
	}
	if err := s.real.Settle(ctx, batch); err != nil {
		return err
	}
	return s.at(SettleAfter)
}

// Close implements broker.Source. It closes in any case.
func (s *Source) Close(ctx context.Context) error {
	err := s.real.Close(ctx)
	return errors.Join(s.at(Close), err)
}

// Sink is a sink of dead letters that fails on command.
type Sink struct {
	Faults
	real deadletter.Sink
}

// NewSink returns a Sink before a real one.
func NewSink(real deadletter.Sink) *Sink { return &Sink{real: real} }

// Put implements deadletter.Sink. A fault at Put writes nothing; one at
// PutAfter comes when the letter is written.
func (s *Sink) Put(ctx context.Context, l deadletter.Letter) error {
	if err := s.at(Put); err != nil {
		return err
	}
	if err := s.real.Put(ctx, l); err != nil {
		return err
	}
	return s.at(PutAfter)
}
