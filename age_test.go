package sekali_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
)

// pruned has the keys of the last five hours alone.
func pruned(_ *sekali.Config[*memstore.Tx], r *rig) {
	r.memory.Prune("stock-service", time.Now().Add(-5*time.Hour))
}

// oneWorker has what a test pushes while a handler is held share a batch.
func oneWorker(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 }

// old is a delivery that was published so long ago.
func old(id, lane string, age time.Duration) *broker.Delivery {
	d := delivery(id, lane)
	d.Message.PublishedAt = time.Now().Add(-age)
	return d
}

func TestAMessageThatIsOlderThanTheKeysIsADeadLetterAndNeverFresh(t *testing.T) {
	r := start(t, pruned)
	for _, d := range []*broker.Delivery{
		old("older", "p0", 6*time.Hour), old("younger", "p1", 4*time.Hour), delivery("unknown", "p2"),
		// Its producer's clock may be ahead.
		old("hardly younger", "p3", 5*time.Hour-9*time.Minute), old("clearly younger", "p4", 5*time.Hour-11*time.Minute),
	} {
		r.source.pushed <- d
	}
	r.events.wait(t, 3, kind(sekali.Finished))
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	r.finish()
	for id, sold := range map[string]int{"older": 0, "younger": 1, "unknown": 1, "hardly younger": 0, "clearly younger": 1} {
		r.wantCounter("sold "+id, sold)
		r.wantTold(id, "ack")
	}
	for _, l := range r.letters() {
		if l.Reason != deadletter.TooOld || l.Status != deadletter.Open || !strings.Contains(l.Error, "older than the keys") {
			t.Errorf("the letter is %+v", l)
		}
	}
	if n := r.memory.Keys(); n != 3 {
		t.Errorf("%d keys are recorded, want 3", n)
	}
}

func TestNoMarkIsReadForMessagesThatAreYoungerThanAnyPrunerMayRemove(t *testing.T) {
	r := start(t, pruned)
	for i := range 20 {
		r.source.pushed <- old(fmt.Sprint("m", i), "p0", 25*time.Minute)
	}
	r.events.wait(t, 20, kind(sekali.Finished))
	if n := r.memory.MarksRead(); n != 0 {
		t.Errorf("the mark was read %d times", n)
	}
	r.source.pushed <- old("late", "p0", 35*time.Minute)
	r.events.wait(t, 21, kind(sekali.Finished))
	r.finish()
	if n := r.memory.MarksRead(); n != 1 {
		t.Errorf("for a message that is late the mark was read %d times", n)
	}
}

func TestAnOldMessageWhoseKeyIsThereIsADuplicate(t *testing.T) {
	r := start(t)
	r.source.pushed <- old("a", "p0", 6*time.Hour)
	r.events.wait(t, 1, kind(sekali.Finished))
	r.memory.Mark("stock-service", time.Now().Add(-5*time.Hour)) // others' keys went
	r.source.pushed <- old("a", "p0", 6*time.Hour)
	r.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate })
	r.finish()
	r.wantCounter("sold a", 1)
	if n := len(r.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestWhatIsTooOldLeavesItsNeighboursOfABatchAlone(t *testing.T) {
	for name, batch := range map[string]bool{"Handle": false, "HandleBatch": true} {
		t.Run(name, func(t *testing.T) {
			h, began, open := gated(sell)
			r := start(t, pruned, handle(h), oneWorker, func(c *sekali.Config[*memstore.Tx], _ *rig) {
				if batch {
					inBatches(c)
				}
			})
			r.source.push("first")
			began()
			want := map[string]int{}
			for i := range 30 {
				id := fmt.Sprint("m", i)
				age := 4 * time.Hour
				if want[id] = 1; i%3 == 1 {
					age, want[id] = 6*time.Hour, 0
				}
				r.source.pushed <- old(id, "", age)
			}
			r.events.wait(t, 31, kind(sekali.Received))
			open()
			r.events.wait(t, 21, kind(sekali.Finished))
			r.events.wait(t, 10, kind(sekali.DeadLettered))
			r.finish()
			for id, sold := range want {
				r.wantCounter("sold "+id, sold)
				r.wantTold(id, "ack")
			}
		})
	}
}

// inBatches makes a HandleBatch of what Handle is.
func inBatches(c *sekali.Config[*memstore.Tx]) {
	handle := c.Handle
	c.Handle = nil
	c.HandleBatch = func(ctx context.Context, tx *memstore.Tx, all []*sekali.Message) error {
		for _, m := range all {
			if err := handle(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestTheTimeOfPublicationIsTakenAsTheConfigSays(t *testing.T) {
	r := start(t, pruned, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.PublishedAt = func(m *sekali.Message) time.Time {
			at, _ := time.Parse(time.RFC3339, m.ID)
			return at
		}
	})
	then, now := time.Now().Add(-6*time.Hour).UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)
	r.source.pushed <- delivery(then, "p0")
	r.source.pushed <- old(now, "p0", 6*time.Hour) // the broker's time does not count
	r.events.wait(t, 1, kind(sekali.Finished))
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	r.wantCounter("sold "+then, 0)
	r.wantCounter("sold "+now, 1)
}

func TestWhatIsTooOldIsRedrivenByForce(t *testing.T) {
	r := start(t, pruned, redriving)
	r.source.pushed <- old("a", "p0", 6*time.Hour)
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.redrive(1, deadletter.Decision{Force: true})
	r.wantLetter(1, deadletter.Processed)
	r.finish()
	r.wantCounter("sold a", 1)
}

func TestWhatIsTooOldBuysNothing(t *testing.T) {
	for _, redelivered := range []bool{false, true} { // with care, too
		c := &courier{}
		r := start(t, pruned, buys(c))
		d := old("a", "p0", 6*time.Hour)
		d.Redelivered = redelivered
		r.source.pushed <- d
		r.events.wait(t, 1, kind(sekali.DeadLettered))
		r.finish()
		if l := r.onlyLetter(); l.Reason != deadletter.TooOld || c.calls.Load() != 0 {
			t.Errorf("%d labels were bought, the letter is %+v", c.calls.Load(), l)
		}
	}
}

func TestWhatIsTooOldIsNotHeldBehindALetterButALetterOfItsOwn(t *testing.T) {
	h := &moody{}
	r := dead(t, h, []*broker.Delivery{keyed("e/1", "p0")}, pins, holding)
	r.memory.Mark("stock-service", time.Now().Add(-5*time.Hour))
	for id, age := range map[string]time.Duration{"e/2": 6 * time.Hour, "e/3": 4 * time.Hour} {
		d := keyed(id, "p0")
		d.Message.PublishedAt = time.Now().Add(-age)
		r.source.pushed <- d
	}
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	r.events.wait(t, 1, kind(sekali.Held))
	r.finish()
	for _, l := range r.letters() {
		want := map[string]deadletter.Reason{"e/1": deadletter.Exhausted, "e/2": deadletter.TooOld, "e/3": deadletter.Blocked}[l.Key]
		if l.Reason != want {
			t.Errorf("the letter of %s is %s, want %s", l.Key, l.Reason, want)
		}
	}
}
