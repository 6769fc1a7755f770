// Package memstore is a store in memory, for tests of what stands above
// stores and for measuring what Sekali itself costs. It has the states, the
// waiting and the rollback of a real one, and loses everything with the
// process, so it is not for users.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sekali/sekali/store"
)

// ErrBusy is an error that Classify calls a conflict, for handlers that play
// a deadlock.
var ErrBusy = errors.New("another transaction got in the way")

type id struct{ consumer, key string }

// Store is a store whose business data are counters by name.
type Store struct {
	mu       sync.Mutex
	rows     map[id][]byte        // committed keys with their fingerprints
	claims   map[id]chan struct{} // claims of open transactions, closed at their end
	counters map[string]int
	log      []string // counters in the order in which they were changed
	letters  []*letter
	effects  []*effectRow
	versions map[id]int64
	starts   map[id]int // lone starts that have not ended
	open     int
	pruned   map[string]time.Time // marks by consumer
	asked    int                  // how often for a mark
}

var _ store.Store[*Tx] = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{rows: map[id][]byte{}, claims: map[id]chan struct{}{}, counters: map[string]int{}, starts: map[id]int{}, versions: map[id]int64{}, pruned: map[string]time.Time{}}
}

// Tx is a transaction.
type Tx struct {
	s       *Store
	claimed map[id][]byte
	ended   chan struct{}
	added   map[string]int
	names   []string // of what was added, in order
	endsOf  []id     // starts that end with it
	done    bool
	force   bool
	raised  map[id]int64
	at      []func() // what its commit does besides
}

// Add changes a counter, when the transaction commits.
func (t *Tx) Add(counter string, n int) {
	t.added[counter] += n
	t.names = append(t.names, counter)
}

// Begin implements store.Store.
func (s *Store) Begin(ctx context.Context, c store.Claim) (*Tx, []store.State, error) {
	tx := &Tx{s: s, claimed: map[id][]byte{}, ended: make(chan struct{}), added: map[string]int{}}
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	tx.force = c.Force
	states, err := s.Claim(ctx, tx, c)
	if err != nil {
		s.end(tx, false)
		return nil, nil, err
	}
	return tx, states, nil
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, tx *Tx, c store.Claim) ([]store.State, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	order := make([]int, len(c.Keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return strings.Compare(store.StoredKey(c.Keys[a].Raw), store.StoredKey(c.Keys[b].Raw))
	})
	states := make([]store.State, len(c.Keys))
	for _, i := range order {
		state, err := s.claimOne(ctx, tx, id{c.Consumer, store.StoredKey(c.Keys[i].Raw)}, c.Keys[i].Fingerprint)
		if err != nil {
			return nil, err
		}
		states[i] = state
	}
	return states, nil
}

func (s *Store) claimOne(ctx context.Context, tx *Tx, k id, fingerprint []byte) (store.State, error) {
	for {
		s.mu.Lock()
		rival, claimed := s.claims[k]
		if !claimed {
			defer s.mu.Unlock()
			stored, there := s.rows[k]
			if there && !tx.force {
				return against(stored, fingerprint), nil
			}
			s.claims[k] = tx.ended
			tx.claimed[k] = fingerprint
			return store.Fresh, nil
		}
		s.mu.Unlock()
		select {
		case <-rival:
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for a rival's claim: %w", ctx.Err())
		}
	}
}

func against(stored, given []byte) store.State {
	if stored != nil && given != nil && string(stored) != string(given) {
		return store.Conflict
	}
	return store.Duplicate
}

// Commit implements store.Store.
func (s *Store) Commit(_ context.Context, tx *Tx) error {
	if tx.done {
		return store.ErrTransactionLost
	}
	s.end(tx, true)
	return nil
}

// Rollback implements store.Store.
func (s *Store) Rollback(_ context.Context, tx *Tx) error {
	if !tx.done {
		s.end(tx, false)
	}
	return nil
}

func (s *Store) end(tx *Tx, commit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, fingerprint := range tx.claimed {
		delete(s.claims, k)
		if commit {
			s.rows[k] = fingerprint
		}
	}
	if commit {
		for name, n := range tx.added {
			s.counters[name] += n
		}
		s.log = append(s.log, tx.names...)
		for _, k := range tx.endsOf {
			delete(s.starts, k)
		}
		for _, f := range tx.at {
			f()
		}
	}
	tx.done = true
	s.open--
	close(tx.ended)
}

// Seen implements store.Store.
func (s *Store) Seen(_ context.Context, c store.Claim) ([]store.State, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	states := make([]store.State, len(c.Keys))
	for i, k := range c.Keys {
		if stored, there := s.rows[id{c.Consumer, store.StoredKey(k.Raw)}]; there {
			states[i] = against(stored, k.Fingerprint)
		}
	}
	return states, nil
}

// Classify implements store.Store.
func (s *Store) Classify(err error) store.Class {
	var schema *store.SchemaError
	switch {
	case errors.As(err, &schema):
		return store.ClassMisconfigured
	case errors.Is(err, store.ErrUnavailable):
		return store.ClassUnavailable
	case errors.Is(err, ErrBusy):
		return store.ClassConflict
	}
	return store.ClassFailed
}

// Check implements store.Store.
func (s *Store) Check(context.Context) error { return nil }

// Counter returns the committed value of a counter.
func (s *Store) Counter(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters[name]
}

// Log returns the counters that committed transactions changed, in the order
// in which that took effect.
func (s *Store) Log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Keys returns how many keys are committed.
func (s *Store) Keys() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rows)
}

// Open returns how many transactions from Begin have not ended.
func (s *Store) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Forget removes a committed key, as a pruner does.
func (s *Store) Forget(consumer, raw string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, key(consumer, raw))
}
