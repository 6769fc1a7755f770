package sekali_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// gated holds the first message until the test has pushed what is to come in
// one batch behind it.
func gated(h sekali.Handler[*memstore.Tx]) (_ sekali.Handler[*memstore.Tx], began, open func()) {
	inWork, gate := make(chan struct{}), make(chan struct{})
	held := func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "first" {
			close(inWork)
			<-gate
		}
		return h(ctx, tx, m)
	}
	return held, func() { <-inWork }, sync.OnceFunc(func() { close(gate) })
}

// batch starts a rig with one worker, and pushes ids so that they are there at
// once when it takes its second transaction.
func batch(t *testing.T, h sekali.Handler[*memstore.Tx], ids []string, options ...configure) *rig {
	t.Helper()
	h, began, open := gated(h)
	r := start(t, append([]configure{handle(h), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 }}, options...)...)
	r.source.push("first")
	began()
	r.source.push(ids...)
	r.events.wait(t, 1+len(ids), kind(sekali.Received))
	// The event comes before the message is where workers find it. When the
	// next ones are asked for, it is there; if too many wait, none are.
	for end := time.Now().Add(time.Second); r.source.asked.Load() <= r.source.answered.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	open()
	return r
}

func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("m%03d", i))
	}
	return ids
}

// began counts the transactions that a rig's store was asked for.
func (r *rig) began() int { return r.store.Calls(faulty.Begin) }

func TestWhatHasArrivedSharesOneTransactionAndOneAcknowledgement(t *testing.T) {
	var settles atomic.Int32
	r := batch(t, sell, numbered(50), func(c *sekali.Config[*memstore.Tx], r *rig) {
		r.source.settle = func([]broker.Settlement) error { settles.Add(1); return nil }
	})
	r.events.wait(t, 51, kind(sekali.Finished))
	r.finish()
	if n := r.began(); n != 2 {
		t.Errorf("%d transactions for one message and 50 more, want 2", n)
	}
	if n := settles.Load(); n > 2 {
		t.Errorf("%d acknowledgements, want 2 at most", n)
	}
	r.wantCounter("sold", 51)
}

func TestAMessageThatFailsIsIsolatedAndTheOthersAreCommittedWithoutIt(t *testing.T) {
	bad := map[string]func() error{
		"m010": func() error { return errBad },
		"m020": func() error { panic("bad") },
		"m030": func() error { runtime.Goexit(); return nil },
		"m049": func() error { return sekali.Permanent(errBad) },
	}
	var calls sync.Map
	r := batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		n, _ := calls.LoadOrStore(m.ID, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
		if fail := bad[m.ID]; fail != nil {
			return fail()
		}
		return sell(ctx, tx, m)
	}, numbered(50), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.MaxAttempts = 3 })
	r.events.wait(t, 47, kind(sekali.Finished))
	r.events.wait(t, 4, kind(sekali.DeadLettered))
	r.finish()
	r.wantCounter("sold", 47)
	for _, l := range r.letters() {
		if bad[l.Key] == nil {
			t.Errorf("%s is a dead letter: %s", l.Key, l.Error)
		}
		if want := 3; l.Reason == deadletter.Exhausted && l.Attempts != want {
			t.Errorf("%s was tried %d times, want %d, alone in its transaction", l.Key, l.Attempts, want)
		}
	}
	calls.Range(func(id, n any) bool {
		if n := n.(*atomic.Int32).Load(); bad[id.(string)] == nil && n > 2 {
			t.Errorf("the handler of %s was called %d times for others' failures", id, n)
		}
		return true
	})
}

func TestTheCulpritIsFoundAmongDuplicates(t *testing.T) {
	var others atomic.Int32
	r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 })
	r.source.push(numbered(40)...)
	r.events.wait(t, 40, kind(sekali.Finished))
	r.finish()
	memory := r.memory
	r = batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "m045" {
			return sekali.Permanent(errBad)
		}
		others.Add(1)
		return sell(ctx, tx, m)
	}, numbered(50), func(c *sekali.Config[*memstore.Tx], r *rig) {
		r.memory, r.store = memory, faulty.NewStore[*memstore.Tx](memory)
		c.Store = r.store
	})
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.events.wait(t, 50, kind(sekali.Finished))
	r.finish()
	if n := others.Load(); n > 1+9+5 { // those before it run twice
		t.Errorf("%d calls of the handlers of 10 messages that did not fail", n)
	}
}

func TestManyFailuresAreNotQuadratic(t *testing.T) {
	var calls atomic.Int32
	r := batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		calls.Add(1)
		if m.ID != "first" && m.ID[3]%2 == 0 {
			return sekali.Permanent(errBad)
		}
		return sell(ctx, tx, m)
	}, numbered(100))
	r.events.wait(t, 50, kind(sekali.DeadLettered))
	r.events.wait(t, 51, kind(sekali.Finished))
	r.finish()
	if n := calls.Load(); n > 251 {
		t.Errorf("%d calls of handlers for 100 messages of which half fail", n)
	}
}

func TestBehindAMessageThatWaitsItsLineWaitsAndTheRestOfItsBatchDoesNot(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	h, began, open := gated(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "a/2" && failing.Load() {
			return errBad
		}
		return sell(ctx, tx, m)
	})
	r := start(t, pins, handle(h), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers, c.MaxAttempts = 1, 1_000_000 })
	r.source.pushKeyed("p9", "first")
	began()
	r.source.pushKeyed("p0", "a/1", "b/1", "a/2", "b/2", "a/3", "c/1")
	r.events.wait(t, 7, kind(sekali.Received))
	open()
	for _, id := range []string{"a/1", "b/1", "b/2", "c/1"} {
		r.events.wait(t, 1, finished(id))
	}
	if r.events.count(finished("a/3")) > 0 {
		t.Error("a/3 took effect before a/2")
	}
	failing.Store(false)
	r.events.wait(t, 1, finished("a/3"))
	r.finish()
	if got := r.effects("a"); got != "a/1 a/2 a/3" {
		t.Errorf("a took effect so: %s", got)
	}
}

func TestARepeatInABatchIsHeldUntilTheFirstsFateIsKnown(t *testing.T) {
	r := batch(t, sell, []string{"a", "b", "a", "c", "b", "a"})
	r.events.wait(t, 7, kind(sekali.Finished))
	r.finish()
	for _, id := range []string{"a", "b", "c"} {
		r.wantCounter("sold "+id, 1)
	}
	if n := r.began(); n > 4 {
		t.Errorf("%d transactions, want 4 at most: nothing failed", n)
	}
	if n := r.events.count(func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate }); n != 3 {
		t.Errorf("%d duplicates, want 3", n)
	}
}

func TestARepeatWithAnotherBodyInABatchIsAConflict(t *testing.T) {
	h, began, open := gated(sell)
	r := start(t, handle(h), func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Workers, c.Fingerprint = 1, sekali.BodyFingerprint
	})
	r.source.push("first")
	began()
	other := delivery("a", "")
	other.Message.Body = []byte("another body")
	r.source.push("a")
	r.source.pushed <- other
	r.source.push("b")
	r.events.wait(t, 4, kind(sekali.Received))
	open()
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.events.wait(t, 1, finished("b"))
	r.finish()
	r.wantCounter("sold a", 1)
	if l := r.onlyLetter(); l.Reason != deadletter.Conflict || string(l.Message.Body) != "another body" {
		t.Errorf("the letter is %+v", l)
	}
}

func TestABatchOfSlowHandlersIsCommittedEarly(t *testing.T) {
	r := batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		time.Sleep(2 * time.Millisecond)
		return sell(ctx, tx, m)
	}, numbered(40), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Batch.MaxOpen = 10 * time.Millisecond })
	r.events.wait(t, 41, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 41)
	if n := r.began(); n < 6 {
		t.Errorf("%d transactions for 40 messages of 2 ms, of 10 ms at most", n)
	}
	if n := r.memory.Keys(); n != 41 {
		t.Errorf("%d keys", n)
	}
}

func TestAStopEndsABatchAfterTheMessageInWork(t *testing.T) {
	inWork, goOn := make(chan struct{}), make(chan struct{})
	r := batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "m003" {
			close(inWork)
			<-goOn
		}
		return sell(ctx, tx, m)
	}, numbered(21), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Batch.Size = 20 })
	<-inWork
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.finish()
	}()
	r.events.wait(t, 1, kind(sekali.Released)) // the one that is not in the batch
	close(goOn)
	<-stopped
	r.wantCounter("sold", 5) // first and m000 to m003
	r.wantTold("m003", "ack")
	r.wantTold("m004", "retry")
}

func TestHandleBatchIsAllOrNothingAndItsCulpritIsFound(t *testing.T) {
	for name, fail := range map[string]func(at int) error{
		"named":         func(at int) error { return fmt.Errorf("one is bad: %w", &store.FailedAt{Index: at, Err: errBad}) },
		"found":         func(int) error { return errBad },
		"panics":        func(int) error { panic("bad") },
		"a wrong index": func(int) error { return &store.FailedAt{Index: 1000, Err: errBad} },
	} {
		t.Run(name, func(t *testing.T) {
			began, gate := make(chan struct{}), make(chan struct{})
			var calls atomic.Int32
			r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) {
				c.Workers, c.Handle, c.MaxAttempts = 1, nil, 2
				c.HandleBatch = func(ctx context.Context, tx *memstore.Tx, all []*sekali.Message) error {
					if all[0].ID == "first" {
						close(began)
						<-gate
					}
					calls.Add(1)
					for i, m := range all {
						if m.ID == "m037" || m.ID == "m080" {
							return fail(i)
						}
						if err := sell(ctx, tx, m); err != nil {
							return err
						}
					}
					return nil
				}
			})
			r.source.push("first")
			<-began
			r.source.push(numbered(100)...)
			r.events.wait(t, 101, kind(sekali.Received))
			close(gate)
			r.events.wait(t, 99, kind(sekali.Finished))
			r.events.wait(t, 2, kind(sekali.DeadLettered))
			r.finish()
			r.wantCounter("sold", 99)
			for _, l := range r.letters() {
				if l.Key != "m037" && l.Key != "m080" || l.Attempts != 2 {
					t.Errorf("%s is a dead letter after %d attempts: %s", l.Key, l.Attempts, l.Error)
				}
			}
			if n := calls.Load(); name == "named" && n > 12 || n > 60 {
				t.Errorf("%d calls of the handler", n)
			}
		})
	}
}

func TestAConflictOfABatchMakesTheConsumerHumbler(t *testing.T) {
	var sizes sync.Map
	var n atomic.Int32
	r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Workers, c.Handle = 1, nil
		c.HandleBatch = func(ctx context.Context, tx *memstore.Tx, all []*sekali.Message) error {
			sizes.Store(len(all), true)
			if len(all) > 10 && n.Add(1) <= 20 {
				return memstore.ErrBusy
			}
			for _, m := range all {
				if err := sell(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}
	})
	r.source.push(numbered(300)...)
	r.events.wait(t, 300, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 300)
	if letters := r.letters(); len(letters) > 0 {
		t.Errorf("dead letters: %+v", letters)
	}
	if r.events.count(kind(sekali.Conflicted)) == 0 {
		t.Error("no conflict was told")
	}
	if n.Load() > 6 {
		t.Errorf("%d conflicts before batches were small enough", n.Load())
	}
}

func TestHandlersGetCopiesOfTheirOwnInABatch(t *testing.T) {
	var mu sync.Mutex
	var wrong []string
	seen := map[string]int{}
	r := batch(t, func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen[m.ID]++
		if want := "body of " + m.ID; string(m.Body) != want || string(m.Headers[0].Value) != "value" {
			wrong = append(wrong, fmt.Sprintf("%s: %q %q", m.ID, m.Body, m.Headers[0].Value))
		}
		m.Body = append(m.Body, "and what runs over into the next"...)
		clear(m.Body)
		m.Headers[0].Value = append(m.Headers[0].Value, "more"...)
		clear(m.Headers[0].Value)
		m.Headers[0].Name = "x"
		if m.ID == "m005" && seen[m.ID] < 3 {
			return errBad
		}
		return sell(ctx, tx, m)
	}, numbered(10))
	r.events.wait(t, 11, kind(sekali.Finished))
	r.finish()
	if len(wrong) > 0 {
		t.Errorf("messages were changed: %s", strings.Join(wrong, "; "))
	}
}

func TestAHandlerThatHangsDoesNotStopTheOthers(t *testing.T) {
	began, hangs := make(chan struct{}), make(chan struct{})
	r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "hangs" {
			close(began)
			<-hangs
		}
		return sell(ctx, tx, m)
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 2 })
	r.source.push("hangs")
	<-began
	r.source.push("a", "b")
	r.events.wait(t, 1, finished("a"))
	r.events.wait(t, 1, finished("b"))
	close(hangs)
	r.events.wait(t, 1, finished("hangs"))
	r.finish()
}

func TestWhenAKeySurvivesItsBatchOnlyFreshMessagesBecomeDeadLetters(t *testing.T) {
	r := batch(t, sell, []string{"old", "a", "b"}, func(c *sekali.Config[*memstore.Tx], r *rig) {
		tx, _, err := r.memory.Begin(t.Context(), store.Claim{Consumer: "stock-service", Keys: []store.Key{{Raw: "old"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.memory.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		r.store.At(faulty.Commit, func(call int) error {
			if call == 2 {
				return errors.Join(store.ErrTransactionLost, store.ErrKeySurvived)
			}
			return nil
		})
	})
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	r.events.wait(t, 1, finished("old"))
	r.finish()
	for _, l := range r.letters() {
		if l.Reason != deadletter.Survived || l.Key == "old" {
			t.Errorf("%s is a dead letter for %s", l.Key, l.Reason)
		}
	}
}

func TestAStopInTheMiddleOfAnIsolationLetsNothingOvertake(t *testing.T) {
	var calls atomic.Int32
	var r *rig
	stopped := make(chan struct{})
	h, began, open := gated(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "a/2" && calls.Add(1) == 1 {
			go func() {
				defer close(stopped)
				r.finish()
			}()
			r.events.wait(t, 1, kind(sekali.Released)) // the stop has begun
			return errBad
		}
		return sell(ctx, tx, m)
	})
	r = start(t, pins, handle(h), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers, c.Batch.Size = 1, 2 })
	r.source.pushKeyed("p9", "first")
	began()
	r.source.pushKeyed("p0", "a/1", "a/2")
	r.source.pushKeyed("p1", "b/1")
	r.events.wait(t, 4, kind(sekali.Received))
	open()
	<-stopped
	if got := r.effects("a"); got != "" {
		t.Errorf("a took effect so: %s; a/1 had not", got)
	}
	r.wantTold("a/1", "retry")
	r.wantTold("a/2", "retry")
}
