package sekali_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// aged is a store whose duplicates are as old as it says.
type aged struct {
	store.Store[*memstore.Tx]
	mu    sync.Mutex
	age   time.Duration
	err   error
	asked []string
}

func (a *aged) Unwrap() any { return a.Store }

func (a *aged) Ages(_ context.Context, c store.Claim) ([]time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ages := make([]time.Duration, len(c.Keys))
	for i, k := range c.Keys {
		a.asked = append(a.asked, k.Raw)
		ages[i] = a.age
	}
	return ages, a.err
}

// curious is an Observer that wants to know ages.
type curious struct{ *events }

func (curious) WatchesAges() bool { return true }

func withAges(a *aged) configure {
	return func(c *sekali.Config[*memstore.Tx], r *rig) {
		a.Store = c.Store
		c.Store, c.Observer = a, curious{r.events}
	}
}

// duplicates returns the events of duplicates.
func (e *events) duplicates() []sekali.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []sekali.Event
	for _, x := range e.all {
		if x.Outcome == sekali.Duplicate {
			found = append(found, x)
		}
	}
	return found
}

// processBefore has another instance process a message.
func (r *rig) processBefore(key string) {
	r.t.Helper()
	inbox := sekali.NewInbox[*memstore.Tx](r.memory, "stock-service")
	if _, err := inbox.Process(context.Background(), key, func(context.Context, *memstore.Tx) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
}

func TestWhyADuplicateCame(t *testing.T) {
	again := delivery("a", "")
	again.Redelivered = true
	for name, c := range map[string]struct {
		age  time.Duration
		err  error
		d    *broker.Delivery
		here bool // processed by the same Consumer
		want sekali.Cause
	}{
		"the producer sent it twice":                {age: time.Hour, d: delivery("a", ""), want: sekali.CauseRepeat},
		"the broker delivered it twice":             {age: time.Hour, d: again, want: sekali.CauseRedelivery},
		"another instance was faster":               {age: 1, d: delivery("a", ""), want: sekali.CauseLostRace},
		"another instance was faster with its copy": {age: 1, d: again, want: sekali.CauseLostRace},
		"it came twice to the same hand":            {age: 1, d: delivery("a", ""), here: true, want: sekali.CauseRepeat},
		"nobody knows how old it is":                {err: errors.New("no"), d: delivery("a", ""), want: sekali.CauseRepeat},
	} {
		t.Run(name, func(t *testing.T) {
			a := &aged{age: c.age, err: c.err}
			r := start(t, withAges(a))
			if c.here {
				r.source.push("a")
				r.events.wait(t, 1, kind(sekali.Finished))
			} else {
				r.processBefore("a")
			}
			r.source.pushed <- c.d
			r.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate })
			r.finish()
			got := r.events.duplicates()[0]
			if got.Cause != c.want {
				t.Errorf("the cause is %v, want %v", got.Cause, c.want)
			}
			if c.err == nil && got.Age != c.age || c.err != nil && got.Age != 0 {
				t.Errorf("the age is %v", got.Age)
			}
		})
	}
}

func TestOnlyDuplicatesAreAskedForTheirAgeAndOnlyIfSomebodyWants(t *testing.T) {
	for name, wants := range map[string]bool{"wanted": true, "not wanted": false} {
		t.Run(name, func(t *testing.T) {
			a := &aged{age: time.Minute}
			r := start(t, withAges(a), func(c *sekali.Config[*memstore.Tx], r *rig) {
				if !wants {
					c.Observer = sekali.Observers(r.events, sekali.LogTo(slog.New(slog.DiscardHandler)))
				}
			})
			r.processBefore("b")
			r.source.push("a", "b", "c")
			r.events.wait(t, 3, kind(sekali.Finished))
			r.finish()
			want := []string{"b"}
			if !wants {
				want = nil
			}
			if !slices.Equal(a.asked, want) {
				t.Errorf("asked for the ages of %q, want %q", a.asked, want)
			}
		})
	}
}

func TestARedriveOfWhatWasProcessedIsADuplicateByRedrive(t *testing.T) {
	a := &aged{age: time.Minute}
	r := start(t, withAges(a), func(c *sekali.Config[*memstore.Tx], _ *rig) {
		c.RedriveEvery = time.Millisecond
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			return sekali.Permanent(errors.New("no"))
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.processBefore("a")
	letter := r.onlyLetter()
	if err := r.memory.DeadLetters().(deadletter.Desk).Redrive(t.Context(), letter.ID, deadletter.Decision{By: "me"}); err != nil {
		t.Fatal(err)
	}
	r.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate })
	r.finish()
	if got := r.events.duplicates()[0].Cause; got != sekali.CauseRedrive {
		t.Errorf("the cause is %v, want redrive", got)
	}
}

func TestTimesAndSizesAreTold(t *testing.T) {
	const nap = 3 * time.Millisecond
	for name, option := range map[string]configure{
		"Handle": handle(func(context.Context, *memstore.Tx, *sekali.Message) error { spin(nap); return nil }),
		"HandleBatch": func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Handle, c.HandleBatch = nil, func(_ context.Context, _ *memstore.Tx, m []*sekali.Message) error {
				spin(nap * time.Duration(len(m)))
				return nil
			}
		},
		"Prepare": func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Handle, c.Prepare = nil, func(context.Context, *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
				spin(nap)
				return nil, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := start(t, option, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 })
			r.source.push("a", "b", "c")
			r.events.wait(t, 3, kind(sekali.Finished))
			r.finish()
			committed, all, handled := 0, time.Since(began), time.Duration(0)
			for _, e := range r.events.all {
				switch e.Kind {
				case sekali.Committed:
					committed += e.Count
				case sekali.Finished:
					if handled += e.Handling; e.Handling < nap || e.Handling > all {
						t.Errorf("the handler of %s took %v of %v", e.Message.ID, e.Handling, all)
					}
				}
			}
			if name != "Prepare" && handled > all { // which runs side by side
				t.Errorf("the handlers took %v of %v", handled, all)
			}
			if committed != 3 {
				t.Errorf("%d messages in transactions that committed, want 3", committed)
			}
		})
	}
}

// spin takes time as work does.
func spin(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
	}
}

// tracer gives handlers a context that says what they are called on.
type tracer struct {
	*events
	mu    sync.Mutex
	calls []string
}

type calledOn struct{}

func (tr *tracer) Begin(ctx context.Context, consumer string, m []*sekali.Message) (context.Context, func(error)) {
	name := consumer
	for _, one := range m {
		name += " " + one.Key()
	}
	return context.WithValue(ctx, calledOn{}, name), func(err error) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if err != nil {
			name += ": " + err.Error()
		}
		tr.calls = append(tr.calls, name)
	}
}

func TestATracerGivesEachCallItsContextAndHearsItsError(t *testing.T) {
	for name, c := range map[string]struct {
		option configure
		want   string
	}{
		"Handle": {handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
			if m.Key() == "bad" {
				return sekali.Permanent(errors.New("no"))
			}
			tx.Add(ctx.Value(calledOn{}).(string), 1)
			return nil
		}), "stock-service a"},
		"HandleBatch": {func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Handle, c.HandleBatch = nil, func(ctx context.Context, tx *memstore.Tx, m []*sekali.Message) error {
				for i := range m {
					if m[i].Key() == "bad" {
						return &store.FailedAt{Index: i, Err: sekali.Permanent(errors.New("no"))}
					}
				}
				tx.Add(ctx.Value(calledOn{}).(string), 1)
				return nil
			}
		}, "stock-service a"},
		"Prepare": {func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Handle, c.Prepare = nil, func(ctx context.Context, m *sekali.Message) (sekali.Commit[*memstore.Tx], error) {
				if m.Key() == "bad" {
					return nil, sekali.Permanent(errors.New("no"))
				}
				return func(ctx context.Context, tx *memstore.Tx) error {
					tx.Add(ctx.Value(calledOn{}).(string), 1)
					return nil
				}, nil
			}
		}, "stock-service a"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &tracer{}
			r := start(t, c.option, func(c *sekali.Config[*memstore.Tx], r *rig) {
				tr.events = r.events
				c.Observer = sekali.Observers(sekali.LogTo(slog.New(slog.DiscardHandler)), tr)
			})
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.Finished))
			r.source.push("bad")
			r.events.wait(t, 1, kind(sekali.DeadLettered))
			r.finish()
			r.wantCounter(c.want, 1)
			if !slices.ContainsFunc(tr.calls, func(s string) bool { return strings.HasPrefix(s, "stock-service bad: ") }) {
				t.Errorf("calls are %q", tr.calls)
			}
		})
	}
}

func TestATracerHearsOfAPanic(t *testing.T) {
	tr := &tracer{}
	r := start(t, handle(panics), func(c *sekali.Config[*memstore.Tx], r *rig) {
		tr.events = r.events
		c.Observer, c.MaxAttempts = tr, 1
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	if want := []string{"stock-service a: " + sekali.ErrHandlerExited.Error()}; !slices.Equal(tr.calls, want) {
		t.Errorf("calls are %q, want %q", tr.calls, want)
	}
}

func TestTheLogShowsAKeyAsItIsStored(t *testing.T) {
	var log bytes.Buffer
	logged := sekali.LogTo(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	long := strings.Repeat("k", 300)
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) { c.Observer = both{r.events, logged} })
	r.source.push(long)
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	if text := log.String(); !strings.Contains(text, "key="+store.StoredKey(long)+" ") {
		t.Errorf("it logs %s", text)
	}
}

func TestTheLogNamesMessageAndLetterAndNoBody(t *testing.T) {
	var log bytes.Buffer
	logged := sekali.LogTo(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	var failed sync.Once
	r := start(t, func(c *sekali.Config[*memstore.Tx], r *rig) {
		c.Observer = both{r.events, logged}
		c.RedriveEvery = time.Millisecond
		c.Handle = func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) (err error) {
			failed.Do(func() { err = sekali.Permanent(errors.New("no")) })
			return err
		}
	})
	d := delivery("id-7", "")
	d.Message.Body = []byte("secret")
	r.source.pushed <- d
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	letter := r.onlyLetter()
	if err := r.memory.DeadLetters().(deadletter.Desk).Redrive(t.Context(), letter.ID, deadletter.Decision{By: "me"}); err != nil {
		t.Fatal(err)
	}
	r.events.wait(t, 1, func(e sekali.Event) bool { return e.Outcome == sekali.Processed })
	r.finish()
	redriven := false
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "secret") || strings.Contains(line, " id=") {
			t.Errorf("it logs %s", line)
		}
		if strings.Contains(line, "outcome=processed") {
			redriven = strings.Contains(line, "consumer=stock-service key=id-7 message_id=id-7 letter=1 ")
		}
	}
	if !redriven || !strings.Contains(log.String(), "sekali: received\" consumer=stock-service key=\"\" message_id=id-7\n") {
		t.Errorf("the log is %s", log.String())
	}
}
