package memstore

import (
	"context"
	"time"

	"github.com/sekali/sekali/store"
)

// Marks returns the marks that Prune leaves.
func (s *Store) Marks() store.Marks[*Tx] { return (*marks)(s) }

type marks Store

// MarkIn implements store.Marks.
func (m *marks) MarkIn(ctx context.Context, _ *Tx, consumer string) (time.Time, error) {
	return m.Mark(ctx, consumer)
}

// Mark implements store.Marks.
func (m *marks) Mark(_ context.Context, consumer string) (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.pruned[consumer], nil
}

// Prune removes all keys of a consumer, and leaves a mark.
func (s *Store) Prune(consumer string, mark time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.rows {
		if k.consumer == consumer {
			delete(s.rows, k)
		}
	}
	s.pruned[consumer] = mark
}

// Mark leaves a mark as if keys that nobody knows had been removed.
func (s *Store) Mark(consumer string, mark time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruned[consumer] = mark
}

// MarksRead returns how often a mark was asked for.
func (s *Store) MarksRead() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}
