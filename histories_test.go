package sekali_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

// A history is a random run of a Consumer: messages with repeats, other bodies
// under the same key and ordering keys; handlers that fail, panic, exit, meet
// conflicts or are slow; a store that fails at any boundary; stops in the
// middle. Whatever happens, the store must hold in the end what processing the
// messages one at a time would have left.

// fate is what the handler does with a key.
type fate struct {
	failures  int // attempts in vain before it succeeds
	how       int
	permanent bool
}

type history struct {
	seed     uint64
	chance   *rand.Rand
	cfg      sekali.Config[*memstore.Tx]
	messages []broker.Message
	fates    map[string]*fate
	lanes    int
	mu       sync.Mutex
}

func newHistory(seed uint64, size int) *history {
	h := &history{seed: seed, chance: rand.New(rand.NewPCG(seed, 7)), fates: map[string]*fate{}}
	n := 1 + h.chance.IntN(60)
	keys, entities := 1+h.chance.IntN(n), 1+h.chance.IntN(8)
	h.lanes = h.chance.IntN(4)
	for i := range n {
		key := fmt.Sprint("k", h.chance.IntN(keys))
		body := "body of " + key
		if h.chance.IntN(20) == 0 {
			body += fmt.Sprint(", version ", h.chance.IntN(2))
		}
		entity := fmt.Sprint("e", h.chance.IntN(entities))
		m := broker.Message{ID: strconv.Itoa(i), Topic: "t", Body: []byte(body), Headers: broker.Headers{
			{Name: "key", Value: []byte(key)}, {Name: "entity", Value: []byte(entity)},
		}}
		if h.chance.IntN(5) > 0 {
			m.OrderingKey = []byte(entity)
		}
		h.messages = append(h.messages, m)
		if h.fates[key] == nil {
			f := &fate{how: h.chance.IntN(5)}
			if h.chance.IntN(4) == 0 {
				f.failures = h.chance.IntN(4)
			}
			f.permanent = h.chance.IntN(15) == 0
			h.fates[key] = f
		}
	}
	h.cfg = sekali.Config[*memstore.Tx]{
		Name: "c", Key: sekali.Header("key"), Fingerprint: sekali.BodyFingerprint,
		Workers: 1 + h.chance.IntN(4), Batch: sekali.Batch{Size: size},
		Backoff: sekali.Backoff{Initial: time.Microsecond, Max: 50 * time.Microsecond}, MaxAttempts: 1000,
	}
	if h.chance.IntN(4) == 0 {
		h.cfg.Batch.MaxOpen = time.Microsecond // each batch ends early
	}
	if h.chance.IntN(3) == 0 {
		h.cfg.HandleBatch = h.handleBatch
	} else {
		h.cfg.Handle = h.handle
	}
	return h
}

func (h *history) handle(_ context.Context, tx *memstore.Tx, m *sekali.Message) error {
	h.mu.Lock()
	f := h.fates[m.Key()]
	fail := f.permanent || f.failures > 0
	if !f.permanent && f.failures > 0 {
		f.failures--
	}
	h.mu.Unlock()
	tx.Add("effect "+m.Key(), 1)
	tx.Add(fmt.Sprint("order ", m.ID), 1)
	clear(m.Body) // it is the handler's own
	switch {
	case !fail:
		return nil
	case f.permanent:
		return sekali.Permanent(errBad)
	}
	switch f.how {
	case 0:
		panic("bad")
	case 1:
		runtime.Goexit()
	case 2:
		return memstore.ErrBusy
	case 3:
		return sekali.RetryAfter(errBad, time.Microsecond)
	}
	return errBad
}

func (h *history) handleBatch(ctx context.Context, tx *memstore.Tx, all []*sekali.Message) error {
	for i, m := range all {
		if err := h.handle(ctx, tx, m); err != nil {
			if i%2 == 0 {
				return &store.FailedAt{Index: i, Err: err}
			}
			return err
		}
	}
	return nil
}

// run plays the history, and returns what is left.
func (h *history) run(t *testing.T) *memstore.Store {
	b := membroker.New(membroker.Options{Lanes: h.lanes})
	memory := memstore.New()
	failing := faulty.NewStore[*memstore.Tx](memory)
	for point, err := range map[faulty.Point]error{
		faulty.Begin: store.ErrUnavailable, faulty.Commit: memstore.ErrBusy, faulty.CommitAfter: store.ErrCommitUnknown,
	} {
		if h.chance.IntN(3) == 0 {
			failing.Fail(point, h.chance.IntN(4), err)
		}
	}
	if h.chance.IntN(6) == 0 {
		failing.Fail(faulty.Commit, 1+h.chance.IntN(3), store.ErrTransactionLost)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	half := h.chance.IntN(len(h.messages) + 1)
	h.publish(t, b, h.messages[:half])
	for stops := h.chance.IntN(3); ; stops-- { // consumers one after another
		cfg := h.cfg
		cfg.Source, cfg.Store = b.NewSource("c"), failing
		events := newEvents()
		cfg.Observer = events
		c, err := sekali.NewConsumer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		if stops > 0 {
			time.Sleep(time.Duration(h.chance.IntN(300)) * time.Microsecond)
		} else {
			h.publish(t, b, h.messages[half:])
			if err := b.WaitEmpty(ctx, "c"); err != nil {
				t.Errorf("history %d does not end: %v. %s", h.seed, err, events.summary())
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("history %d: Run returned %v", h.seed, err)
		}
		if stops <= 0 {
			return memory
		}
	}
}

func (h *history) publish(t *testing.T, b *membroker.Broker, m []broker.Message) {
	if err := b.Publish(t.Context(), m...); err != nil {
		t.Fatal(err)
	}
}

// check compares what is left with what one at a time would have left.
func (h *history) check(memory *memstore.Store) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	bodies, entities := map[string]map[string]bool{}, map[string]string{}
	for _, m := range h.messages {
		key, _ := m.Headers.Get("key")
		if bodies[string(key)] == nil {
			bodies[string(key)] = map[string]bool{}
		}
		bodies[string(key)][string(m.Body)] = true
		if m.OrderingKey != nil {
			entities[m.ID] = string(m.OrderingKey)
		}
	}
	letters := map[string][]deadletter.Letter{}
	all, _ := memory.DeadLetters().List(context.Background(), deadletter.Filter{})
	for _, l := range all {
		letters[l.Key] = append(letters[l.Key], l)
		if !bodies[l.Key][string(l.Message.Body)] {
			wrong("the letter of %s has the body %q", l.Key, l.Message.Body)
		}
	}
	for key, variants := range bodies {
		effect, want, reason := memory.Counter("effect "+key), 1, deadletter.Conflict
		lettersWanted := len(variants) - 1
		if h.fates[key].permanent {
			want, reason, lettersWanted = 0, deadletter.Permanent, len(variants)
		}
		if effect != want {
			wrong("%s had its effect %d times, want %d", key, effect, want)
		}
		if len(letters[key]) != lettersWanted {
			wrong("%s has %d letters, want %d", key, len(letters[key]), lettersWanted)
		}
		for _, l := range letters[key] {
			if l.Reason != reason {
				wrong("%s is a dead letter for %s: %s", key, l.Reason, l.Error)
			}
		}
	}
	last := map[string]int{}
	for _, name := range memory.Log() {
		id, is := strings.CutPrefix(name, "order ")
		if entity := entities[id]; is && entity != "" {
			n, _ := strconv.Atoi(id)
			if before, ok := last[entity]; ok && before > n && h.lanes > 0 {
				wrong("%s took effect in the order %d, %d", entity, before, n)
			}
			last[entity] = n
		}
	}
	if n := memory.Open(); n > 0 {
		wrong("%d transactions are open", n)
	}
	return errs
}

// howManyHistories is SEKALI_TEST_HISTORIES, or else enough for every run.
func howManyHistories() int {
	if n, err := strconv.Atoi(os.Getenv("SEKALI_TEST_HISTORIES")); err == nil {
		return n
	}
	return 400
}

func TestAnyHistoryLeavesWhatOneMessageAtATimeWouldHaveLeft(t *testing.T) {
	for _, size := range []int{1, 7, 100} {
		t.Run(fmt.Sprint("batches of ", size), func(t *testing.T) {
			t.Parallel()
			base := rand.Uint64()
			if s, err := strconv.ParseUint(os.Getenv("SEKALI_TEST_SEED"), 10, 64); err == nil {
				base = s
			}
			for i := range howManyHistories() {
				h := newHistory(base+uint64(i), size)
				if errs := h.check(h.run(t)); len(errs) > 0 || t.Failed() {
					t.Fatalf("history %d (repeat it with SEKALI_TEST_SEED=%d): %v", i, h.seed, errors.Join(errs...))
				}
			}
		})
	}
}
