package memstore

import (
	"context"

	"github.com/sekali/sekali/store"
)

var _ store.Unclaimer[*Tx] = (*Store)(nil)

// Unclaim implements store.Unclaimer.
func (s *Store) Unclaim(_ context.Context, tx *Tx, c store.Claim) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range c.Keys {
		one := key(c.Consumer, k.Raw)
		delete(tx.claimed, one)
		delete(s.claims, one)
	}
	return nil
}
