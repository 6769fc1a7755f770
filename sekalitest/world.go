package sekalitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// patience is how long a life may take until everything is acknowledged.
const patience = 20 * time.Second

// scope is the testing.TB of one world: what is handed to its Cleanup is done
// when the world ends, which is before the test does.
type scope struct {
	testing.TB
	mu        sync.Mutex
	cleanups  []func()
	databases []aged
}

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir implements testing.TB.
func (s *scope) TempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp("", "sekalitest")
	if err != nil {
		s.Fatalf("make a directory for the test: %v", err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *scope) close() {
	s.mu.Lock()
	list := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(list) {
		f()
	}
}

// world is one database with what happens to it.
type world[Tx any] struct {
	scope  *scope
	c      Case[Tx]
	good   int       // those of Messages that are not to be refused
	base   time.Time // PublishedAt of messages counts from here
	broker *membroker.Broker

	mu        sync.Mutex
	trace     []string
	published map[time.Time]int // index by PublishedAt
	copies    map[int]int
	names     []string // of the broker's consumers
	claimed   map[string]bool
	committed []int        // indexes, in order
	poisoned  map[int]bool // indexes that may be dead letters
	refused   map[int]bool // indexes whose dead letter is unresolved
	stuck     chan error
	processes int
	disturbed bool              // something was to go wrong
	last      sekali.Config[Tx] // of the process that started last
	seen      int               // statements of handlers
}

// consumerName is the broker's first consumer.
const consumerName = "consumer"

func newWorld[Tx any](t testing.TB, base time.Time, make func(testing.TB) Case[Tx]) *world[Tx] {
	w := &world[Tx]{
		scope: &scope{TB: t}, base: base, published: map[time.Time]int{}, copies: map[int]int{}, names: []string{consumerName},
		claimed: map[string]bool{}, poisoned: map[int]bool{}, refused: map[int]bool{}, stuck: chanOfOne(),
	}
	made := false
	defer func() {
		if !made { // it ended the test
			w.scope.close()
		}
	}()
	w.c = make(w.scope)
	w.good = len(w.c.Messages)
	w.c.Messages = slices.Concat(w.c.Messages, w.c.Refused)
	w.broker = membroker.New(membroker.Options{Lanes: w.lanes()})
	made = true
	return w
}

func chanOfOne() chan error { return make(chan error, 1) }

// lanes is how many the broker has: none unless something is to be in order.
func (w *world[Tx]) lanes() int {
	cfg := w.c.Consumer(membroker.New(membroker.Options{}).NewSource("probe"))
	keyed := slices.ContainsFunc(w.c.Messages, func(m broker.Message) bool { return len(m.OrderingKey) > 0 })
	if keyed || (cfg.Order != nil || cfg.OnBlocked == sekali.HoldKey) && !cfg.OrderInProcessOnly {
		return 4
	}
	return 0
}

func (w *world[Tx]) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// give publishes a copy of a message.
func (w *world[Tx]) give(ctx context.Context, index int) error {
	m := w.c.Messages[index].Clone()
	w.mu.Lock()
	n := w.copies[index]
	w.copies[index]++
	m.PublishedAt = w.base.Add(time.Duration(index)*time.Second + time.Duration(n)*time.Millisecond)
	if m.ID == "" {
		m.ID = fmt.Sprintf("position-%d-%d", index+1, n+1)
	}
	w.published[m.PublishedAt] = index
	w.mu.Unlock()
	if n > 0 {
		w.tell("message %d is published again, as a copy", index+1)
	} else {
		w.tell("message %d is published", index+1)
	}
	return w.broker.Publish(ctx, m)
}

// indexOf returns which of Messages m is; -1 if that cannot be told.
func (w *world[Tx]) indexOf(m *broker.Message) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i, ok := w.published[m.PublishedAt.UTC()]; ok {
		return i
	}
	// A letter's time may be less exact.
	return slices.IndexFunc(w.c.Messages, func(o broker.Message) bool {
		return string(o.Body) == string(m.Body) &&
			!slices.ContainsFunc(o.Headers, func(h broker.Header) bool {
				v, ok := m.Headers.Get(h.Name)
				return !ok || string(v) != string(h.Value)
			})
	})
}

// play lives a history and whatever remains of it. An error: it did not come
// to an end.
func (w *world[Tx]) play(ctx context.Context, h history) error {
	for _, l := range h {
		w.disturbed = w.disturbed || len(l.troubles) > 0
		if err := w.live(ctx, l); err != nil {
			return err
		}
	}
	for _, name := range w.names {
		if w.broker.Len(name) == 0 {
			continue
		}
		w.tell("what is not acknowledged is delivered again")
		if err := w.run(ctx, life{}, []string{name}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world[Tx]) live(ctx context.Context, l life) error {
	for _, i := range l.arrive {
		if err := w.give(ctx, i); err != nil {
			return err
		}
	}
	if l.again {
		w.names[0] = fmt.Sprint("consumer again ", len(w.names))
		w.tell("the broker begins again with the first message")
	}
	if l.redrive {
		if err := w.redrive(ctx); err != nil {
			return err
		}
	}
	names := w.names[:1:1]
	for range max(1, l.together) - 1 {
		name := fmt.Sprint("consumer besides ", len(w.names))
		w.names = append(w.names, name)
		names = append(names, name)
	}
	return w.run(ctx, l, names)
}

// run has a process for each of the broker's consumers, until all is
// acknowledged, or the first one crashes, and the others are through.
func (w *world[Tx]) run(ctx context.Context, l life, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g := newGathering(len(names))
	errs, processes := make([]error, len(names)), make([]*process[Tx], len(names))
	for i, name := range names {
		var troubles []trouble
		if i == 0 {
			troubles = l.troubles
		}
		p, err := newProcess(w, l, name, g, troubles) // here, where the user's code may end the test
		if err != nil {
			return err
		}
		processes[i] = p
	}
	var running sync.WaitGroup
	for i, p := range processes {
		running.Go(func() {
			defer g.leave()
			errs[i] = p.run(ctx)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// desk returns where dead letters are decided about; nil: the Store has none.
func (w *world[Tx]) desk() deadletter.Desk {
	if w.last.DeadLetters != nil {
		d, _ := w.last.DeadLetters.(deadletter.Desk)
		return d
	}
	keeper, ok := store.As[interface{ DeadLetters() deadletter.Queue }](w.last.Store)
	if !ok {
		return nil
	}
	d, _ := keeper.DeadLetters().(deadletter.Desk)
	return d
}

// letters returns the dead letters with which something has still to happen.
func (w *world[Tx]) letters(ctx context.Context) ([]deadletter.Letter, error) {
	desk := w.desk()
	if desk == nil {
		return nil, nil
	}
	return desk.List(ctx, deadletter.Filter{Consumer: w.last.Name, Unresolved: true})
}

// redrive requests that all letters be processed again.
func (w *world[Tx]) redrive(ctx context.Context) error {
	letters, err := w.letters(ctx)
	if err != nil {
		return err
	}
	for _, l := range slices.Backward(letters) { // oldest first
		if l.Status != deadletter.Open {
			continue
		}
		if err := w.desk().Redrive(ctx, l.ID, deadletter.Decision{By: "sekalitest"}); err != nil {
			return err
		}
		w.tell("the dead letter of message %d is to be processed again", w.indexOf(&l.Message)+1)
	}
	return nil
}

// rows counts the messages that are recorded as processed, of all that were
// ever claimed.
func (w *world[Tx]) rows(ctx context.Context) (int, error) {
	w.mu.Lock()
	var keys []store.Key
	for raw := range w.claimed {
		keys = append(keys, store.Key{Raw: raw})
	}
	w.mu.Unlock()
	if len(keys) == 0 {
		return 0, nil
	}
	states, err := w.last.Store.Seen(ctx, store.Claim{Consumer: w.last.Name, Keys: keys})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, s := range states {
		if s != store.Fresh {
			n++
		}
	}
	return n, nil
}

// state is what a world looks like in the end.
type state struct {
	snapshot string
	rows     int
	acts     int
	letters  []string // what is wrong with dead letters
}

func (w *world[Tx]) state(ctx context.Context) (s state, err error) {
	if s.snapshot, err = w.c.Snapshot(ctx); err != nil {
		return s, fmt.Errorf("take the snapshot: %w", err)
	}
	if s.rows, err = w.rows(ctx); err != nil {
		return s, fmt.Errorf("count what is processed: %w", err)
	}
	letters, err := w.letters(ctx)
	if err != nil {
		return s, fmt.Errorf("list dead letters: %w", err)
	}
	for i := w.good; i < len(w.c.Messages); i++ {
		w.poisoned[i] = true
	}
	for _, l := range letters {
		i := w.indexOf(&l.Message)
		w.refused[i] = true
		if l.Reason == deadletter.Parked && w.disturbed {
			w.poisoned[i] = true // it waits for a person, as its user wants it to
		}
		if !w.poisoned[i] {
			first, _, _ := strings.Cut(l.Error, "\n")
			s.letters = append(s.letters, fmt.Sprintf("message %d is a dead letter (%s): %s", i+1, l.Reason, first))
		}
	}
	for i := w.good; i < len(w.c.Messages); i++ {
		if w.copies[i] > 0 && !w.refused[i] {
			s.letters = append(s.letters, fmt.Sprintf("message %d is to be refused (Case.Refused), and is no dead letter", i+1))
		}
	}
	if w.c.Provider != nil {
		s.acts = w.c.Provider.Acts()
	}
	return s, nil
}

// attempted returns the indexes of the messages that may have had effects with
// a provider: a dead letter may have had its own before it failed.
func (w *world[Tx]) attempted() []int {
	order := w.effects()
	for i := range w.c.Messages {
		if w.copies[i] > 0 && !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	return order
}

// effects returns the indexes of the messages that are to have had their
// effects, in the order in which they had them: those missing come last.
func (w *world[Tx]) effects() []int {
	var order []int
	for _, i := range w.committed {
		if i >= 0 && !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	for i := range w.c.Messages {
		if w.copies[i] > 0 && !slices.Contains(order, i) && !(w.poisoned[i] && w.refused[i]) {
			order = append(order, i)
		}
	}
	return order
}
