package sekali_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// courier sells labels.
type courier struct {
	calls atomic.Int32
	fail  atomic.Value // func() error
}

func (c *courier) label(context.Context, effect.Call) (string, error) {
	n := c.calls.Add(1)
	if fail, ok := c.fail.Load().(func() error); ok {
		if err := fail(); err != nil {
			return "", err
		}
	}
	return fmt.Sprint("label ", n), nil
}

// buys prepares messages: each buys a label, and notes it.
func buys(c *courier, opts ...effect.Option) configure {
	return func(cfg *sekali.Config[*memstore.Tx], r *rig) {
		ledger := effect.New(r.memory.Effects(), "stock-service", effect.Config{})
		cfg.Handle = nil
		cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
			label, err := effect.Do(ctx, ledger, m.Key(), "label", c.label, opts...)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, tx *memstore.Tx) error {
				tx.Add(label, 1)
				return sell(ctx, tx, m)
			}, nil
		}
	}
}

func TestAMessageIsPreparedOutsideItsTransactionAndADuplicateIsNot(t *testing.T) {
	c := &courier{}
	r := start(t, buys(c), redriving)
	c.fail.Store(func() error {
		if n := r.memory.Open(); n != 0 {
			t.Errorf("%d transactions are open during a call", n)
		}
		return nil
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.source.push("a")
	r.events.wait(t, 2, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
	r.wantCounter("label 1", 1)
	r.wantTold("a", "ack,ack")
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d labels were bought", n)
	}
}

func TestPreparesRunSideBySideAndTheirCommitsShareATransaction(t *testing.T) {
	const n = 10
	c := &courier{}
	var inside sync.WaitGroup
	inside.Add(n)
	c.fail.Store(func() error { // all of them at once, or none comes out
		inside.Done()
		inside.Wait()
		return nil
	})
	var prepared sync.WaitGroup
	prepared.Add(n)
	r := start(t, buys(c), func(cfg *sekali.Config[*memstore.Tx], r *rig) {
		cfg.Workers = 1
		cfg.Batch.MaxOpen = time.Hour
		prepare := cfg.Prepare
		cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
			defer prepared.Done()
			return prepare(ctx, m)
		}
	})
	begun, release := r.store.Hold(faulty.Begin)
	for i := range n {
		r.source.push(fmt.Sprintf("m%03d", i))
	}
	<-begun // by the first that is prepared
	prepared.Wait()
	release()
	r.events.wait(t, n, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", n)
	if got := r.began(); got > n/2 {
		t.Errorf("%d transactions for %d messages", got, n)
	}
}

func TestMessagesOfAKeyArePreparedOneAfterAnother(t *testing.T) {
	var inWork atomic.Int32
	r := start(t, pins, func(cfg *sekali.Config[*memstore.Tx], r *rig) {
		cfg.Handle = nil
		cfg.Prepare = func(_ context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
			if inWork.Add(1) > 1 {
				t.Error("two messages of a key are prepared side by side")
			}
			defer inWork.Add(-1)
			var last string
			if log := r.memory.Log(); len(log) > 0 {
				last = log[len(log)-1]
			}
			if want := map[string]string{"e/1": "", "e/2": "sold e/1", "e/3": "sold e/2"}[m.ID]; last != want {
				t.Errorf("%s is prepared after %q, want %q", m.ID, last, want)
			}
			return func(ctx context.Context, tx *memstore.Tx) error { return sell(ctx, tx, m) }, nil
		}
	})
	r.source.pushKeyed("p0", "e/1", "e/2", "e/3")
	r.events.wait(t, 3, kind(sekali.Finished))
	r.finish()
	if got := r.effects("e"); got != "e/1 e/2 e/3" {
		t.Errorf("took effect: %s", got)
	}
}

func TestWhenACommitFailsItAloneRunsAgain(t *testing.T) {
	c := &courier{}
	var commits atomic.Int32
	r := start(t, buys(c), func(cfg *sekali.Config[*memstore.Tx], _ *rig) {
		prepare := cfg.Prepare
		cfg.Prepare = func(ctx context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
			commit, err := prepare(ctx, m)
			return func(ctx context.Context, tx *memstore.Tx) error {
				if commits.Add(1) < 3 {
					return errBad
				}
				return commit(ctx, tx)
			}, err
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
	if calls, n := c.calls.Load(), commits.Load(); calls != 1 || n != 3 {
		t.Errorf("%d calls and %d commits, want 1 and 3", calls, n)
	}
}

func TestAPrepareThatFailsIsTriedAgainAndThenADeadLetter(t *testing.T) {
	for name, fail := range map[string]func(){"error": nil, "panic": func() { panic("oh") }} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			r := start(t, func(cfg *sekali.Config[*memstore.Tx], _ *rig) {
				cfg.Handle, cfg.MaxAttempts = nil, 3
				cfg.Prepare = func(context.Context, *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
					calls.Add(1)
					if fail != nil {
						fail()
					}
					return nil, errBad
				}
			})
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.DeadLettered))
			r.finish()
			if l := r.onlyLetter(); l.Attempts != 3 || calls.Load() != 3 {
				t.Errorf("%d calls, the letter is %+v", calls.Load(), l)
			}
		})
	}
}

func TestANilCommitIsAMessageWithNothingToChange(t *testing.T) {
	r := start(t, func(cfg *sekali.Config[*memstore.Tx], _ *rig) {
		cfg.Handle = nil
		cfg.Prepare = func(context.Context, *sekali.Message) (sekali.Commit[*memstore.Tx], error) { return nil, nil }
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	if n := r.memory.Keys(); n != 1 {
		t.Errorf("%d keys", n)
	}
}

func TestAParkedMessageWaitsAndGoesOnByItselfWhenAPersonHasDecided(t *testing.T) {
	for name, c := range map[string]struct {
		say  effect.Resolution
		ends deadletter.Status
		sold int
	}{
		"it has happened": {effect.Resolution{By: "ayu", To: effect.Succeeded, Result: []byte(`"label by hand"`)}, deadletter.Processed, 1},
		"call again":      {effect.Resolution{By: "ayu", To: effect.Failed}, deadletter.Processed, 1},
		"give up":         {effect.Resolution{By: "ayu", To: effect.Failed, GiveUp: true}, deadletter.Open, 0},
	} {
		t.Run(name, func(t *testing.T) {
			shop := &courier{}
			shop.fail.Store(func() error { return errBad })
			r := start(t, buys(shop), redriving, pins, holding)
			r.source.pushKeyed("p0", "e/1", "e/2")
			r.events.wait(t, 1, kind(sekali.Held))
			if l := r.wantLetter(1, deadletter.Waiting); l.Reason != deadletter.Parked {
				t.Errorf("the letter is %+v", l)
			}
			shop.fail.Store(func() error { return nil })
			if err := r.memory.Effects().(effect.Desk).Resolve(t.Context(), 1, c.say); err != nil {
				t.Fatal(err)
			}
			r.wantLetter(1, c.ends)
			want := ""
			if c.sold == 1 {
				r.wantLetter(2, deadletter.Processed)
				want = "e/1 e/2"
			}
			r.finish()
			r.wantTold("e/1", "ack")
			if got := r.effects("e"); got != want {
				t.Errorf("took effect: %q, want %q", got, want)
			}
		})
	}
}

func TestAnEffectUnderWayElsewhereIsWaitedForUncounted(t *testing.T) {
	c := &courier{}
	r := start(t, buys(c, effect.Repeat(time.Hour)), func(cfg *sekali.Config[*memstore.Tx], r *rig) {
		cfg.MaxAttempts = 1
		_, _, err := r.memory.Effects().Start(context.Background(), effect.ID{Consumer: "stock-service", MessageKey: "a", Name: "label"}, "k", 300*time.Millisecond)
		if err != nil {
			t.Error(err)
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
	if n := len(r.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestAMessageWhoseKeyVanishesAfterTheLookIsPreparedAfterAll(t *testing.T) {
	c := &courier{}
	r := start(t, buys(c))
	var once sync.Once
	r.store.At(faulty.Seen, func(int) error {
		once.Do(func() { // it looks like a duplicate now, and is none when it is claimed
			tx, _, err := r.memory.Begin(context.Background(), store.Claim{Consumer: "stock-service", Keys: []store.Key{{Raw: "a"}}})
			if err = errors.Join(err, r.memory.Commit(context.Background(), tx)); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	r.store.At(faulty.Begin, func(call int) error {
		if call == 1 {
			r.memory.Forget("stock-service", "a")
		}
		return nil
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d labels were bought", n)
	}
}

func TestASuspectIsPreparedWithItsStartRecorded(t *testing.T) {
	var during atomic.Int32
	r := start(t, func(cfg *sekali.Config[*memstore.Tx], r *rig) {
		cfg.Handle = nil
		cfg.Prepare = func(_ context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
			during.Store(int32(look(t, r.memory, m.ID)))
			return nil, nil
		}
	})
	r.source.pushed <- again("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	if got := during.Load(); got != 0 {
		t.Errorf("during Prepare %d lone starts are recorded, want a start without one", got)
	}
	died(t, r.memory, "b", 1)
	r.source.pushed <- again("b")
	r.events.wait(t, 2, kind(sekali.Finished))
	if got := during.Load(); got != 2 {
		t.Errorf("during Prepare %d lone starts are recorded, want 2", got)
	}
	r.finish()
	for _, id := range []string{"a", "b"} {
		if got := look(t, r.memory, id); got != -1 {
			t.Errorf("the start of %s is still recorded", id)
		}
	}
}

func TestAForcedRedriveIsPreparedAgainAndItsEffectsKeepTheirResults(t *testing.T) {
	c := &courier{}
	r := start(t, buys(c), redriving)
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	letter := deadletter.Letter{Consumer: "stock-service", Key: "a", Reason: deadletter.Exhausted, Message: broker.Message{ID: "a", Body: []byte("again")}}
	if err := r.desk().Put(t.Context(), letter); err != nil {
		t.Fatal(err)
	}
	r.redrive(1, deadletter.Decision{Force: true})
	r.wantLetter(1, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 2)
	r.wantCounter("label 1", 2)
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d labels were bought", n)
	}
}
