package sekali_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

func sold(n int) func(context.Context, *memstore.Tx) error {
	return func(_ context.Context, tx *memstore.Tx) error {
		tx.Add("sold", n)
		return nil
	}
}

func TestProcessRunsOncePerKey(t *testing.T) {
	ctx := context.Background()
	s := memstore.New()
	stock, courier := sekali.NewInbox(s, "stock-service"), sekali.NewInbox(s, "courier-service")
	for _, step := range []struct {
		inbox *sekali.Inbox[*memstore.Tx]
		key   string
		want  sekali.Outcome
		total int
	}{
		{stock, "order-42:paid", sekali.Processed, 1},
		{stock, "order-42:paid", sekali.Duplicate, 1},
		{stock, "ORDER-42:paid", sekali.Processed, 2},
		{courier, "order-42:paid", sekali.Processed, 3},
		{courier, "order-42:paid", sekali.Duplicate, 3},
	} {
		got, err := step.inbox.Process(ctx, step.key, sold(1))
		if err != nil || got != step.want || s.Counter("sold") != step.total {
			t.Errorf("key %q: %s, %v and %d sold; want %s and %d", step.key, got, err, s.Counter("sold"), step.want, step.total)
		}
	}
}

func TestProcessForgetsTheKeyWhenTheWorkFails(t *testing.T) {
	ctx := context.Background()
	s := memstore.New()
	stock := sekali.NewInbox(s, "stock-service")
	sad := errors.New("out of stock")
	outcome, err := stock.Process(ctx, "k", func(_ context.Context, tx *memstore.Tx) error {
		tx.Add("sold", 1)
		return sad
	})
	if outcome != 0 || !errors.Is(err, sad) || !strings.Contains(err.Error(), `"k"`) || s.Keys() != 0 || s.Counter("sold") != 0 {
		t.Errorf("%s, %v with %d keys and %d sold", outcome, err, s.Keys(), s.Counter("sold"))
	}
	if outcome, err := stock.Process(ctx, "k", sold(1)); outcome != sekali.Processed || err != nil {
		t.Errorf("the next delivery: %s, %v", outcome, err)
	}
}

func TestProcessRollsBackAndLetsAPanicAndAGoexitPass(t *testing.T) {
	s := memstore.New()
	stock := sekali.NewInbox(s, "stock-service")
	for name, leave := range map[string]func(){
		"panic":  func() { panic("oh") },
		"Goexit": runtime.Goexit,
	} {
		var wg sync.WaitGroup
		var recovered any
		wg.Go(func() {
			defer func() { recovered = recover() }()
			_, _ = stock.Process(context.Background(), "k", func(_ context.Context, tx *memstore.Tx) error {
				tx.Add("sold", 1)
				leave()
				return nil
			})
			t.Errorf("%s: Process returned", name)
		})
		wg.Wait()
		if (name == "panic") != (recovered == "oh") {
			t.Errorf("%s: recovered %v", name, recovered)
		}
		if s.Open() != 0 || s.Keys() != 0 || s.Counter("sold") != 0 {
			t.Errorf("%s: %d open transactions, %d keys, %d sold", name, s.Open(), s.Keys(), s.Counter("sold"))
		}
	}
}

func TestProcessRunsTheWholeAgainWhenItMust(t *testing.T) {
	unknown := fmt.Errorf("commit: %w", store.ErrCommitUnknown)
	cases := map[string]struct {
		set     func(s *faulty.Store[*memstore.Tx])
		outcome sekali.Outcome
	}{
		"others got in the way":                    {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Commit, 5, memstore.ErrBusy) }, sekali.Processed},
		"the commit happened, its answer was lost": {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.CommitAfter, 1, unknown) }, sekali.Duplicate},
		"the commit did not happen":                {func(s *faulty.Store[*memstore.Tx]) { s.Fail(faulty.Commit, 1, unknown) }, sekali.Processed},
		"the database is away after a lost answer": {func(s *faulty.Store[*memstore.Tx]) {
			s.Fail(faulty.CommitAfter, 1, unknown)
			s.At(faulty.Begin, func(call int) error {
				if call == 2 {
					return store.ErrUnavailable
				}
				return nil
			})
		}, sekali.Duplicate},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := memstore.New()
			s := faulty.NewStore(h)
			c.set(s)
			outcome, err := sekali.NewInbox(s, "stock-service").Process(context.Background(), "k", sold(1))
			if err != nil || outcome != c.outcome || h.Counter("sold") != 1 || h.Keys() != 1 {
				t.Errorf("%s, %v with %d sold and %d keys", outcome, err, h.Counter("sold"), h.Keys())
			}
		})
	}
}

func TestProcessLeavesAnOutageToItsCaller(t *testing.T) {
	s := faulty.NewStore(memstore.New())
	s.Fail(faulty.Begin, 1, store.ErrUnavailable)
	if _, err := sekali.NewInbox(s, "n").Process(context.Background(), "k", sold(1)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the error is %v", err)
	}
}

func TestACancelledContextIsNeverSuccess(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	h := memstore.New()
	s := faulty.NewStore(h)
	s.At(faulty.Commit, func(int) error { cancel(); return memstore.ErrBusy })
	outcome, err := sekali.NewInbox(s, "n").Process(ctx, "k", sold(1))
	if outcome != 0 || !errors.Is(err, context.Canceled) || h.Counter("sold") != 0 {
		t.Errorf("%s, %v with %d sold", outcome, err, h.Counter("sold"))
	}
}

func TestAConflictIsAnOutcomeAndAnError(t *testing.T) {
	ctx := context.Background()
	stock := sekali.NewInbox(memstore.New(), "n")
	with := func(body string) sekali.ClaimOption { return sekali.WithFingerprint(sekali.Fingerprint([]byte(body))) }
	if _, err := stock.Process(ctx, "k", sold(1), with("a")); err != nil {
		t.Fatal(err)
	}
	if outcome, err := stock.Process(ctx, "k", sold(1), with("a")); outcome != sekali.Duplicate || err != nil {
		t.Errorf("the same body: %s, %v", outcome, err)
	}
	if outcome, err := stock.Process(ctx, "k", sold(1), with("b")); outcome != sekali.Conflict || !errors.Is(err, sekali.ErrConflict) {
		t.Errorf("another body: %s, %v", outcome, err)
	}
	if outcome, err := stock.Process(ctx, "k", sold(1)); outcome != sekali.Duplicate || err != nil {
		t.Errorf("an unknown body: %s, %v", outcome, err)
	}
}

func TestBadKeysAndNamesAreErrorsAndNeverDuplicates(t *testing.T) {
	ctx := context.Background()
	stock := sekali.NewInbox(memstore.New(), "n")
	for _, key := range []string{"", " ", "\t\n"} {
		for range 2 {
			if outcome, err := stock.Process(ctx, key, sold(1)); outcome != 0 || !errors.Is(err, sekali.ErrNoKey) {
				t.Errorf("key %q: %s, %v", key, outcome, err)
			}
		}
	}
	for _, name := range []string{"", " n", strings.Repeat("n", 101), "a\x00b", "\xff"} {
		if outcome, err := sekali.NewInbox(memstore.New(), name).Process(ctx, "k", sold(1)); outcome != 0 || err == nil {
			t.Errorf("consumer %q: %s, %v", name, outcome, err)
		}
	}
}

func TestClaimWorksInTheCallersOwnTransaction(t *testing.T) {
	ctx := context.Background()
	s := memstore.New()
	stock := sekali.NewInbox(s, "n")
	own, _, err := s.Begin(ctx, store.Claim{Consumer: "other", Keys: []store.Key{{Raw: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	if fresh, err := stock.Claim(ctx, own, "k"); !fresh || err != nil {
		t.Errorf("the first claim: %v, %v", fresh, err)
	}
	if fresh, err := stock.Claim(ctx, own, " "); fresh || !errors.Is(err, sekali.ErrNoKey) {
		t.Errorf("a blank key: %v, %v", fresh, err)
	}
	if err := s.Commit(ctx, own); err != nil {
		t.Fatal(err)
	}
	next, states, err := s.Begin(ctx, store.Claim{Consumer: "n", Keys: []store.Key{{Raw: "k"}}})
	if err != nil || states[0] != store.Duplicate {
		t.Errorf("after the commit: %v, %v", states, err)
	}
	_ = s.Rollback(ctx, next)
}

func TestTwentyWorkersWithOneKeyHaveOneEffect(t *testing.T) {
	s := memstore.New()
	stock := sekali.NewInbox(s, "n")
	var wg sync.WaitGroup
	var processed, duplicates atomic.Int32
	for range 20 {
		wg.Go(func() {
			outcome, err := stock.Process(context.Background(), "k", func(_ context.Context, tx *memstore.Tx) error {
				tx.Add("sold", 1)
				runtime.Gosched()
				return nil
			})
			switch {
			case err != nil:
				t.Error(err)
			case outcome == sekali.Processed:
				processed.Add(1)
			case outcome == sekali.Duplicate:
				duplicates.Add(1)
			}
		})
	}
	wg.Wait()
	if processed.Load() != 1 || duplicates.Load() != 19 || s.Counter("sold") != 1 {
		t.Errorf("%d processed, %d duplicates, %d sold", processed.Load(), duplicates.Load(), s.Counter("sold"))
	}
}
