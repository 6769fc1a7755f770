package memstore

import (
	"context"

	"github.com/sekali/sekali/store"
)

// Versions returns the store's versions of entities. Transactions that raise
// one at once do not wait for each other.
func (s *Store) Versions() store.Versions[*Tx] { return (*versions)(s) }

type versions Store

func (v *versions) Advance(_ context.Context, tx *Tx, consumer, entity string, version int64) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := key(consumer, entity)
	newest, known := v.versions[k]
	if mine, raised := tx.raised[k]; raised && (!known || mine > newest) {
		newest, known = mine, true
	}
	if known && newest > version {
		return true, nil
	}
	if tx.raised == nil {
		tx.raised = map[id]int64{}
	}
	tx.raised[k] = version
	tx.at = append(tx.at, func() { v.versions[k] = max(version, v.versions[k]) })
	return false, nil
}

func (v *versions) Stale(_ context.Context, consumer, entity string, version int64) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	newest, known := v.versions[key(consumer, entity)]
	return known && newest > version, nil
}

func (v *versions) Check(context.Context) error { return nil }
