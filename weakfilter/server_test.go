//go:build !fast

package weakfilter_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/redistest"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/weakfilter"
)

// bench is a filter with a name of its own.
type bench struct {
	*testing.T
	client *redis.Client
	name   string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	b := &bench{t, redistest.Client(t), redistest.Key(t)}
	t.Cleanup(func() {
		ctx, c := context.Background(), redis.NewClient(redistest.Options(b))
		defer func() { _ = c.Close() }()
		for _, key := range c.Keys(ctx, "*"+b.name+"*").Val() {
			if err := c.Del(ctx, key).Err(); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func (b *bench) filter(lease time.Duration, edit ...func(*weakfilter.Config)) *weakfilter.Filter {
	b.Helper()
	return b.filterOn(b.client, lease, edit...)
}

func (b *bench) filterOn(c redis.UniversalClient, lease time.Duration, edit ...func(*weakfilter.Config)) *weakfilter.Filter {
	b.Helper()
	cfg := weakfilter.Config{Name: b.name, Lease: lease}
	for _, e := range edit {
		e(&cfg)
	}
	f, err := weakfilter.New(c, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// at is where Redis has a key.
func (b *bench) at(key string) string {
	return fmt.Sprintf("sekali:weak:%d:%s:%s", len(b.name), b.name, key)
}

// do wants an outcome of work that succeeds, and tells whether it was done.
func (b *bench) do(f *weakfilter.Filter, key string, want weakfilter.Outcome) error {
	b.Helper()
	ran := false
	outcome, err := f.Do(b.Context(), key, func(context.Context) error {
		ran = true
		return nil
	})
	if outcome != want || ran != (want == weakfilter.Processed) {
		b.Errorf("key %q: %v, %v, work done: %v; want %v", key, outcome, err, ran, want)
	}
	return err
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func TestWorkIsDoneOnceAndARepeatIsADuplicate(t *testing.T) {
	b := newBench(t)
	f := b.filter(time.Second, func(c *weakfilter.Config) { c.Retention = time.Hour })
	b.ok(b.do(f, "mail-1", weakfilter.Processed))
	b.ok(b.do(f, "mail-1", weakfilter.Duplicate))
	b.ok(b.do(f, "mail-2", weakfilter.Processed))
	b.ok(b.do(b.filter(time.Second, func(c *weakfilter.Config) { c.Name += "2" }), "mail-1", weakfilter.Processed))
	if left := b.client.PTTL(t.Context(), b.at("mail-1")).Val(); left < 59*time.Minute || left > time.Hour {
		t.Errorf("it is remembered for %v, want an hour", left)
	}
}

func TestKeysAreTakenByteForByteAndNamesDoNotMix(t *testing.T) {
	b := newBench(t)
	f := b.filter(time.Second)
	long := strings.Repeat("k", 300)
	keys := []string{"a", "A", "a ", "\x00", "\xff", long, long + "k", store.StoredKey(long), "é", "e\u0301"}
	for _, want := range []weakfilter.Outcome{weakfilter.Processed, weakfilter.Duplicate} {
		for _, key := range keys {
			b.ok(b.do(f, key, want))
		}
	}
	// "x:" + "1" and "x" + ":1".
	one := b.filter(time.Second, func(c *weakfilter.Config) { c.Name += ":" })
	b.ok(b.do(one, "1", weakfilter.Processed))
	b.ok(b.do(f, ":1", weakfilter.Processed))
}

func TestOfManyAtOnceOneDoesTheWork(t *testing.T) {
	b := newBench(t)
	f := b.filter(time.Second)
	var (
		mu       sync.Mutex
		outcomes = map[weakfilter.Outcome]int{}
		wg       sync.WaitGroup
	)
	begun, others := make(chan struct{}), sync.WaitGroup{}
	others.Add(19)
	for i := range 20 {
		wg.Go(func() {
			if i > 0 {
				<-begun
			}
			outcome, err := f.Do(t.Context(), "mail", func(context.Context) error {
				close(begun)
				others.Wait()
				return nil
			})
			if i > 0 {
				defer others.Done()
				var later *weakfilter.InProgressError
				if !errors.As(err, &later) || later.RetryAfter() <= 0 || later.RetryAfter() > time.Second || later.Key != "mail" {
					t.Errorf("%v, %v", outcome, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[outcome]++
		})
	}
	wg.Wait()
	if outcomes[weakfilter.Processed] != 1 || outcomes[weakfilter.InProgress] != 19 {
		t.Errorf("the outcomes are %v", outcomes)
	}
	b.ok(b.do(f, "mail", weakfilter.Duplicate))
}

func TestWorkThatFailsIsAnybodysAgain(t *testing.T) {
	b := newBench(t)
	f := b.filter(time.Minute)
	refused := errors.New("the mail server refuses")
	gone, cancel := context.WithCancel(t.Context())
	for name, work := range map[string]func(context.Context) error{
		"an error": func(context.Context) error { return refused },
		"a cancelled context": func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return fmt.Errorf("%w: %w", refused, context.Cause(ctx))
		},
		"a panic":   func(context.Context) error { panic(refused) },
		"a nil one": func(context.Context) error { panic(nil) }, //nolint:govet // as users do
		"Goexit":    func(context.Context) error { runtime.Goexit(); return nil },
	} {
		var err error
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			var outcome weakfilter.Outcome
			outcome, err = f.Do(gone, "mail", work)
			if outcome != weakfilter.Failed || !errors.Is(err, refused) {
				t.Errorf("%s: %v, %v", name, outcome, err)
			}
		}()
		panicked := <-ended
		if name == "a panic" && panicked != refused {
			t.Errorf("the panic came out as %v", panicked)
		}
		if n := b.client.Exists(t.Context(), b.at("mail")).Val(); n != 0 {
			t.Errorf("%s: the claim is still there", name)
		}
		if gone.Err() != nil {
			gone, cancel = context.WithCancel(t.Context())
		}
	}
	cancel()
	b.ok(b.do(f, "mail", weakfilter.Processed))
	if outcome, err := f.Do(gone, "other", func(context.Context) error { return nil }); outcome != weakfilter.Failed || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that had ended: %v, %v", outcome, err)
	}
}

func TestWorkThatSucceedsAfterItsContextEndedIsRecorded(t *testing.T) {
	b := newBench(t)
	f := b.filter(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	outcome, err := f.Do(ctx, "mail", func(context.Context) error { cancel(); return nil })
	if outcome != weakfilter.Processed || err != nil {
		t.Errorf("%v, %v", outcome, err)
	}
	b.ok(b.do(f, "mail", weakfilter.Duplicate))
}

func TestTheLeaseIsRenewedWhileTheWorkRuns(t *testing.T) {
	b := newBench(t)
	const lease = 300 * time.Millisecond
	f := b.filter(lease)
	outcome, err := f.Do(t.Context(), "mail", func(ctx context.Context) error {
		limit := time.After(4 * lease)
		for {
			select {
			case <-limit:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(lease / 4):
				_ = b.do(f, "mail", weakfilter.InProgress)
			}
		}
	})
	if outcome != weakfilter.Processed || err != nil {
		t.Errorf("%v, %v", outcome, err)
	}
}

func TestADeadOwnersWorkIsAnybodysWhenItsLeaseIsOver(t *testing.T) {
	b := newBench(t)
	const lease = 400 * time.Millisecond
	b.ok(b.client.Set(t.Context(), b.at("mail"), "claim of the dead", lease).Err())
	f := b.filter(time.Second)
	var later *weakfilter.InProgressError
	if err := b.do(f, "mail", weakfilter.InProgress); !errors.As(err, &later) || later.After > lease {
		t.Fatalf("got %v", err)
	}
	<-time.After(later.After + 10*time.Millisecond)
	b.ok(b.do(f, "mail", weakfilter.Processed))
}

// late is a call whose claim is gone when its work ends.
func (b *bench) late(key string, end error, meanwhile func()) (weakfilter.Outcome, error) {
	return b.filter(time.Minute).Do(b.Context(), key, func(context.Context) error {
		b.ok(b.client.Del(b.Context(), b.at(key)).Err()) // as if its lease were over
		meanwhile()
		return end
	})
}

func TestALateFinisherChangesNothing(t *testing.T) {
	b := newBench(t)
	failed := errors.New("refused")
	for name, x := range map[string]struct {
		end    error
		other  func(context.Context) error // the work of who took over
		late   weakfilter.Outcome
		stored string // before and after
	}{
		"success, another has done it":   {nil, func(context.Context) error { return nil }, weakfilter.Processed, "done"},
		"failure, another has done it":   {failed, func(context.Context) error { return nil }, weakfilter.Failed, "done"},
		"success, another has failed":    {nil, func(context.Context) error { return failed }, weakfilter.Processed, ""},
		"failure, another has failed":    {failed, func(context.Context) error { return failed }, weakfilter.Failed, ""},
		"success, another is still busy": {nil, nil, weakfilter.Processed, "claim of another"},
		"failure, another is still busy": {failed, nil, weakfilter.Failed, "claim of another"},
	} {
		outcome, err := b.late(name, x.end, func() {
			if x.other == nil {
				b.ok(b.client.Set(t.Context(), b.at(name), x.stored, time.Minute).Err())
				return
			}
			_, _ = b.filter(time.Minute).Do(t.Context(), name, x.other)
		})
		if outcome != x.late {
			t.Errorf("%s: %v, %v", name, outcome, err)
		}
		if x.end == nil && x.stored != "done" && (!errors.Is(err, weakfilter.ErrNotRecorded) || !errors.Is(err, weakfilter.ErrLeaseLost)) {
			t.Errorf("%s: the error is %v", name, err)
		}
		if got := b.client.Get(t.Context(), b.at(name)).Val(); got != x.stored {
			t.Errorf("%s: Redis has %q, want %q", name, got, x.stored)
		}
	}
}

// told waits until work's context ends, and returns why.
func told(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(20 * time.Second):
		return errors.New("nobody has told")
	}
}

func TestWorkWhoseClaimIsLostIsToldSo(t *testing.T) {
	b := newBench(t)
	f := b.filter(300 * time.Millisecond)
	outcome, err := f.Do(t.Context(), "mail", func(ctx context.Context) error {
		b.ok(b.client.Set(t.Context(), b.at("mail"), "claim of another", time.Minute).Err())
		return told(ctx)
	})
	if outcome != weakfilter.Failed || !errors.Is(err, weakfilter.ErrLeaseLost) {
		t.Errorf("%v, %v", outcome, err)
	}
}

// proxied is a client that reaches the server through a proxy.
func (b *bench) proxied() (*faulty.Proxy, *redis.Client) {
	b.Helper()
	o := redistest.Options(b)
	proxy, err := faulty.NewProxy(o.Addr)
	b.ok(err)
	b.Cleanup(func() { _ = proxy.Close() })
	o.Addr, o.DialerRetries, o.MaxRetryBackoff = proxy.Addr(), 1, 10*time.Millisecond
	c := redis.NewClient(o)
	b.Cleanup(func() { _ = c.Close() })
	return proxy, c
}

func TestWorkThatIsCutOffFromRedisForALeaseIsToldSo(t *testing.T) {
	b := newBench(t)
	proxy, c := b.proxied()
	f := b.filterOn(c, 300*time.Millisecond)
	outcome, err := f.Do(t.Context(), "mail", func(ctx context.Context) error {
		proxy.Refuse()
		proxy.Cut()
		return told(ctx)
	})
	if outcome != weakfilter.Failed || !errors.Is(err, weakfilter.ErrLeaseLost) || !strings.Contains(err.Error(), "could not be taken back") {
		t.Errorf("%v, %v", outcome, err)
	}
}

func TestSuccessThatCannotBeRecordedIsSaidSo(t *testing.T) {
	b := newBench(t)
	proxy, c := b.proxied()
	f := b.filterOn(c, time.Second)
	outcome, err := f.Do(t.Context(), "mail", func(context.Context) error {
		proxy.Refuse()
		proxy.Cut()
		return nil
	})
	if outcome != weakfilter.Processed || !errors.Is(err, weakfilter.ErrNotRecorded) {
		t.Errorf("%v, %v", outcome, err)
	}
}

// What go-redis sends again, for the answer was lost, must not take the first
// for somebody else's.
func TestLostAnswersChangeNothing(t *testing.T) {
	b := newBench(t)
	b.ok(b.do(b.filter(time.Second), "loads the scripts", weakfilter.Processed))
	proxy, c := b.proxied()
	f := b.filterOn(c, time.Minute)
	take := proxy.DropAnswer(b.at("mail"), 1)
	outcome, err := f.Do(t.Context(), "mail", func(context.Context) error {
		proxy.DropAnswer(b.at("mail"), 1)
		return nil
	})
	if outcome != weakfilter.Processed || err != nil || take.Fired() != 1 {
		t.Errorf("%v, %v", outcome, err)
	}
	b.ok(b.do(f, "mail", weakfilter.Duplicate))
}
