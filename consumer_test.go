package sekali_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if kind, url, is := strings.Cut(os.Getenv(racerEnv), " "); is {
		if err := racer(kind, url); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// script is a source that hands over what a test pushes, and remembers what it
// is told.
type script struct {
	asked, answered atomic.Int32 // calls of Receive, and those that returned something

	mu      sync.Mutex
	pushed  chan *broker.Delivery
	settled []broker.Settlement
	closed  int
	alive   chan []*broker.Delivery // KeepAlive calls

	receive func() error                      // an error instead of deliveries
	settle  func(s []broker.Settlement) error // before it is remembered
}

func newScript() *script {
	return &script{pushed: make(chan *broker.Delivery, 10_000), alive: make(chan []*broker.Delivery, 100)}
}

func (s *script) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if s.receive != nil {
		if err := s.receive(); err != nil {
			return nil, err
		}
	}
	s.asked.Add(1)
	select {
	case first := <-s.pushed:
		s.answered.Add(1)
		got := []*broker.Delivery{first}
		for len(got) < max {
			select {
			case d := <-s.pushed:
				got = append(got, d)
			default:
				return got, nil
			}
		}
		return got, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *script) Settle(_ context.Context, batch []broker.Settlement) error {
	if s.settle != nil {
		if err := s.settle(batch); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = append(s.settled, batch...)
	return nil
}

func (s *script) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// told returns what became of the deliveries with an id, such as "ack".
func (s *script) told(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var actions []string
	for _, x := range s.settled {
		if x.Delivery.Message.ID == id {
			actions = append(actions, x.Action.String())
		}
	}
	return strings.Join(actions, ",")
}

func (s *script) push(ids ...string) {
	for _, id := range ids {
		s.pushed <- delivery(id, "")
	}
}

func delivery(id, lane string) *broker.Delivery {
	return &broker.Delivery{Lane: lane, Message: broker.Message{
		ID: id, Topic: "orders", Body: []byte("body of " + id),
		Headers: broker.Headers{{Name: "h", Value: []byte("value")}},
	}}
}

// events lets a test wait for what a Consumer does.
type events struct {
	mu   sync.Mutex
	all  []sekali.Event
	more chan struct{}
}

func newEvents() *events { return &events{more: make(chan struct{})} }

func (e *events) Observe(x sekali.Event) {
	if x.Message != nil {
		m := *x.Message // it is not to be kept
		x.Message = &m
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, x)
	close(e.more)
	e.more = make(chan struct{})
}

func (e *events) count(match func(sekali.Event) bool) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, x := range e.all {
		if match(x) {
			n++
		}
	}
	return n
}

func (e *events) wait(t *testing.T, n int, match func(sekali.Event) bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		e.mu.Lock()
		more := e.more
		e.mu.Unlock()
		if e.count(match) >= n {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("waited in vain for %d events, %d came. %s", n, e.count(match), e.summary())
		}
	}
}

// summary tells how many events of each kind came, and what the last errors were.
func (e *events) summary() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	kinds, errs := map[string]int{}, []string{}
	for _, x := range e.all {
		kinds[x.Kind.String()]++
		if x.Err != nil {
			errs = append(errs, x.Kind.String()+": "+x.Err.Error())
		}
	}
	return fmt.Sprintf("Events: %v. Last errors: %q", kinds, errs[max(0, len(errs)-5):])
}

func kind(k sekali.EventKind) func(sekali.Event) bool {
	return func(e sekali.Event) bool { return e.Kind == k }
}

// times returns a hook that fails n times.
func times(n int, err error) func() error {
	var mu sync.Mutex
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 {
			return nil
		}
		n--
		return err
	}
}

// rig is a Consumer with everything around it under the test's control.
type rig struct {
	t      *testing.T
	source *script
	memory *memstore.Store
	store  *faulty.Store[*memstore.Tx] // before memory
	events *events
	stop   func() error // ends Run and returns its error
}

type configure func(c *sekali.Config[*memstore.Tx], r *rig)

// sell is the business change: it counts.
func sell(_ context.Context, tx *memstore.Tx, m *sekali.Message) error {
	tx.Add("sold", 1)
	tx.Add("sold "+m.ID, 1)
	return nil
}

func start(t *testing.T, options ...configure) *rig {
	t.Helper()
	r := &rig{t: t, source: newScript(), memory: memstore.New(), events: newEvents()}
	r.store = faulty.NewStore(r.memory)
	cfg := sekali.Config[*memstore.Tx]{
		Name: "stock-service", Source: r.source, Store: r.store, Key: sekali.MessageID(), Handle: sell,
		Backoff: sekali.Backoff{Initial: time.Microsecond, Max: time.Millisecond}, Observer: r.events,
	}
	for _, option := range options {
		option(&cfg, r)
	}
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- consumer.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("Run did not end")
		}
	})
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func handle(h sekali.Handler[*memstore.Tx]) configure {
	return func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Handle = h }
}

func (r *rig) finish() {
	r.t.Helper()
	if err := r.stop(); err != nil {
		r.t.Errorf("Run returned %v", err)
	}
	if n := r.memory.Open(); n != 0 {
		r.t.Errorf("%d transactions are still open", n)
	}
	if r.source.closed == 0 {
		r.t.Error("the source was not closed")
	}
}

func (r *rig) letters() []deadletter.Letter {
	r.t.Helper()
	letters, err := r.memory.DeadLetters().List(context.Background(), deadletter.Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	return letters
}

// onlyLetter returns the only dead letter.
func (r *rig) onlyLetter() deadletter.Letter {
	r.t.Helper()
	letters := r.letters()
	if len(letters) != 1 {
		r.t.Fatalf("there are %d dead letters instead of one", len(letters))
	}
	return letters[0]
}

func (r *rig) wantCounter(name string, want int) {
	r.t.Helper()
	if got := r.memory.Counter(name); got != want {
		r.t.Errorf("%s is %d, want %d", name, got, want)
	}
}

func (r *rig) wantTold(id, want string) {
	r.t.Helper()
	if got := r.source.told(id); got != want {
		r.t.Errorf("the broker was told %q of %s, want %q", got, id, want)
	}
}

func TestAMessageIsAcknowledgedAfterItsCommit(t *testing.T) {
	r := start(t, func(_ *sekali.Config[*memstore.Tx], r *rig) {
		r.source.settle = func(batch []broker.Settlement) error {
			for _, s := range batch {
				if n := r.memory.Counter("sold " + s.Delivery.Message.ID); n != 1 {
					t.Errorf("%s was settled with an effect of %d", s.Delivery.Message.ID, n)
				}
			}
			return nil
		}
	})
	r.source.push("a", "b", "c")
	r.events.wait(t, 3, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 3)
	for _, id := range []string{"a", "b", "c"} {
		r.wantTold(id, "ack")
	}
}

func TestADuplicateIsAcknowledgedWithoutTheHandler(t *testing.T) {
	r := start(t)
	r.source.push("a", "a", "b", "a")
	r.events.wait(t, 4, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold a", 1)
	r.wantCounter("sold b", 1)
	r.wantTold("a", "ack,ack,ack")
	if n := r.events.count(func(e sekali.Event) bool { return e.Outcome == sekali.Duplicate }); n != 2 {
		t.Errorf("%d duplicates were reported, want 2", n)
	}
}

func TestAFailedMessageComesToItsNextAttemptUntouched(t *testing.T) {
	var attempt int
	r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if attempt++; attempt == 1 {
			tx.Add("sold", 100)
			copy(m.Body, "XXXX")
			copy(m.Headers[0].Value, "XXXX")
			m.Headers = append(m.Headers, broker.Header{Name: "new"})
			m.ID = "other"
			return errors.New("not now")
		}
		if string(m.Body) != "body of a" || len(m.Headers) != 1 || string(m.Headers[0].Value) != "value" || m.Key() != "a" {
			t.Errorf("the second attempt got %q with %v", m.Body, m.Headers)
		}
		return sell(ctx, tx, m)
	}))
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 1)
	r.wantTold("a", "ack")
	if n := r.events.count(kind(sekali.AttemptFailed)); n != 1 || len(r.letters()) != 0 {
		t.Errorf("%d failed attempts and %d letters, want 1 and 0", n, len(r.letters()))
	}
}

func TestAPoisonMessageBecomesADeadLetterAndOthersGoOn(t *testing.T) {
	r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "poison" {
			copy(m.Body, "XXXX")
			return errors.New("bad \x00 order")
		}
		return sell(ctx, tx, m)
	}), func(c *sekali.Config[*memstore.Tx], r *rig) {
		c.Workers = 1
		r.source.settle = func(batch []broker.Settlement) error {
			if batch[0].Delivery.Message.ID == "poison" && len(r.letters()) != 1 {
				t.Error("the poison message was acknowledged before its letter was written")
			}
			return nil
		}
	})
	r.source.push("poison", "a", "b")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.events.wait(t, 2, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 2)
	r.wantTold("poison", "ack")
	l := r.onlyLetter()
	if l.Reason != deadletter.Exhausted || l.Attempts != 10 || l.Key != "poison" || l.Consumer != "stock-service" ||
		string(l.Message.Body) != "body of poison" || !strings.Contains(l.Error, "bad \x00 order") {
		t.Errorf("the letter is %+v", l)
	}
	if r.memory.Keys() != 2 {
		t.Errorf("%d keys are recorded, want 2: none for an open letter", r.memory.Keys())
	}
}

func TestHowHandlersFail(t *testing.T) {
	cases := map[string]struct {
		fail     func() error
		reason   deadletter.Reason
		attempts int
	}{
		"an error":              {func() error { return errors.New("no") }, deadletter.Exhausted, 3},
		"a permanent one":       {func() error { return fmt.Errorf("no: %w", sekali.Permanent(errors.New("never"))) }, deadletter.Permanent, 1},
		"a panic":               {func() error { panic("oh") }, deadletter.Exhausted, 3},
		"panic(nil)":            {func() error { panic(nil) }, deadletter.Exhausted, 3},
		"Goexit":                {func() error { runtime.Goexit(); return nil }, deadletter.Exhausted, 3},
		"its own context's end": {func() error { return context.DeadlineExceeded }, deadletter.Exhausted, 3},
		"a lost transaction":    {func() error { return store.ErrTransactionLost }, deadletter.Exhausted, 3},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := start(t, handle(func(_ context.Context, tx *memstore.Tx, _ *sekali.Message) error {
				tx.Add("sold", 1)
				return c.fail()
			}), func(cfg *sekali.Config[*memstore.Tx], _ *rig) { cfg.MaxAttempts = 3 })
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.DeadLettered))
			r.finish()
			r.wantCounter("sold", 0)
			r.wantTold("a", "ack")
			if l := r.onlyLetter(); l.Reason != c.reason || l.Attempts != c.attempts {
				t.Errorf("the letter says %s after %d attempts, want %s after %d", l.Reason, l.Attempts, c.reason, c.attempts)
			}
		})
	}
}

func TestWhatIsNotTheMessagesFaultDoesNotCount(t *testing.T) {
	unavailable := fmt.Errorf("dial: %w", store.ErrUnavailable)
	unknown := fmt.Errorf("commit: %w", store.ErrCommitUnknown)
	cases := map[string]struct {
		set     func(s *faulty.Store[*memstore.Tx])
		handler func(n int) error // nil: it works
		outcome sekali.Outcome
		calls   int
	}{
		"the database is down at the claim": {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Begin, 4, unavailable) }, nil, sekali.Processed, 1},
		"the database goes down in the handler": {nil, func(n int) error {
			if n < 5 {
				return unavailable
			}
			return nil
		}, sekali.Processed, 5},
		"only the rollback tells that the connection is lost": {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Rollback, 4, unavailable) }, func(n int) error {
			if n < 5 {
				return errors.New("EOF")
			}
			return nil
		}, sekali.Processed, 5},
		"others get in the way at the claim": {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Begin, 12, memstore.ErrBusy) }, nil, sekali.Processed, 1},
		"others get in the way in the handler": {nil, func(n int) error {
			if n < 12 {
				return sekali.Permanent(memstore.ErrBusy)
			}
			return nil
		}, sekali.Processed, 12},
		"others get in the way at the commit":         {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Commit, 12, memstore.ErrBusy) }, nil, sekali.Processed, 13},
		"the commit happened and its answer was lost": {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.CommitAfter, 1, unknown) }, nil, sekali.Duplicate, 1},
		"the commit did not happen and nobody knows":  {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Commit, 4, unknown) }, nil, sekali.Processed, 5},
		"the handler asks to come later": {nil, func(n int) error {
			if n < 5 {
				return fmt.Errorf("the courier is busy: %w", sekali.RetryAfter(errors.New("503"), time.Millisecond))
			}
			return nil
		}, sekali.Processed, 5},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			calls := 0
			r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
				calls++
				tx.Add("sold", 1)
				if c.handler == nil {
					return nil
				}
				return c.handler(calls)
			}), func(cfg *sekali.Config[*memstore.Tx], r *rig) {
				cfg.MaxAttempts = 2 // so that anything counted shows
				if c.set != nil {
					c.set(r.store)
				}
			})
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.Finished))
			r.finish()
			r.wantCounter("sold", 1)
			r.wantTold("a", "ack")
			if calls != c.calls {
				t.Errorf("the handler was called %d times, want %d", calls, c.calls)
			}
			if n := r.events.count(func(e sekali.Event) bool { return e.Kind == sekali.Finished && e.Outcome == c.outcome }); n != 1 {
				t.Errorf("the outcome was not reported as %s", c.outcome)
			}
		})
	}
}

func TestConflictsCountAsAnAttemptWhenTheyDoNotEnd(t *testing.T) {
	r := start(t, handle(func(context.Context, *memstore.Tx, *sekali.Message) error { return memstore.ErrBusy }),
		func(c *sekali.Config[*memstore.Tx], _ *rig) { c.MaxAttempts, c.MaxConflicts = 2, 3 })
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	if l := r.onlyLetter(); l.Attempts != 2 {
		t.Errorf("%d attempts were counted, want 2", l.Attempts)
	}
	if n := r.events.count(kind(sekali.Conflicted)); n != 4 {
		t.Errorf("%d conflicts were passed over, want 4", n)
	}
}

func TestAClaimThatSurvivedItsRollbackIsADeadLetterAndNeverADuplicate(t *testing.T) {
	for name, set := range map[string]func(s *faulty.Store[*memstore.Tx]){
		"seen at the rollback": func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Rollback, 1, store.ErrKeySurvived) },
		"seen at the commit": func(s *faulty.Store[*memstore.Tx]) {
			s.Fail(faulty.Commit, 1, errors.Join(store.ErrTransactionLost, store.ErrKeySurvived))
		},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			r := start(t, handle(func(context.Context, *memstore.Tx, *sekali.Message) error {
				if calls++; name == "seen at the rollback" {
					return errors.New("no")
				}
				return nil
			}), func(_ *sekali.Config[*memstore.Tx], r *rig) { set(r.store) })
			r.source.push("a")
			r.events.wait(t, 1, kind(sekali.DeadLettered))
			r.finish()
			if l := r.onlyLetter(); l.Reason != deadletter.Survived || calls != 1 {
				t.Errorf("the letter says %s after %d calls, want %s after 1", l.Reason, calls, deadletter.Survived)
			}
			r.wantTold("a", "ack")
		})
	}
}

func TestNothingIsAcknowledgedWhileItsDeadLetterCannotBeWritten(t *testing.T) {
	calls := 0
	r := start(t, handle(func(context.Context, *memstore.Tx, *sekali.Message) error {
		calls++
		return sekali.Permanent(errors.New("no"))
	}), func(c *sekali.Config[*memstore.Tx], r *rig) {
		sink := faulty.NewSink(r.memory.DeadLetters())
		sink.At(faulty.Put, func(call int) error {
			if told := r.source.told("a"); told != "" {
				t.Errorf("the broker was told %q before the letter was written", told)
			}
			if call <= 3 {
				return errors.New("disk full")
			}
			return nil
		})
		c.DeadLetters = sink
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	r.wantTold("a", "ack")
	if calls != 1 {
		t.Errorf("the handler was called %d times, want 1", calls)
	}
	r.onlyLetter()
}

func TestAMessageWithoutAKeyBecomesADeadLetter(t *testing.T) {
	for name, key := range map[string]sekali.KeyFunc{
		"none":     sekali.Header("idempotency-key"),
		"blank":    func(*sekali.Message) (string, error) { return " \n", nil },
		"a panic":  func(*sekali.Message) (string, error) { panic("oh") },
		"no error": func(*sekali.Message) (string, error) { return "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Key = key })
			r.source.push("a", "b")
			r.events.wait(t, 2, kind(sekali.DeadLettered))
			r.finish()
			r.wantCounter("sold", 0)
			r.wantTold("a", "ack")
			if letters := r.letters(); len(letters) != 2 || letters[0].Reason != deadletter.NoKey {
				t.Errorf("the letters are %+v, want two: the two are not one another's duplicates", letters)
			}
		})
	}
}

func TestTheSameKeyWithAnotherBodyIsNeverSkipped(t *testing.T) {
	r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Fingerprint = sekali.BodyFingerprint })
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	other := delivery("a", "")
	other.Message.Body = []byte("another body")
	r.source.pushed <- other
	r.source.push("a")
	r.events.wait(t, 3, kind(sekali.Finished))
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	r.wantCounter("sold", 1)
	if l := r.onlyLetter(); l.Reason != deadletter.Conflict || string(l.Message.Body) != "another body" {
		t.Errorf("the letter is %+v", l)
	}
}

func TestAKeyThatTravelsWithACopyWinsOnlyForItsConsumer(t *testing.T) {
	r := start(t)
	with := func(id, consumer, key string) {
		d := delivery(id, "")
		d.Message.Headers = broker.Headers{{Name: sekali.HeaderKey, Value: []byte(key)}}
		if consumer != "" {
			d.Message.Headers = append(d.Message.Headers, broker.Header{Name: sekali.HeaderConsumer, Value: []byte(consumer)})
		}
		r.source.pushed <- d
	}
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	with("copy", "stock-service", "a")     // the same message by its travelling key
	with("theirs", "courier-service", "a") // another consumer's copy
	with("hijack", "", "a")                // a producer's header of that name
	r.events.wait(t, 4, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold copy", 0)
	r.wantCounter("sold theirs", 1)
	r.wantCounter("sold hijack", 1)
}

func TestMessagesOfALaneTakeEffectInOrderEvenWhenOneFails(t *testing.T) {
	var mu sync.Mutex
	failed := map[string]int{}
	r := start(t, handle(func(_ context.Context, tx *memstore.Tx, m *sekali.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(m.ID, "3") && failed[m.ID] < 5 {
			failed[m.ID]++
			return errors.New("not now")
		}
		tx.Add(m.ID, 1)
		return nil
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 8 })
	var want []string
	for i := range 10 {
		for _, lane := range []string{"p0-", "p1-", "p2-"} {
			r.source.pushed <- delivery(fmt.Sprintf("%s%d", lane, i), lane)
		}
	}
	r.events.wait(t, 30, kind(sekali.Finished))
	r.finish()
	for _, lane := range []string{"p0-", "p1-", "p2-"} {
		want = want[:0]
		var got []string
		for i := range 10 {
			want = append(want, fmt.Sprintf("%s%d", lane, i))
		}
		for _, id := range r.memory.Log() {
			if strings.HasPrefix(id, lane) {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("lane %s took effect in the order %v", lane, got)
		}
	}
}

func TestADeliveryThatExpiredInTheBufferIsNotStarted(t *testing.T) {
	began, hold := make(chan struct{}), make(chan struct{})
	r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		if m.ID == "slow" {
			close(began)
			<-hold
		}
		return sell(ctx, tx, m)
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers = 1 })
	r.source.push("slow")
	<-began
	first, second := delivery("first", "p0"), delivery("second", "p0")
	r.source.pushed <- first
	r.source.pushed <- second
	r.events.wait(t, 3, kind(sekali.Received))
	first.Extend(-time.Second)
	close(hold)
	r.events.wait(t, 1, kind(sekali.Expired))
	r.events.wait(t, 1, kind(sekali.Released))
	r.finish()
	r.wantCounter("sold", 1)
	r.wantTold("first", "")
	r.wantTold("second", "retry") // it must not overtake the first
}

func TestAStopFinishesWhatIsInWorkAndGivesTheRestBack(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	r := start(t, handle(func(ctx context.Context, tx *memstore.Tx, m *sekali.Message) error {
		close(entered)
		<-hold
		if ctx.Err() != nil {
			t.Error("the handler's context ended before the drain time-out")
		}
		return sell(ctx, tx, m)
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers, c.Batch.Size = 1, 1 })
	r.source.push("a", "b")
	<-entered
	r.events.wait(t, 2, kind(sekali.Received))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.finish()
	}()
	r.events.wait(t, 1, kind(sekali.Released)) // b, while a is still in work
	close(hold)
	<-stopped
	r.wantCounter("sold", 1)
	r.wantTold("a", "ack")
	r.wantTold("b", "retry")
}

func TestAStopThatTakesTooLongCancelsTheHandlers(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, handle(func(ctx context.Context, _ *memstore.Tx, _ *sekali.Message) error {
		close(entered)
		<-ctx.Done()
		return sekali.Permanent(ctx.Err())
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.DrainTimeout = 10 * time.Millisecond })
	r.source.push("a")
	<-entered
	r.finish()
	r.wantTold("a", "retry")
	if len(r.letters()) != 0 {
		t.Error("a cancelled message became a dead letter")
	}
}

func TestAMessageThatWaitsForItsNextAttemptIsGivenBackAtAStop(t *testing.T) {
	r := start(t, handle(func(context.Context, *memstore.Tx, *sekali.Message) error { return errors.New("no") }),
		func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Backoff = sekali.Backoff{Initial: time.Hour, Max: time.Hour}
		})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.AttemptFailed))
	r.finish()
	r.wantTold("a", "retry")
}

func TestTheStoreIsCheckedBeforeAnythingIsReceived(t *testing.T) {
	schema := &store.SchemaError{Table: "processed_messages", Cause: "it is not there", Mend: "run sekali migrate up"}
	r := start(t, func(_ *sekali.Config[*memstore.Tx], r *rig) {
		r.store.At(faulty.Check, func(call int) error {
			if call <= 3 {
				return store.ErrUnavailable
			}
			return schema
		})
	})
	r.source.push("a")
	r.events.wait(t, 3, kind(sekali.CheckFailed))
	var got *store.SchemaError
	for r.source.closedTimes() == 0 {
		runtime.Gosched()
	}
	if err := r.stop(); !errors.As(err, &got) {
		t.Errorf("Run returned %v, want the schema error", err)
	}
	if n := r.events.count(kind(sekali.Received)); n != 0 {
		t.Errorf("%d messages were received", n)
	}
}

func (s *script) closedTimes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// noTable is a sink whose table is not there.
type noTable struct{ deadletter.Queue }

func (noTable) Check(context.Context) error {
	return &store.SchemaError{Table: "dead_letters", Cause: "it is not there", Mend: "run sekali migrate up"}
}

func TestADeadLetterTableThatIsNotThereIsFoundAtTheStart(t *testing.T) {
	consumer, err := sekali.NewConsumer(sekali.Config[*memstore.Tx]{
		Name: "n", Source: newScript(), Store: memstore.New(), Key: sekali.MessageID(), Handle: sell, DeadLetters: noTable{},
	})
	if err != nil {
		t.Fatal(err)
	}
	var schema *store.SchemaError
	if err := consumer.Run(t.Context()); !errors.As(err, &schema) || schema.Table != "dead_letters" {
		t.Errorf("Run returned %v", err)
	}
}

func TestTheLogSaysWhereAHandlerPanicked(t *testing.T) {
	var log bytes.Buffer
	logged := sekali.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	r := start(t, handle(panics), func(c *sekali.Config[*memstore.Tx], r *rig) { c.Observer = both{r.events, logged} })
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	if got := log.String(); !strings.Contains(got, "at=") || !strings.Contains(got, "consumer_test.go:") ||
		!strings.Contains(got, "sekali: started") || !strings.Contains(got, "sekali: stopped") {
		t.Errorf("the log is %s", got)
	}
}

func panics(context.Context, *memstore.Tx, *sekali.Message) error { panic("oh") }

// both tells two observers, one after another.
type both [2]sekali.Observer

func (b both) Observe(e sekali.Event) {
	b[1].Observe(e)
	b[0].Observe(e)
}

func TestTroubleWithTheBrokerPassesAndItsEndEndsTheRun(t *testing.T) {
	closed := make(chan struct{})
	r := start(t, func(_ *sekali.Config[*memstore.Tx], r *rig) {
		trouble := times(3, errors.New("no route"))
		r.source.receive = func() error {
			select {
			case <-closed:
				return fmt.Errorf("the stream is gone: %w", broker.ErrClosed)
			default:
				return trouble()
			}
		}
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.Finished))
	if n := r.events.count(kind(sekali.ReceiveFailed)); n != 3 {
		t.Errorf("%d failures were reported, want 3", n)
	}
	close(closed)
	r.source.push("b")
	for r.source.closedTimes() == 0 {
		runtime.Gosched()
	}
	if err := r.stop(); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("Run returned %v, want ErrClosed", err)
	}
	r.wantTold("a", "ack")
}

func TestALostAcknowledgementIsReportedAndCostsADuplicate(t *testing.T) {
	r := start(t, func(_ *sekali.Config[*memstore.Tx], r *rig) {
		lost := times(1, broker.ErrLost)
		r.source.settle = func([]broker.Settlement) error { return lost() }
	})
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.SettleFailed))
	r.source.push("a")
	r.events.wait(t, 2, kind(sekali.Finished))
	r.finish()
	r.wantCounter("sold", 1)
	r.wantTold("a", "ack")
}

// keptAlive is a script whose broker wants to be asked for more time.
type keptAlive struct{ *script }

func (k keptAlive) KeepAliveEvery() time.Duration { return time.Millisecond }

func (k keptAlive) KeepAlive(_ context.Context, d []*broker.Delivery) error {
	select {
	case k.alive <- d:
	default:
	}
	return nil
}

func TestDeliveriesInHandAreKeptAlive(t *testing.T) {
	hold := make(chan struct{})
	r := start(t, handle(func(_ context.Context, _ *memstore.Tx, m *sekali.Message) error {
		if m.ID == "retried" {
			return sekali.RetryAfter(errors.New("later"), time.Hour)
		}
		<-hold
		return nil
	}), func(c *sekali.Config[*memstore.Tx], r *rig) {
		c.Source = keptAlive{r.source}
		c.Workers = 1
	})
	r.source.push("retried")
	r.events.wait(t, 1, kind(sekali.AttemptFailed))
	r.source.push("working", "buffered")
	r.events.wait(t, 3, kind(sekali.Received))
	for len(<-r.source.alive) < 3 {
	}
	close(hold)
	r.events.wait(t, 2, kind(sekali.Finished))
	r.finish()
}

func TestDeliveriesAreNotHoarded(t *testing.T) {
	hold := make(chan struct{})
	r := start(t, handle(func(context.Context, *memstore.Tx, *sekali.Message) error {
		<-hold
		return nil
	}), func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Workers, c.Batch.Size = 2, 1 })
	for i := range 100 {
		r.source.push(fmt.Sprint(i))
	}
	r.events.wait(t, 6, kind(sekali.Received)) // two in work, four beside them
	if n := r.events.count(kind(sekali.Received)); n > 6 {
		t.Errorf("%d deliveries are in hand of two workers", n)
	}
	close(hold)
	r.events.wait(t, 100, kind(sekali.Finished))
	r.finish()
}

func TestAConfigThatCannotWorkIsRefusedWithWhatToChange(t *testing.T) {
	good := func() sekali.Config[*memstore.Tx] {
		return sekali.Config[*memstore.Tx]{Name: "n", Source: newScript(), Store: memstore.New(), Key: sekali.MessageID(), Handle: sell}
	}
	cases := map[string]func(c *sekali.Config[*memstore.Tx]){
		"Name":         func(c *sekali.Config[*memstore.Tx]) { c.Name = "" },
		"Name: ":       func(c *sekali.Config[*memstore.Tx]) { c.Name = strings.Repeat("n", 101) },
		"Source":       func(c *sekali.Config[*memstore.Tx]) { c.Source = nil },
		"Store":        func(c *sekali.Config[*memstore.Tx]) { c.Store = nil },
		"Key":          func(c *sekali.Config[*memstore.Tx]) { c.Key = nil },
		"Handle":       func(c *sekali.Config[*memstore.Tx]) { c.Handle = nil },
		"Workers":      func(c *sekali.Config[*memstore.Tx]) { c.Workers = -1 },
		"MaxAttempts":  func(c *sekali.Config[*memstore.Tx]) { c.MaxAttempts = -1 },
		"MaxConflicts": func(c *sekali.Config[*memstore.Tx]) { c.MaxConflicts = -1 },
		"MaxHeld":      func(c *sekali.Config[*memstore.Tx]) { c.Workers, c.MaxHeld = 10, 9 },
		"DrainTimeout": func(c *sekali.Config[*memstore.Tx]) { c.DrainTimeout = -1 },
		"Backoff":      func(c *sekali.Config[*memstore.Tx]) { c.Backoff = sekali.Backoff{Initial: 2, Max: 1} },
	}
	if _, err := sekali.NewConsumer(good()); err != nil {
		t.Errorf("a good config was refused: %v", err)
	}
	for field, spoil := range cases {
		cfg := good()
		spoil(&cfg)
		if _, err := sekali.NewConsumer(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: the error is %v", field, err)
		}
	}
}

func TestAConsumerRunsOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	consumer, err := sekali.NewConsumer(sekali.Config[*memstore.Tx]{
		Name: "n", Source: newScript(), Store: memstore.New(), Key: sekali.MessageID(), Handle: sell,
		Observer: sekali.LogTo(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		t.Errorf("the first run returned %v", err)
	}
	if err := consumer.Run(ctx); err == nil {
		t.Error("the second run returned nil")
	}
}
