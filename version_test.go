package sekali_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// versioned takes "entity@version" from the id of a message; without an "@" it
// has none.
func versioned(c *sekali.Config[*memstore.Tx], _ *rig) {
	c.Version = func(m *sekali.Message) (string, int64, bool) {
		entity, text, ok := strings.Cut(m.ID, "@")
		n, err := strconv.ParseInt(text, 10, 64)
		return entity, n, ok && err == nil
	}
}

func stale(id string) func(sekali.Event) bool {
	return func(e sekali.Event) bool {
		return e.Kind == sekali.Finished && e.Outcome == sekali.Stale && e.Message.ID == id
	}
}

func TestAnOlderStateIsRecordedAndAcknowledgedWithoutTheHandler(t *testing.T) {
	r := start(t, versioned)
	for _, id := range []string{"e@8", "e@7", "f@7", "plain", "e@9", "e@7"} {
		r.source.push(id)
		r.events.wait(t, 1, finished(id))
	}
	r.events.wait(t, 6, kind(sekali.Finished))
	r.finish()
	if n := r.events.count(stale("e@7")); n != 1 {
		t.Errorf("e@7 is stale %d times, and then a duplicate: want once", n)
	}
	for id, want := range map[string]int{"e@8": 1, "e@7": 0, "f@7": 1, "plain": 1, "e@9": 1} {
		r.wantCounter("sold "+id, want)
	}
	r.wantTold("e@7", "ack,ack")
	if n := r.memory.Keys(); n != 5 {
		t.Errorf("%d keys are recorded, want 5", n)
	}
}

func TestVersionsHoldWithinABatch(t *testing.T) {
	ids := []string{"e@1", "e@3", "e@2", "f@1", "e@3.", "e@4"} // "e@3." has no version
	for name, set := range map[string]func(*sekali.Config[*memstore.Tx]){
		"Handle": func(c *sekali.Config[*memstore.Tx]) {},
		"HandleBatch": func(c *sekali.Config[*memstore.Tx]) {
			handle := c.Handle
			c.Handle = nil
			c.HandleBatch = func(ctx context.Context, tx *memstore.Tx, all []*sekali.Message) error {
				for i, m := range all {
					if err := handle(ctx, tx, m); err != nil {
						return &store.FailedAt{Index: i, Err: err}
					}
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var fails atomic.Int32
			h, began, open := gated(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
				if m.ID == "f@1" && fails.Add(1) < 3 { // a poison neighbour, behind a stale one
					return errBad
				}
				return sell(ctx, tx, m)
			})
			r := start(t, versioned, handle(h), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 },
				func(c *sekali.Config[*memstore.Tx], _ *rig) { set(c) })
			r.source.pushed <- delivery("first", "p0")
			began()
			for _, id := range ids {
				r.source.pushed <- delivery(id, "p0")
			}
			open()
			r.events.wait(t, 1+len(ids), kind(sekali.Finished))
			r.finish()
			for _, id := range ids {
				want := 1
				if id == "e@2" {
					want = 0
				}
				r.wantCounter("sold "+id, want)
			}
			if n := r.events.count(stale("e@2")); n != 1 {
				t.Errorf("e@2 is stale %d times", n)
			}
		})
	}
}

func TestAStaleMessageIsNotPreparedAndAStaleRedriveResolvesItsLetter(t *testing.T) {
	c := &courier{}
	r := start(t, buys(c), versioned, redriving)
	r.source.push("e@8")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.source.push("e@7")
	r.events.wait(t, 1, stale("e@7"))
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d labels were bought", n)
	}
	if err := r.desk().Put(t.Context(), deadletter.Letter{Consumer: "stock-service", Key: "late", Message: broker.Message{ID: "e@6"}}); err != nil {
		t.Fatal(err)
	}
	r.redrive(1, deadletter.Decision{})
	r.wantLetter(1, deadletter.Stale)
	r.finish()
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d labels were bought", n)
	}
	if n := r.memory.Keys(); n != 3 {
		t.Errorf("%d keys are recorded, want 3", n)
	}
}

func TestAVersionThatCannotBeTakenIsADeadLetter(t *testing.T) {
	for name, version := range map[string]func(*sekali.Message) (string, int64, bool){
		"panic": func(*sekali.Message) (string, int64, bool) { panic("oh") },
		"blank": func(*sekali.Message) (string, int64, bool) { return " ", 1, true },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Version = version })
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.DeadLettered))
			r.finish()
			if l := r.onlyLetter(); l.Reason != deadletter.Permanent {
				t.Errorf("the letter is %+v", l)
			}
		})
	}
}

// versionless is a store that keeps no versions.
type versionless struct{ store.Store[*memstore.Tx] }

func TestAVersionNeedsAStoreThatKeepsThem(t *testing.T) {
	memory := memstore.New()
	cfg := sekali.Config[*memstore.Tx]{
		Name: "stock-service", Source: newScript(), Store: versionless{memory}, Key: sekali.MessageID(), Handle: sell, DeadLetters: memory.DeadLetters(),
	}
	if _, err := sekali.NewConsumer(cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Version = func(*sekali.Message) (string, int64, bool) { return "", 0, false }
	if _, err := sekali.NewConsumer(cfg); err == nil {
		t.Error("a Version without a store for it was taken")
	}
}
