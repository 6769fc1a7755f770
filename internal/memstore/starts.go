package memstore

import (
	"context"

	"github.com/sekali/sekali/store"
)

// Starts returns the store's starts.
func (s *Store) Starts() store.Starts[*Tx] { return (*starts)(s) }

type starts Store

func (s *starts) Look(_ context.Context, consumer, raw string) (recorded bool, lone int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lone, recorded = s.starts[key(consumer, raw)]
	return recorded, lone, nil
}

func (s *starts) Start(_ context.Context, consumer, raw string, lone bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key(consumer, raw)
	n := s.starts[k]
	if lone {
		n++
	}
	s.starts[k] = n
	return n, nil
}

func (s *starts) TakeBack(_ context.Context, consumer, raw string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := key(consumer, raw); s.starts[k] > 0 {
		s.starts[k]--
	}
	return nil
}

func (s *starts) End(_ context.Context, consumer, raw string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.starts, key(consumer, raw))
	return nil
}

func (s *starts) EndIn(_ context.Context, tx *Tx, consumer, raw string) error {
	tx.endsOf = append(tx.endsOf, key(consumer, raw))
	return nil
}

func (s *starts) Check(context.Context) error { return nil }
