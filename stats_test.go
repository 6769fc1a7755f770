package sekali_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// counting is a store that keeps statistics, under the test's control.
type counting struct {
	*aged
	add func(ctx context.Context) error // before they are added

	mu    sync.Mutex
	total store.Counts
	added chan struct{} // a token for each Add
}

func newCounting() *counting {
	return &counting{aged: &aged{age: time.Minute}, add: func(context.Context) error { return nil }, added: make(chan struct{}, 100)}
}

func (c *counting) Stats() store.Stats { return keptStats{c} }

type keptStats struct{ *counting }

func (k keptStats) Add(ctx context.Context, consumer string, n store.Counts) error {
	defer func() {
		select {
		case k.added <- struct{}{}:
		default: // nobody looks
		}
	}()
	if err := k.add(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if consumer == "stock-service" {
		k.total = k.total.Plus(n)
	}
	return nil
}

func (k keptStats) Check(context.Context) error { return nil }

func (k keptStats) Stats(context.Context, string, time.Time, time.Time) ([]store.Minute, error) {
	return nil, nil
}

func withStats(k *counting, every time.Duration) configure {
	return func(c *sekali.Config[*memstore.Tx], _ *rig) {
		k.aged.Store = c.Store
		c.Store, c.StatsEvery = k, every
	}
}

func (k *counting) want(t *testing.T, want store.Counts) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.total != want {
		t.Errorf("the counts are %+v, want %+v", k.total, want)
	}
}

func TestWhatWasDoneIsWrittenAtTheStop(t *testing.T) {
	k := newCounting()
	fail := times(1, errors.New("no"))
	r := start(t, withStats(k, time.Hour), func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Fingerprint = sekali.BodyFingerprint
		c.Handle = func(_ context.Context, _ *memstore.Tx, m *sekali.Message) error {
			if m.ID == "bad" {
				return sekali.Permanent(errors.New("no"))
			}
			return fail()
		}
		c.Version = func(m *sekali.Message) (string, int64, bool) {
			return "e", map[string]int64{"new": 2, "old": 1}[m.ID], m.ID == "new" || m.ID == "old"
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	other := delivery("a", "")
	other.Message.Body = []byte("another")
	again := delivery("a", "")
	again.Redelivered = true
	r.source.push("a", "new")
	r.source.pushed <- again
	r.source.pushed <- other
	r.events.wait(t, 5, kind(sekali.Finished))
	r.source.push("old", "bad")
	r.events.wait(t, 6, kind(sekali.Finished))
	r.events.wait(t, 2, kind(sekali.DeadLettered))
	select {
	case <-k.added:
		t.Error("it was written before")
	default:
	}
	r.finish()
	want := store.Counts{Processed: 2, Stale: 1, Conflicts: 1, Repeated: 1, Redelivered: 1, Retries: 1, DeadLetters: 2}
	want.Ages[store.AgeClass(time.Minute)] = 2
	k.want(t, want)
}

func TestStatisticsThatCannotBeWrittenAreWrittenLaterAndHoldNobodyUp(t *testing.T) {
	k := newCounting()
	var mu sync.Mutex
	down := true
	k.add = func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if down {
			return errors.New("no table")
		}
		return nil
	}
	r := start(t, withStats(k, time.Millisecond))
	r.source.push("a", "b")
	r.events.wait(t, 2, kind(sekali.Finished))
	<-k.added
	<-k.added
	r.source.push("c")
	r.events.wait(t, 1, kind(sekali.StatsFailed))
	r.events.wait(t, 3, kind(sekali.Finished))
	mu.Lock()
	down = false
	mu.Unlock()
	r.finish()
	k.want(t, store.Counts{Processed: 3})
	if n := r.events.count(kind(sekali.StatsFailed)); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

func TestADatabaseThatDoesNotAnswerForStatisticsStopsNothing(t *testing.T) {
	k := newCounting()
	k.add = func(ctx context.Context) error {
		<-ctx.Done() // it has a deadline of its own
		return ctx.Err()
	}
	r := start(t, withStats(k, time.Millisecond))
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.source.push("b", "c")
	r.events.wait(t, 3, kind(sekali.Finished))
	r.finish()
}

func TestStatisticsCanBeLeftOut(t *testing.T) {
	k := newCounting()
	r := start(t, withStats(k, -1))
	r.processBefore("a")
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	k.want(t, store.Counts{})
	if len(k.asked) > 0 {
		t.Errorf("the ages of %q were looked up", k.asked)
	}
}
