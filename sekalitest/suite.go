package sekalitest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// suite plays histories, each in a world of its own.
type suite[Tx any] struct {
	world    func(testing.TB) Case[Tx]
	base     time.Time
	n        int // messages, those to be refused among them
	refused  int
	anyOrder bool
	provider bool
	wants    map[string]state // by the order of messages
	hopeless bool             // the standard of comparison is missing
}

func newSuite[Tx any](t testing.TB, world func(testing.TB) Case[Tx]) *suite[Tx] {
	t.Helper()
	s := &suite[Tx]{world: world, wants: map[string]state{}}
	s.base = time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	w := s.newWorld(t)
	defer w.scope.close()
	s.n, s.refused, s.provider = len(w.c.Messages), len(w.c.Refused), w.c.Provider != nil
	s.anyOrder = w.c.AnyOrder || w.c.Consumer(w.broker.NewSource("probe")).Version != nil
	return s
}

func (s *suite[Tx]) newWorld(t testing.TB) *world[Tx] {
	t.Helper()
	return newWorld(t, s.base, func(t testing.TB) Case[Tx] {
		c := s.world(t)
		switch {
		case c.Consumer == nil:
			t.Fatal("sekalitest: Case.Consumer is not set: give the function that returns the consumer's Config")
		case c.Snapshot == nil:
			t.Fatal("sekalitest: Case.Snapshot is not set: give sekalitest.Rows(db, \"SELECT …\") of what the handler changes")
		case len(c.Messages) == 0:
			t.Fatal("sekalitest: Case.Messages is empty: give two or three messages that the consumer processes")
		}
		return c
	})
}

// deliveries returns all that are to be played.
func (s *suite[Tx]) deliveries() []delivery {
	if seed, err := strconv.ParseUint(os.Getenv("SEKALITEST_SEED"), 10, 64); err == nil {
		return []delivery{s.randomly(seed, "any history")}
	}
	list := named(s.n, s.refused, s.anyOrder, s.provider)
	histories := 10
	if n, err := strconv.Atoi(os.Getenv("SEKALITEST_HISTORIES")); err == nil {
		histories = n
	}
	base := rand.Uint64()
	for i := range histories {
		list = append(list, s.randomly(base+uint64(i), fmt.Sprintf("any history, %d", i+1)))
	}
	return list
}

func (s *suite[Tx]) randomly(seed uint64, name string) delivery {
	return delivery{name: name, seed: seed, history: random(seed, s.n, s.anyOrder, s.provider)}
}

// failure is what is wrong after a history.
type failure struct {
	wrong   []string
	trace   []string
	history history
	tries   int // of shorter ones
}

// Error is for what is wrong with the standard of comparison.
func (f *failure) Error() string { return strings.Join(f.wrong, "\n") }

// report says what is wrong, why, and how to see it again.
func (f *failure) report(test string, d delivery) string {
	var b strings.Builder
	for _, w := range f.wrong {
		fmt.Fprintln(&b, w)
	}
	fmt.Fprintf(&b, "\nThe shortest history that shows it (%d others were tried):\n%s\nWhat happened in it:\n", f.tries, f.history)
	for _, line := range f.trace {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	repeat := fmt.Sprintf("go test -run '^%s$'", strings.ReplaceAll(test, "/", "$/^"))
	if d.seed != 0 {
		repeat = fmt.Sprintf("SEKALITEST_SEED=%d go test -run '^%s$'", d.seed, strings.Split(test, "/")[0])
	}
	fmt.Fprintf(&b, "\nRepeat it: %s\n", repeat)
	return b.String()
}

// prove plays a delivery. If it fails, it returns the failure of the shortest
// history that fails too.
func (s *suite[Tx]) prove(t testing.TB, d delivery) *failure {
	t.Helper()
	f := s.play(t, d.history)
	if f == nil || s.hopeless {
		return f
	}
	return s.shrink(t, f)
}

// play plays a history. Before the first it finds out what all messages leave
// that come one at a time: if that fails, nothing else need be tried.
func (s *suite[Tx]) play(t testing.TB, h history) *failure {
	t.Helper()
	if len(s.wants) == 0 {
		all := make([]int, s.n)
		for i := range all {
			all[i] = i
		}
		if _, err := s.want(t, all); err != nil {
			s.hopeless = true
			return s.unwanted(err)
		}
	}
	return s.try(t, h)
}

// unwanted is the failure of a world in which nothing goes wrong.
func (s *suite[Tx]) unwanted(err error) *failure {
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{wrong: []string{err.Error()}}
	}
	f.wrong = append([]string{"even when the messages come one at a time, and nothing fails:"}, f.wrong...)
	return f
}

// try plays a history, and returns what is wrong after it; nil: nothing.
func (s *suite[Tx]) try(t testing.TB, h history) *failure {
	t.Helper()
	w := s.newWorld(t)
	defer w.scope.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*patience)
	defer cancel()
	fail := func(wrong ...string) *failure { return &failure{wrong: wrong, trace: w.trace, history: h} }
	if err := w.play(ctx, h); err != nil {
		return fail("it does not come to an end: " + err.Error())
	}
	got, err := w.state(ctx)
	if err != nil {
		return fail(err.Error())
	}
	want, err := s.want(t, w.effects())
	most := want
	if err == nil && w.c.Provider != nil {
		most, err = s.want(t, w.attempted())
	}
	if err != nil {
		s.hopeless = true
		return s.unwanted(err)
	}
	wrong := slices.Concat(got.letters, differences(got, want, most.acts))
	if w.unwatched(h) {
		wrong = append(wrong, "no statement of the handler was seen, so none could be disturbed: make the database with SQLite, Postgres"+
			" or OpenDB of sekalitest, and hand the handler's ctx to its statements")
	}
	if len(wrong) > 0 {
		return fail(wrong...)
	}
	return nil
}

func differences(got, want state, mostActs int) (wrong []string) {
	if got.snapshot != want.snapshot {
		wrong = append(wrong, fmt.Sprintf("the effect is not that of each message once.\n  want: %s\n  got:  %s", indent(want.snapshot), indent(got.snapshot)))
	}
	if got.rows != want.rows {
		wrong = append(wrong, fmt.Sprintf("%d messages are recorded as processed, want %d", got.rows, want.rows))
	}
	if got.acts < want.acts || got.acts > mostActs {
		wrong = append(wrong, fmt.Sprintf("the provider acted %d times, want %d", got.acts, want.acts))
	}
	return wrong
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n        ")
}

// want returns what is left when messages come one at a time, in an order, and
// nothing fails.
func (s *suite[Tx]) want(t testing.TB, order []int) (state, error) {
	t.Helper()
	if s.anyOrder {
		order = slices.Sorted(slices.Values(order))
	}
	name := fmt.Sprint(order)
	if known, ok := s.wants[name]; ok {
		return known, nil
	}
	w := s.newWorld(t)
	defer w.scope.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*patience)
	defer cancel()
	h := history{{arrive: order, alone: true}}
	if err := w.play(ctx, h); err != nil {
		return state{}, &failure{wrong: []string{"it does not come to an end: " + err.Error()}, trace: w.trace, history: h}
	}
	got, err := w.state(ctx)
	if err != nil {
		return state{}, err
	}
	wrong := got.letters
	if got.rows == 0 && len(order) > 0 && len(wrong) == 0 {
		wrong = append(wrong, "no message is recorded as processed: does the Store that the Config has make claims?")
	}
	order = slices.DeleteFunc(slices.Clone(order), func(i int) bool { return i >= w.good })
	if all := len(order) == w.good && slices.IsSorted(order); all && w.c.Want != "" && w.c.Want != got.snapshot {
		wrong = append(wrong, fmt.Sprintf("the effect is not that of Case.Want.\n  want: %s\n  got:  %s", indent(w.c.Want), indent(got.snapshot)))
	}
	if len(wrong) > 0 {
		return state{}, &failure{wrong: wrong, trace: w.trace, history: h}
	}
	s.wants[name] = got
	return got, nil
}

// unwatched tells that statements were to be disturbed, and none was seen.
func (w *world[Tx]) unwatched(h history) bool {
	return w.seen == 0 && slices.ContainsFunc(h, func(l life) bool {
		return slices.ContainsFunc(l.troubles, func(t trouble) bool { return t.kind.atStatements() })
	})
}
