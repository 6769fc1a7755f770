package sekali_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
)

// pinned is a script whose lanes belong to one instance, and can be revoked.
type pinned struct {
	*script
	revoke func(ctx context.Context, lanes []string)
	// onTheWay is called with what Receive is about to return.
	onTheWay func([]*broker.Delivery)
}

func (p *pinned) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	got, err := p.script.Receive(ctx, max)
	if p.onTheWay != nil {
		p.onTheWay(got)
	}
	return got, err
}

func (p *pinned) PinsLanes() bool { return true }

func (p *pinned) OnRevoke(fn func(ctx context.Context, lanes []string)) { p.revoke = fn }

// keyed is a delivery whose ordering key, and entity, is what stands before
// the slash of its id.
func keyed(id, lane string) *broker.Delivery {
	d := delivery(id, lane)
	entity, _, _ := strings.Cut(id, "/")
	d.Message.OrderingKey = []byte(entity)
	return d
}

func (s *script) pushKeyed(lane string, ids ...string) {
	for _, id := range ids {
		s.pushed <- keyed(id, lane)
	}
}

// effects returns the messages of an entity in the order in which they took
// effect.
func (r *rig) effects(entity string) string {
	var ids []string
	for _, name := range r.memory.Log() {
		if id, is := strings.CutPrefix(name, "sold "); is && strings.HasPrefix(id, entity+"/") {
			ids = append(ids, id)
		}
	}
	return strings.Join(ids, " ")
}

var errBad = errors.New("bad weather")

func finished(id string) func(sekali.Event) bool {
	return func(e sekali.Event) bool { return e.Kind == sekali.Finished && e.Message.ID == id }
}

func pins(c *sekali.Config[*memstore.Tx], r *rig) { c.Source = &pinned{script: r.source} }

func TestWhileAnOrderingKeyWaitsOthersOfItsLaneGoOnAndItsOwnDoNot(t *testing.T) {
	release := make(chan struct{})
	r := start(t, pins, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		select {
		case <-release:
			return sell(ctx, tx, m)
		default:
		}
		if m.ID == "a/1" {
			return errBad
		}
		return sell(ctx, tx, m)
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.MaxAttempts = 1_000_000 })
	r.source.pushKeyed("p0", "a/1", "a/2", "b/1", "a/3", "b/2", "c/1")
	for _, id := range []string{"b/1", "b/2", "c/1"} {
		r.events.wait(t, 1, finished(id))
	}
	if r.events.count(finished("a/2"))+r.events.count(finished("a/3")) > 0 {
		t.Error("a later message of the key overtook the one that waits")
	}
	close(release)
	r.events.wait(t, 1, finished("a/3"))
	r.finish()
	if got := r.effects("a"); got != "a/1 a/2 a/3" {
		t.Errorf("a took effect so: %s", got)
	}
	if got := r.effects("b"); got != "b/1 b/2" {
		t.Errorf("b took effect so: %s", got)
	}
}

func TestAnOrderingKeyOfTheUsersHoldsAcrossLanes(t *testing.T) {
	const entities, events = 5, 40
	var mu sync.Mutex
	inWork, fails := map[string]bool{}, 0
	r := start(t, pins, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Workers = 8
		c.Order = func(m *sekali.Message) string {
			entity, _, _ := strings.Cut(m.ID, "/")
			m.Body, m.Headers = nil, nil // it gets a copy
			return entity
		}
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			entity, _, _ := strings.Cut(m.ID, "/")
			mu.Lock()
			if inWork[entity] {
				t.Errorf("two messages of %s side by side", entity)
			}
			inWork[entity] = true
			fails++
			fail := fails%7 == 0
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				inWork[entity] = false
			}()
			if len(m.Body) == 0 {
				t.Error("the function that takes the ordering key changed the message")
			}
			if fail {
				return errBad
			}
			return sell(ctx, tx, m)
		}
	})
	var last []string
	for i := range events {
		for e := range entities {
			id := fmt.Sprintf("e%d/%02d", e, i)
			r.source.pushed <- delivery(id, fmt.Sprint("p", (e+i)%3)) // any lane
			if i == events-1 {
				last = append(last, id)
			}
		}
	}
	for _, id := range last {
		r.events.wait(t, 1, finished(id))
	}
	r.finish()
	for e := range entities {
		got := strings.Fields(r.effects(fmt.Sprint("e", e)))
		if len(got) != events || !slices.IsSorted(got) {
			t.Errorf("e%d took effect so: %v", e, got)
		}
	}
}

func TestAnOrderingKeyThatCannotBeTakenMakesADeadLetter(t *testing.T) {
	r := start(t, pins, func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.Order = func(m *sekali.Message) string { return string(m.Body[1000]) }
	})
	r.source.push("1")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	if r.memory.Counter("sold") != 0 || r.source.told("1") != "ack" {
		t.Errorf("sold %d, told %q", r.memory.Counter("sold"), r.source.told("1"))
	}
}

func TestOrderIsRefusedWhereTheBrokerDoesNotKeepIt(t *testing.T) {
	memory := memstore.New()
	base := sekali.Config[*memstore.Tx]{
		Name: "c", Source: newScript(), Store: memory, Key: sekali.MessageID(), Handle: sell,
	}
	order := func(*sekali.Message) string { return "" }
	for name, c := range map[string]struct {
		edit func(*sekali.Config[*memstore.Tx])
		want string // of the error
	}{
		"order on a source that pins nothing":     {func(c *sekali.Config[*memstore.Tx]) { c.Order = order }, "OrderInProcessOnly"},
		"held keys on a source that pins nothing": {func(c *sekali.Config[*memstore.Tx]) { c.OnBlocked = sekali.HoldKey }, "OrderInProcessOnly"},
		"order within the process is enough":      {func(c *sekali.Config[*memstore.Tx]) { c.Order, c.OrderInProcessOnly = order, true }, ""},
		"order on a source that pins lanes":       {func(c *sekali.Config[*memstore.Tx]) { c.Order, c.Source = order, &pinned{script: newScript()} }, ""},
		"a sink that cannot hold": {func(c *sekali.Config[*memstore.Tx]) {
			c.OnBlocked, c.OrderInProcessOnly, c.DeadLetters = sekali.HoldKey, true, onlyPut{memory.DeadLetters()}
		}, "cannot hold"},
		"a table that nobody takes from": {func(c *sekali.Config[*memstore.Tx]) {
			c.OnBlocked, c.OrderInProcessOnly, c.DeadLetters = sekali.HoldKey, true, memory.DeadLetters()
		}, "nothing releases"},
		"no such choice":       {func(c *sekali.Config[*memstore.Tx]) { c.OnBlocked = 7 }, "OnBlocked is 7"},
		"crashes below nought": {func(c *sekali.Config[*memstore.Tx]) { c.MaxCrashes = -1 }, "MaxCrashes is -1"},
	} {
		cfg := base
		c.edit(&cfg)
		_, err := sekali.NewConsumer(cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

type onlyPut struct{ deadletter.Sink }

func TestBehindADeadLetterMessagesOfTheKeyPassOrAreHeld(t *testing.T) {
	for _, on := range []sekali.OnBlocked{sekali.Pass, sekali.HoldKey} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			r := start(t, pins, func(c *sekali.Config[*memstore.Tx], _ *rig) {
				c.OnBlocked = on
				c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
					if m.ID == "a/2" {
						return sekali.Permanent(errBad)
					}
					return sell(ctx, tx, m)
				}
			})
			r.source.pushKeyed("p0", "a/1", "b/1", "a/2", "a/3", "b/2", "a/4", "a/1", "a/2", "none/0")
			r.events.wait(t, 1, finished("none/0"))
			r.events.wait(t, 1, finished("b/2"))
			r.events.wait(t, 2, func(e sekali.Event) bool {
				return e.Message != nil && e.Message.ID == "a/1" && e.Kind == sekali.Finished
			})
			letters := func(s deadletter.Status) (keys []string) {
				all, err := r.memory.DeadLetters().List(t.Context(), deadletter.Filter{})
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range slices.Backward(all) {
					if l.Status == s {
						keys = append(keys, fmt.Sprint(l.Key, " x", l.Copies))
					}
				}
				return keys
			}
			held, a := []string(nil), "a/1 a/3 a/4"
			if on == sekali.HoldKey {
				r.events.wait(t, 3, kind(sekali.Held))
				held, a = []string{"a/3 x1", "a/4 x1"}, "a/1"
			} else {
				r.events.wait(t, 2, kind(sekali.DeadLettered))
			}
			r.finish()
			if got := r.effects("a"); got != a {
				t.Errorf("a took effect so: %s, want %s", got, a)
			}
			if got := r.effects("b"); got != "b/1 b/2" {
				t.Errorf("b took effect so: %s", got)
			}
			if got := letters(deadletter.Held); !slices.Equal(got, held) {
				t.Errorf("held: %q, want %q", got, held)
			}
			if got := letters(deadletter.Open); !slices.Equal(got, []string{"a/2 x2"}) {
				t.Errorf("open: %q", got)
			}
			for _, id := range []string{"a/3", "a/4", "b/2"} {
				if got := r.source.told(id); got != "ack" {
					t.Errorf("%s: told %q", id, got)
				}
			}
		})
	}
}

func TestARevokedLaneFinishesWhatIsInWorkAndDropsTheRest(t *testing.T) {
	inWork, release := make(chan struct{}), make(chan struct{})
	p := &pinned{}
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		p.script = r.source
		c.Source, c.Workers = p, 2
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			switch m.ID {
			case "a/1":
				close(inWork)
				<-release
			case "c/1": // waits for its next attempt
				return sekali.RetryAfter(errBad, time.Hour)
			}
			return sell(ctx, tx, m)
		}
	})
	r.source.pushKeyed("p0", "c/1", "c/2", "a/1", "a/2", "a/3")
	<-inWork
	r.events.wait(t, 5, kind(sekali.Received))
	r.events.wait(t, 1, kind(sekali.AttemptFailed))
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		p.revoke(t.Context(), []string{"p0"})
	}()
	select {
	case <-returned:
		t.Fatal("the lane was let go while a message of it was in work")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	<-returned
	if got := r.source.told("a/1"); got != "ack" {
		t.Errorf("when the lane was let go, what was in work had been told %q", got)
	}
	r.source.pushKeyed("p1", "c/3", "d/1") // others go on
	r.events.wait(t, 1, finished("d/1"))
	r.events.wait(t, 1, finished("c/3"))
	r.finish()
	if got := r.memory.Counter("sold"); got != 3 {
		t.Errorf("sold %d, want 3", got)
	}
	for _, id := range []string{"a/2", "a/3", "c/1", "c/2"} {
		if got := r.source.told(id); got != "" {
			t.Errorf("%s, which was not begun, was told %q: it is another's", id, got)
		}
	}
	if got := r.events.count(kind(sekali.Released)); got != 4 {
		t.Errorf("%d were released, want 4", got)
	}
}

// Deliveries that Receive is about to return when their lane is revoked must
// not overtake those before them, which were dropped.
func TestDeliveriesOnTheirWayWhenTheirLaneIsRevokedAreNotBegun(t *testing.T) {
	p := &pinned{}
	p.onTheWay = func(got []*broker.Delivery) {
		if slices.ContainsFunc(got, func(d *broker.Delivery) bool { return d.Message.ID == "a/2" }) {
			p.revoke(context.Background(), []string{"p0"})
		}
	}
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		p.script = r.source
		c.Source = p
	})
	r.source.pushKeyed("p0", "a/1")
	r.events.wait(t, 1, finished("a/1"))
	r.source.pushKeyed("p0", "a/2")
	r.source.pushKeyed("p1", "b/1") // others go on
	r.events.wait(t, 1, finished("b/1"))
	r.events.wait(t, 1, kind(sekali.Released))
	r.source.pushKeyed("p0", "a/3") // of the lane's next life
	r.events.wait(t, 1, finished("a/3"))
	r.finish()
	if got := r.effects("a"); got != "a/1 a/3" {
		t.Errorf("effects of the entity: %s, want those of a/1 and a/3", got)
	}
	if got := r.source.told("a/2"); got != "retry" {
		t.Errorf("the delivery that was on its way was told %q, want that it is given back", got)
	}
}

func TestALaneThatIsGoneIsNotWaitedForAndItsMessageNotTriedAgain(t *testing.T) {
	inWork, release := make(chan struct{}, 10), make(chan struct{})
	p := &pinned{}
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		p.script = r.source
		c.Source = p
		c.Handle = func(context.Context, *memstore.Tx, *sekali.Message) error {
			inWork <- struct{}{}
			<-release
			return errBad
		}
	})
	r.source.pushKeyed("p0", "a/1")
	<-inWork
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	p.revoke(gone, []string{"p0"}) // returns at once
	close(release)
	r.events.wait(t, 1, kind(sekali.AttemptFailed))
	r.source.pushKeyed("p1", "b/1")
	<-inWork
	r.events.wait(t, 2, kind(sekali.AttemptFailed))
	r.finish()
	if got := r.events.count(func(e sekali.Event) bool {
		return e.Message != nil && e.Message.ID == "a/1" && e.Kind == sekali.AttemptFailed
	}); got != 1 {
		t.Errorf("the message of the lane that is gone was tried %d times", got)
	}
}
