package sekali_test

import (
	"context"
	"fmt"
	"slices"
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

// redriving looks for redrives all the time.
func redriving(c *sekali.Config[*memstore.Tx], _ *rig) { c.RedriveEvery = time.Millisecond }

// desk is where a person decides.
func (r *rig) desk() deadletter.Desk { return r.memory.DeadLetters().(deadletter.Desk) }

func (r *rig) redrive(id int64, d deadletter.Decision) {
	r.t.Helper()
	d.By = "ayu"
	if err := r.desk().Redrive(context.Background(), id, d); err != nil {
		r.t.Fatal(err)
	}
}

// letter waits until a letter has a status.
func (r *rig) wantLetter(id int64, want deadletter.Status) deadletter.Letter {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		l, err := r.desk().Get(context.Background(), id)
		if err != nil {
			r.t.Fatal(err)
		}
		if l.Status == want {
			return l
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("letter %d is %s, want %s", id, l.Status, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// moody is a handler that fails until it is told not to.
type moody struct {
	good  atomic.Bool
	calls atomic.Int32
}

func (h *moody) handle(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
	h.calls.Add(1)
	if !h.good.Load() {
		return errBad
	}
	return sell(ctx, tx, m)
}

// dead starts a consumer whose handler fails, and waits for the letters.
func dead(t *testing.T, h *moody, deliveries []*broker.Delivery, options ...configure) *rig {
	t.Helper()
	r := start(t, append([]configure{redriving, handle(h.handle), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.MaxAttempts = 2 }}, options...)...)
	for _, d := range deliveries {
		r.source.pushed <- d
	}
	r.events.wait(t, len(deliveries), func(e sekali.Event) bool {
		return e.Kind == sekali.DeadLettered || e.Kind == sekali.Held
	})
	return r
}

func TestARedriveOfWhatNeverSucceededRunsAndResolvesItsLetter(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
	h.good.Store(true)
	r.redrive(1, deadletter.Decision{})
	r.wantLetter(1, deadletter.Processed)
	r.wantCounter("sold a", 1)
	r.events.wait(t, 1, func(e sekali.Event) bool {
		return e.Kind == sekali.Finished && e.Outcome == sekali.Processed && e.Message.Letter() == 1 && e.Message.Key() == "a"
	})
	r.source.push("a") // a late copy
	r.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate && e.Message.Letter() == 0 })
	r.finish()
	r.wantCounter("sold a", 1)
	r.wantTold("a", "ack,ack")
}

func TestARedriveAfterASuccessIsADuplicateUnlessItIsForced(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0"), delivery("b", "p0")})
	h.good.Store(true)
	r.source.push("a", "b") // the producer sends again, and it works
	r.events.wait(t, 2, func(e sekali.Event) bool { return e.Outcome == sekali.Processed })
	r.redrive(1, deadletter.Decision{})
	r.redrive(2, deadletter.Decision{Force: true})
	r.wantLetter(1, deadletter.Duplicate)
	r.wantLetter(2, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 1)
	r.wantCounter("sold b", 2)
	if n := r.memory.Keys(); n != 2 {
		t.Errorf("%d keys are recorded, want 2", n)
	}
}

func TestARedriveThatFailsIsOpenAgainAfterAttemptsOfItsOwn(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
	before := h.calls.Load()
	r.redrive(1, deadletter.Decision{})
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	l := r.wantLetter(1, deadletter.Open)
	if calls := h.calls.Load() - before; calls != 2 || l.Attempts != 2 || l.Reason != deadletter.Exhausted {
		t.Errorf("the handler was called %d times, the letter is %+v", calls, l)
	}
	h.good.Store(true)
	r.redrive(1, deadletter.Decision{})
	r.wantLetter(1, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 1)
	if n := len(r.letters()); n != 1 {
		t.Errorf("%d letters, want the one", n)
	}
}

func TestAConflictIsRedrivenUnderAnotherKey(t *testing.T) {
	r := start(t, redriving, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Fingerprint = sekali.BodyFingerprint })
	one, other := delivery("a", "p0"), delivery("a", "p0")
	other.Message.Body = []byte("another order")
	r.source.pushed <- one
	r.source.pushed <- other
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	if l := r.onlyLetter(); l.Reason != deadletter.Conflict {
		t.Fatalf("the letter is %+v", l)
	}
	r.redrive(1, deadletter.Decision{})
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	if l := r.wantLetter(1, deadletter.Open); l.Reason != deadletter.Conflict {
		t.Errorf("under its own key it became %+v", l)
	}
	r.redrive(1, deadletter.Decision{Key: "a2"})
	r.wantLetter(1, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 2)
	states, err := r.memory.Seen(context.Background(), store.Claim{Consumer: "stock-service", Keys: []store.Key{{Raw: "a"}, {Raw: "a2"}}})
	if err != nil || !slices.Equal(states, []store.State{store.Duplicate, store.Duplicate}) {
		t.Errorf("the keys are %v, %v", states, err)
	}
}

func TestALetterWithoutAKeyHasItTakenAtItsRedrive(t *testing.T) {
	var mended atomic.Bool
	r := start(t, redriving, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Key = func(m *sekali.Message) (string, error) {
			if !mended.Load() {
				return "", sekali.ErrNoKey
			}
			return "mended " + m.ID, nil
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.redrive(1, deadletter.Decision{})
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	r.wantLetter(1, deadletter.Open)
	mended.Store(true)
	r.redrive(1, deadletter.Decision{})
	r.wantLetter(1, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 1)
}

func TestWhatIsHeldBehindALetterGoesOnInOrderWhenItIsRedriven(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(r *rig)
		want string
	}{
		{"redriven", func(r *rig) { r.redrive(1, deadletter.Decision{}) }, "e/1 e/2 e/3 e/4 e/5"},
		{"discarded", func(r *rig) {
			if err := r.desk().Discard(context.Background(), 1, deadletter.Decision{By: "ayu"}); err != nil {
				r.t.Fatal(err)
			}
		}, "e/2 e/3 e/4 e/5"},
	} {
		t.Run(end.name, func(t *testing.T) {
			h := &moody{}
			var deliveries []*broker.Delivery
			for i := range 4 {
				deliveries = append(deliveries, keyed(fmt.Sprint("e/", i+1), "p0"))
			}
			r := dead(t, h, deliveries, pins, holding)
			h.good.Store(true)
			end.do(r)
			r.source.pushKeyed("p0", "e/5")
			r.wantLetter(4, deadletter.Processed)
			r.events.wait(t, 1, finished("e/5"))
			r.finish()
			if got := r.effects("e"); got != end.want {
				t.Errorf("took effect: %s, want %s", got, end.want)
			}
		})
	}
}

func holding(c *sekali.Config[*memstore.Tx], _ *rig) { c.OnBlocked = sekali.HoldKey }

func TestAHeldMessageThatFailsBlocksWhatIsBehindIt(t *testing.T) {
	var bad atomic.Value
	bad.Store("e/1")
	r := start(t, redriving, pins, holding, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == bad.Load() {
			return sekali.Permanent(errBad)
		}
		return sell(ctx, tx, m)
	}))
	r.source.pushKeyed("p0", "e/1", "e/2", "e/3")
	r.events.wait(t, 2, kind(sekali.Held))
	bad.Store("e/2")
	r.redrive(1, deadletter.Decision{})
	r.wantLetter(2, deadletter.Open)
	r.source.pushKeyed("p0", "e/4")
	r.events.wait(t, 3, kind(sekali.Held))
	if got := r.effects("e"); got != "e/1" {
		t.Errorf("took effect: %s, want e/1", got)
	}
	bad.Store("")
	r.redrive(2, deadletter.Decision{})
	r.wantLetter(4, deadletter.Processed)
	r.finish()
	if got := r.effects("e"); got != "e/1 e/2 e/3 e/4" {
		t.Errorf("took effect: %s", got)
	}
}

func TestARedriveBesideALiveDeliveryOfItsKeyHasOneEffect(t *testing.T) {
	for range 50 {
		h := &moody{}
		r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
		h.good.Store(true)
		r.redrive(1, deadletter.Decision{})
		r.source.push("a")
		r.events.wait(t, 2, kind(sekali.Finished))
		r.finish()
		r.wantCounter("sold a", 1)
	}
}

func TestAStopGivesARedriveBack(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")}, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.MaxAttempts = 3
		c.Backoff = sekali.Backoff{Initial: time.Hour, Max: time.Hour}
	}, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.Letter() == 0 {
			return sekali.Permanent(errBad)
		}
		return h.handle(ctx, tx, m)
	}))
	r.redrive(1, deadletter.Decision{})
	r.events.wait(t, 1, kind(sekali.AttemptFailed)) // it waits an hour now
	r.finish()
	taken, err := r.memory.Redrives().Take(context.Background(), "stock-service", 1, time.Minute)
	if err != nil || len(taken) != 1 || taken[0].Takes != 1 {
		t.Errorf("after the stop another instance takes %+v, %v", taken, err)
	}
}

func TestARedriveWhoseLetterIsResolvedMeanwhileHasNoEffect(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
	h.good.Store(true)
	began, release := r.store.Hold(faulty.Begin)
	r.redrive(1, deadletter.Decision{Force: true})
	<-began
	if err := r.desk().Discard(context.Background(), 1, deadletter.Decision{By: "budi"}); err != nil {
		t.Fatal(err)
	}
	release()
	r.events.wait(t, 1, kind(sekali.Expired))
	r.finish()
	r.wantCounter("sold a", 0)
	r.wantLetter(1, deadletter.Discarded)
}

func TestAForcedRedriveWhoseCommitIsUnknownHasItsEffectOnce(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
	h.good.Store(true)
	r.store.Fail(faulty.CommitAfter, 1, store.ErrCommitUnknown)
	r.redrive(1, deadletter.Decision{Force: true})
	r.wantLetter(1, deadletter.Processed)
	r.events.wait(t, 1, kind(sekali.Expired)) // the second run found that the letter is resolved
	r.finish()
	r.wantCounter("sold a", 1)
}

func TestCrashesAreCountedAnewForARedriveAndThenAsEver(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{delivery("a", "p0")})
	died(t, r.memory, "a", 3)
	h.good.Store(true)
	// A process dies of it in the middle.
	r.finish()
	r.redrive(1, deadletter.Decision{})
	if taken, err := r.memory.Redrives().Take(context.Background(), "stock-service", 1, 0); err != nil || len(taken) != 1 {
		t.Fatalf("taken: %v, %v", taken, err)
	}
	again := start(t, redriving, handle(h.handle), func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Store = r.memory
	})
	again.memory = r.memory
	again.events.wait(t, 1, kind(sekali.DeadLettered))
	if l := again.wantLetter(1, deadletter.Open); l.Reason != deadletter.Crashed {
		t.Errorf("crashes behind a take that did not end were forgotten: %+v", l)
	}
	again.redrive(1, deadletter.Decision{})
	again.wantLetter(1, deadletter.Processed)
	again.finish()
	again.wantCounter("sold a", 1)
}

func TestTroubleWithRedrivesLeavesTheBrokersMessagesAlone(t *testing.T) {
	r := start(t, redriving, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Redrives = noRedrives{} })
	r.events.wait(t, 2, kind(sekali.ReceiveFailed))
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
}

// noRedrives cannot be asked.
type noRedrives struct{}

func (noRedrives) Take(context.Context, string, int, time.Duration) ([]deadletter.Redrive, error) {
	return nil, store.ErrUnavailable
}

func (noRedrives) Extend(context.Context, []deadletter.Redrive, time.Duration) ([]int64, error) {
	return nil, nil
}

func (noRedrives) ResolveIn(context.Context, *memstore.Tx, deadletter.Redrive, deadletter.Status) error {
	return nil
}

func (noRedrives) Resolve(context.Context, deadletter.Redrive, deadletter.Status) error {
	return nil
}

func (noRedrives) Reopen(context.Context, deadletter.Redrive, deadletter.Letter) error { return nil }

func (noRedrives) Release(context.Context, []deadletter.Redrive) error { return nil }

func (noRedrives) Check(context.Context) error { return nil }
