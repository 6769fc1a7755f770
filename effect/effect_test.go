package effect_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type parcel struct{ No int }

// lab is a ledger with everything around it under the test's control.
type lab struct {
	t     *testing.T
	store *memstore.Store
	calls atomic.Int32
}

func newLab(t *testing.T) *lab { return &lab{t: t, store: memstore.New()} }

// ledger opens the ledger as another process does.
func (l *lab) ledger() *effect.Ledger {
	return effect.New(l.store.Effects(), "courier", effect.Config{Lease: time.Second})
}

// buy buys a parcel, or fails with err.
func (l *lab) buy(err error) func(context.Context, effect.Call) (parcel, error) {
	return func(context.Context, effect.Call) (parcel, error) {
		return parcel{int(l.calls.Add(1))}, err
	}
}

func (l *lab) do(call func(context.Context, effect.Call) (parcel, error), opts ...effect.Option) (parcel, error) {
	return effect.Do(l.t.Context(), l.ledger(), "order-1", "label", call, opts...)
}

func (l *lab) row() effect.Row {
	l.t.Helper()
	rows, err := l.store.Effects().(effect.Desk).List(l.t.Context(), effect.Filter{})
	if err != nil || len(rows) != 1 {
		l.t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows[0]
}

func (l *lab) want(state effect.State, calls int) {
	l.t.Helper()
	if got := l.row().State; got != state {
		l.t.Errorf("the effect is %s, want %s", got, state)
	}
	if got := int(l.calls.Load()); got != calls {
		l.t.Errorf("%d calls, want %d", got, calls)
	}
}

var errNoAnswer = errors.New("no answer")

func TestTheKeyIsTheSameForEver(t *testing.T) {
	for want, of := range map[string][3]string{
		"4502a5e6-354a-867d-8e10-bdfbc4e19188": {"courier-service", "order-42:paid", "create-label"},
		"006bd2b3-e91d-8ea6-8c35-f47a8e1ff2b3": {"courier-service", "order-42:pai", "dcreate-label"},
		"764ef52d-a6bf-8ace-a87e-8cc3ec87f374": {"", "\x00\xff", "x"},
	} {
		if got := effect.IdempotencyKey(of[0], of[1], of[2]); got != want {
			t.Errorf("the key of %q is %s, want %s", of, got, want)
		}
	}
}

func TestASuccessIsRecordedAndItsResultReturnedForEver(t *testing.T) {
	l := newLab(t)
	for range 3 {
		if got, err := l.do(l.buy(nil)); err != nil || got.No != 1 {
			t.Errorf("got %v, %v", got, err)
		}
	}
	l.want(effect.Succeeded, 1)
}

func TestEveryAttemptBearsTheSameKey(t *testing.T) {
	l := newLab(t)
	var keys []string
	for i := range 4 {
		_, _ = l.do(func(ctx context.Context, c effect.Call) (parcel, error) {
			keys = append(keys, c.IdempotencyKey)
			if from, ok := effect.CallFrom(ctx); !ok || from.IdempotencyKey != c.IdempotencyKey || c.Attempt != i+1 {
				t.Errorf("attempt %d: %+v, from the context %+v", i+1, c, from)
			}
			return parcel{}, errNoAnswer
		}, effect.Repeat(time.Hour))
	}
	for _, key := range keys {
		if key != effect.IdempotencyKey("courier", "order-1", "label") {
			t.Errorf("a key is %s", key)
		}
	}
	if len(keys) != 4 {
		t.Errorf("%d calls", len(keys))
	}
}

func TestOnlyARepeatedEffectMayBeSentAgainAtOnce(t *testing.T) {
	look := effect.Lookup(time.Second, func(context.Context, effect.Call) (parcel, bool, error) { return parcel{}, false, nil })
	for name, c := range map[string]struct {
		how  effect.Option
		want bool
	}{"repeat": {effect.Repeat(time.Hour), true}, "park": {effect.Park(), false}, "lookup": {look, false}} {
		_, err := newLab(t).do(func(_ context.Context, call effect.Call) (parcel, error) {
			if call.Repeats != c.want {
				t.Errorf("%s: Repeats is %v", name, call.Repeats)
			}
			return parcel{}, nil
		}, c.how)
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWhatAnErrorOfACallMeans(t *testing.T) {
	permanent := func(err error) bool {
		var p interface{ Permanent() bool }
		return errors.As(err, &p) && p.Permanent()
	}
	for name, c := range map[string]struct {
		err       error
		state     effect.State
		permanent bool
	}{
		"no answer":            {errNoAnswer, effect.Unknown, false},
		"not done":             {effect.NotDone(errNoAnswer), effect.Failed, false},
		"refused":              {effect.Refused(errNoAnswer), effect.Failed, true},
		"cancelled":            {context.Canceled, effect.Unknown, false},
		"wrapped refusal":      {fmt.Errorf("label: %w", effect.Refused(errNoAnswer)), effect.Failed, true},
		"other request":        {fmt.Errorf("bind: %w", effect.ErrOtherRequest), effect.Unknown, true},
		"not done, in a group": {errors.Join(errors.New("x"), effect.NotDone(errNoAnswer)), effect.Failed, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			_, err := l.do(l.buy(c.err))
			if !errors.Is(err, c.err) || permanent(err) != c.permanent {
				t.Errorf("the error is %v, permanent: %v", err, permanent(err))
			}
			l.want(c.state, 1)
		})
	}
}

func TestWhatHasCertainlyNotHappenedIsCalledAgain(t *testing.T) {
	l := newLab(t)
	_, _ = l.do(l.buy(effect.NotDone(errNoAnswer)))
	if got, err := l.do(l.buy(nil)); err != nil || got.No != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	l.want(effect.Succeeded, 2)
}

func TestAnUnknownOutcomeIsParkedUnlessTheUserChoseOtherwise(t *testing.T) {
	l := newLab(t)
	_, _ = l.do(l.buy(errNoAnswer))
	for range 2 {
		_, err := l.do(l.buy(nil))
		var parked *effect.ParkedError
		if !errors.As(err, &parked) || !strings.Contains(parked.Reason, "no answer") {
			t.Errorf("the error is %v", err)
		}
	}
	l.want(effect.Parked, 1)
}

func TestARepeatIsForAsLongAsTheProviderRemembersTheKey(t *testing.T) {
	l := newLab(t)
	_, _ = l.do(l.buy(errNoAnswer))
	// That this attempt did nothing says nothing about the first.
	_, _ = l.do(l.buy(effect.NotDone(errNoAnswer)), effect.Repeat(time.Hour))
	l.want(effect.Unknown, 2)
	_, err := l.do(l.buy(nil), effect.Repeat(time.Nanosecond))
	if parked := (*effect.ParkedError)(nil); !errors.As(err, &parked) {
		t.Errorf("after the window: %v", err)
	}
	l.want(effect.Parked, 2)
}

func TestALookUpFindsWhatHasHappenedAndElseItIsCalled(t *testing.T) {
	for _, happened := range []bool{true, false} {
		t.Run(fmt.Sprint(happened), func(t *testing.T) {
			l := newLab(t)
			looked := 0
			look := effect.Lookup(time.Second, func(_ context.Context, c effect.Call) (parcel, bool, error) {
				looked++
				if looked == 1 {
					return parcel{}, false, errNoAnswer
				}
				return parcel{77}, happened, nil
			})
			_, _ = l.do(l.buy(errNoAnswer), look)
			_, err := l.do(l.buy(nil), look)
			var busy *effect.BusyError
			if !errors.As(err, &busy) || busy.After > time.Second || looked != 0 {
				t.Fatalf("too early: %v, looked up %d times", err, looked)
			}
			wait(t, busy.After)
			if _, err := l.do(l.buy(nil), look); !errors.Is(err, errNoAnswer) {
				t.Errorf("a look-up that fails: %v", err)
			}
			l.want(effect.Unknown, 1)
			wait(t, time.Second)
			got, err := l.do(l.buy(nil), look)
			want, calls := parcel{77}, 1
			if !happened {
				want, calls = parcel{2}, 2
			}
			if err != nil || got != want {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
			l.want(effect.Succeeded, calls)
		})
	}
}

// wait lets a lease end.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d + 10*time.Millisecond)
}

func TestWhatIsUnderWayIsLeftAlone(t *testing.T) {
	l := newLab(t)
	began, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := l.do(func(ctx context.Context, c effect.Call) (parcel, error) {
			close(began)
			<-release
			return l.buy(nil)(ctx, c)
		})
		done <- err
	}()
	<-began
	wait(t, 1500*time.Millisecond) // longer than a lease: it is renewed
	_, err := l.do(l.buy(nil))
	var busy *effect.BusyError
	if !errors.As(err, &busy) || busy.RetryAfter() <= 0 || busy.RetryAfter() > time.Second {
		t.Errorf("the error is %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	l.want(effect.Succeeded, 1)
}

func TestSixteenWorkersWithOneMessageCallOnce(t *testing.T) {
	l := newLab(t)
	var inFlight, most atomic.Int32
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for {
				got, err := l.do(func(ctx context.Context, c effect.Call) (parcel, error) {
					n := inFlight.Add(1)
					defer inFlight.Add(-1)
					most.Store(max(most.Load(), n))
					runtime.Gosched()
					return l.buy(nil)(ctx, c)
				})
				var busy *effect.BusyError
				if errors.As(err, &busy) {
					continue
				}
				if err != nil || got.No != 1 {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
		})
	}
	running.Wait()
	if most.Load() != 1 {
		t.Errorf("%d calls in flight at once", most.Load())
	}
	l.want(effect.Succeeded, 1)
}

// frozen returns a call that comes back after somebody else went on.
func TestALateFinisherChangesNothing(t *testing.T) {
	l := newLab(t)
	rows := l.store.Effects()
	late, _, err := rows.Start(t.Context(), effect.ID{Consumer: "courier", MessageKey: "order-1", Name: "label"}, "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.do(l.buy(nil), effect.Repeat(time.Hour)); err != nil || got.No != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	if err := rows.End(t.Context(), late, effect.Unknown, nil, "late"); !errors.Is(err, effect.ErrStale) {
		t.Errorf("the late one: %v", err)
	}
	l.want(effect.Succeeded, 1)
}

func TestACallWhoseLeaseIsTakenIsCancelled(t *testing.T) {
	l := newLab(t)
	_, err := l.do(func(ctx context.Context, c effect.Call) (parcel, error) {
		desk := l.store.Effects().(effect.Desk)
		if err := desk.Resolve(ctx, 1, effect.Resolution{By: "ayu", To: effect.Failed}); err != nil { // memstore lets it
			t.Error(err)
		}
		<-ctx.Done()
		return parcel{}, context.Cause(ctx)
	})
	if !errors.Is(err, effect.ErrStale) {
		t.Errorf("the error is %v", err)
	}
	l.want(effect.Failed, 0)
}

func TestPanicsAndGoexitLeaveAnUnknownOutcome(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("oh") }, "panic(nil)": func() { panic(nil) }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			var ended sync.WaitGroup
			ended.Go(func() {
				defer func() { _ = recover() }()
				_, _ = l.do(func(context.Context, effect.Call) (parcel, error) {
					l.calls.Add(1)
					end()
					return parcel{}, nil
				})
			})
			ended.Wait()
			l.want(effect.Unknown, 1)
		})
	}
}

func TestTheOutcomeIsRecordedAlthoughTheContextHasEnded(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	got, err := effect.Do(ctx, l.ledger(), "order-1", "label", func(ctx context.Context, c effect.Call) (parcel, error) {
		cancel()
		return l.buy(nil)(ctx, c)
	})
	if err != nil || got.No != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	l.want(effect.Succeeded, 1)
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	l := newLab(t)
	send := func(print string) error {
		_, err := l.do(func(ctx context.Context, c effect.Call) (parcel, error) {
			if err := c.Bind(ctx, []byte(print)); err != nil {
				return parcel{}, err
			}
			return l.buy(errNoAnswer)(ctx, c)
		}, effect.Repeat(time.Hour))
		return err
	}
	if err := send("one"); !errors.Is(err, errNoAnswer) {
		t.Error(err)
	}
	if err := send("other"); !errors.Is(err, effect.ErrOtherRequest) {
		t.Errorf("another body: %v", err)
	}
	if err := send("one"); !errors.Is(err, errNoAnswer) {
		t.Errorf("the first body: %v", err)
	}
	l.want(effect.Unknown, 2)
}

func TestAPersonsDecisionCounts(t *testing.T) {
	desk := func(l *lab) effect.Desk { return l.store.Effects().(effect.Desk) }
	park := func(t *testing.T) *lab {
		l := newLab(t)
		_, _ = l.do(l.buy(errNoAnswer))
		_, _ = l.do(l.buy(nil))
		l.want(effect.Parked, 1)
		return l
	}
	t.Run("it has happened", func(t *testing.T) {
		l := park(t)
		if err := desk(l).Resolve(t.Context(), 1, effect.Resolution{By: "ayu", To: effect.Succeeded, Result: []byte(`{"No":9}`)}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.do(l.buy(nil)); err != nil || got.No != 9 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("call again", func(t *testing.T) {
		l := park(t)
		if err := desk(l).Resolve(t.Context(), 1, effect.Resolution{By: "ayu", To: effect.Failed}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.do(l.buy(nil)); err != nil || got.No != 2 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("give up", func(t *testing.T) {
		l := park(t)
		if err := desk(l).Resolve(t.Context(), 1, effect.Resolution{By: "ayu", To: effect.Failed, GiveUp: true}); err != nil {
			t.Fatal(err)
		}
		_, err := l.do(l.buy(nil))
		var p interface{ Permanent() bool }
		if !errors.As(err, &p) || !p.Permanent() {
			t.Errorf("got %v", err)
		}
		l.want(effect.Failed, 1)
	})
}

func TestEffectsOfOneMessageAreApartAndOneMayNeedAnothersResult(t *testing.T) {
	l := newLab(t)
	for range 2 {
		label, err := effect.Do(t.Context(), l.ledger(), "order-1", "label", l.buy(nil))
		if err != nil {
			t.Fatal(err)
		}
		mail, err := effect.Do(t.Context(), l.ledger(), "order-1", "mail", func(context.Context, effect.Call) (string, error) {
			l.calls.Add(1)
			return fmt.Sprintf("parcel %d is on its way", label.No), nil
		})
		if err != nil || mail != "parcel 1 is on its way" {
			t.Errorf("mail: %q, %v", mail, err)
		}
	}
	if n := l.calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestAResultThatCannotBeRecordedIsParked(t *testing.T) {
	l := newLab(t)
	_, err := effect.Do(t.Context(), l.ledger(), "order-1", "label", func(context.Context, effect.Call) (func(), error) {
		l.calls.Add(1)
		return func() {}, nil
	})
	if parked := (*effect.ParkedError)(nil); !errors.As(err, &parked) {
		t.Errorf("the error is %v", err)
	}
	l.want(effect.Parked, 1)
	l2 := newLab(t)
	if _, err := l2.do(l2.buy(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := effect.Do(t.Context(), l2.ledger(), "order-1", "label", func(context.Context, effect.Call) (string, error) { return "", nil }); err == nil {
		t.Error("a result of another type was returned")
	}
	l2.want(effect.Succeeded, 1)
}

// flaky are rows that fail a few times when an attempt is to be ended.
type flaky struct {
	effect.Rows
	fails atomic.Int32
}

func (f *flaky) End(ctx context.Context, r effect.Row, to effect.State, result []byte, text string) error {
	if f.fails.Add(-1) >= 0 {
		return errNoAnswer
	}
	return f.Rows.End(ctx, r, to, result, text)
}

func TestAnOutcomeIsRecordedWhenTheDatabaseIsBack(t *testing.T) {
	l := newLab(t)
	rows := &flaky{Rows: l.store.Effects()}
	rows.fails.Store(3)
	got, err := effect.Do(t.Context(), effect.New(rows, "courier", effect.Config{}), "order-1", "label", l.buy(nil))
	if err != nil || got.No != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	l.want(effect.Succeeded, 1)
}

func TestALedgerThatCannotWorkSaysSo(t *testing.T) {
	l := newLab(t)
	for name, ledger := range map[string]*effect.Ledger{
		"no consumer": effect.New(l.store.Effects(), "", effect.Config{}),
		"short lease": effect.New(l.store.Effects(), "c", effect.Config{Lease: time.Millisecond}),
	} {
		if _, err := effect.Do(t.Context(), ledger, "k", "label", l.buy(nil)); err == nil || ledger.Check(t.Context()) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, name := range []string{"", " ", "a b", "ä", "a\n", strings.Repeat("x", 101)} {
		if _, err := effect.Do(t.Context(), l.ledger(), "k", name, l.buy(nil)); err == nil {
			t.Errorf("effect %q was called", name)
		}
	}
	if n := l.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}
