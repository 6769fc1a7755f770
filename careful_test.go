package sekali_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// again is a delivery that the broker says came before.
func again(id string) *broker.Delivery {
	d := delivery(id, "")
	d.Redelivered = true
	return d
}

// look returns the starts of a message: -1 if none is recorded.
func look(t *testing.T, m *memstore.Store, id string) int {
	t.Helper()
	recorded, lone, err := m.Starts().Look(t.Context(), "stock-service", id)
	if err != nil {
		t.Fatal(err)
	}
	if !recorded {
		return -1
	}
	return lone
}

// died records lone starts that did not end, as processes leave them behind.
func died(t *testing.T, m *memstore.Store, id string, times int) {
	t.Helper()
	if _, err := m.Starts().Start(t.Context(), "stock-service", id, false); err != nil {
		t.Fatal(err)
	}
	for range times {
		if _, err := m.Starts().Start(t.Context(), "stock-service", id, true); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAStartIsRecordedOnlyForWhatMayHaveComeBefore(t *testing.T) {
	var during sync.Map
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			during.Store(m.ID, look(t, r.memory, m.ID))
			return sell(ctx, tx, m)
		}
	})
	r.source.push("new")
	r.source.pushed <- again("redelivered")
	counted := delivery("second attempt", "")
	counted.Attempt = 2
	r.source.pushed <- counted
	first := delivery("first attempt", "")
	first.Attempt = 1
	r.source.pushed <- first
	r.events.wait(t, 4, kind(sekali.Finished))
	r.finish()
	for id, want := range map[string]int{"new": -1, "first attempt": -1, "redelivered": 0, "second attempt": 0} {
		if got, _ := during.Load(id); got != want {
			t.Errorf("while the handler of %q ran, its starts were %v, want %d", id, got, want)
		}
		if got := look(t, r.memory, id); got != -1 {
			t.Errorf("after %q its starts are %d, want none", id, got)
		}
	}
}

func TestADuplicateThatCameBeforeRecordsNothing(t *testing.T) {
	var calls atomic.Int32
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			calls.Add(1)
			return sell(ctx, tx, m)
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.source.pushed <- again("a")
	r.events.wait(t, 2, kind(sekali.Finished))
	r.finish()
	if calls.Load() != 1 || look(t, r.memory, "a") != -1 {
		t.Errorf("%d calls, starts %d", calls.Load(), look(t, r.memory, "a"))
	}
}

func TestAHandlerThatFailsLeavesTheCrashesThatWereCounted(t *testing.T) {
	for _, crashes := range []int{0, 2} {
		var calls atomic.Int32
		failed, goOn := make(chan struct{}), make(chan struct{})
		r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
			died(t, r.memory, "a", crashes)
			c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
				if got := look(t, r.memory, "a"); got != crashes+1 {
					t.Errorf("in the handler %d lone starts are recorded, want %d", got, crashes+1)
				}
				if calls.Add(1) == 1 {
					return errBad
				}
				close(failed)
				<-goOn
				return sell(ctx, tx, m)
			}
		})
		r.source.pushed <- again("a")
		<-failed
		close(goOn)
		r.events.wait(t, 1, finished("a"))
		r.finish()
		if got := look(t, r.memory, "a"); got != -1 {
			t.Errorf("after it was processed %d lone starts are recorded, want none", got)
		}
		r.wantCounter("sold a", 1)
	}
}

func TestAMessageThatKilledTooManyProcessesIsADeadLetterUncalled(t *testing.T) {
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		died(t, r.memory, "a", 3)
		died(t, r.memory, "b", 2)
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			if m.ID == "a" {
				t.Error("the handler was called once more")
			}
			return sell(ctx, tx, m)
		}
	})
	r.source.pushed <- again("a")
	r.source.pushed <- again("b")
	r.events.wait(t, 1, finished("b"))
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.source.pushed <- again("a") // a copy updates the letter
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	r.finish()
	l := r.onlyLetter()
	if l.Key != "a" || l.Reason != deadletter.Crashed || l.Attempts != 3 || l.Copies != 2 {
		t.Errorf("the letter is %+v", l)
	}
	if got := look(t, r.memory, "a"); got != 3 {
		t.Errorf("%d lone starts are left, want 3: a further copy must not run either", got)
	}
	r.wantTold("a", "ack,ack")
}

func TestASuspectRunsAloneInTheWholeProcess(t *testing.T) {
	var inWork, most atomic.Int32
	var meeting sync.WaitGroup // so that something does run side by side
	meeting.Add(2)
	var met [2]sync.Once
	busy := func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		n := inWork.Add(1)
		defer inWork.Add(-1)
		for i, id := range []string{"meets0", "meets1"} {
			if m.ID == id {
				met[i].Do(meeting.Done)
				meeting.Wait()
				n = max(n, inWork.Load())
			}
		}
		if m.ID[0] == 's' && n > 1 {
			t.Errorf("a suspect ran beside %d others", n-1)
		}
		for {
			seen := most.Load()
			if n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}
		for range 100 {
			if m.ID[0] == 's' && inWork.Load() > 1 {
				t.Error("another began beside a suspect")
			}
		}
		return sell(ctx, tx, m)
	}
	// Two Consumers in one process, with stores and sources of their own.
	var rigs []*rig
	for range 2 {
		rigs = append(rigs, start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
			c.Workers, c.Handle = 4, busy
			for _, id := range []string{"s0", "s1", "s2", "s3", "s4"} {
				died(t, r.memory, id, 1)
			}
		}))
	}
	for i, r := range rigs {
		r.source.push(fmt.Sprint("meets", i))
	}
	meeting.Wait()
	for i := range 200 {
		for _, r := range rigs {
			if i%40 == 20 {
				r.source.pushed <- again("s" + string(rune('0'+i/40)))
			}
			r.source.push("n" + string(rune('A'+i)))
		}
	}
	for _, r := range rigs {
		r.events.wait(t, 206, kind(sekali.Finished))
		r.finish()
		r.wantCounter("sold", 206)
	}
	if most.Load() < 2 {
		t.Error("nothing ever ran side by side: the test proves nothing")
	}
}

func TestASuspectWhoseKeyARivalHoldsLetsOthersGoOn(t *testing.T) {
	r := start(t, func(_ *sekali.Config[*memstore.Tx], r *rig) { died(t, r.memory, "s", 1) })
	rival, _, err := r.memory.Begin(t.Context(), store.Claim{Consumer: "stock-service", Keys: []store.Key{{Raw: "s"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.source.pushed <- again("s")
	r.events.wait(t, 1, kind(sekali.Suspected))
	r.source.push("n")
	r.events.wait(t, 1, finished("n"))
	r.events.wait(t, 1, kind(sekali.AttemptFailed))
	if got := look(t, r.memory, "s"); got != 1 {
		t.Errorf("%d lone starts are counted, want 1: the handler was not called", got)
	}
	if err := r.memory.Rollback(t.Context(), rival); err != nil {
		t.Fatal(err)
	}
	r.events.wait(t, 1, finished("s"))
	r.finish()
	r.wantCounter("sold s", 1)
	if letters := r.letters(); len(letters) != 0 {
		t.Errorf("dead letters: %+v", letters)
	}
}
