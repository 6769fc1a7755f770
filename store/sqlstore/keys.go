package sqlstore

import (
	"bytes"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/sekali/sekali/store"
)

// Keys are the keys of one claim, sorted by the bytes of their stored forms:
// two claims that insert in that order cannot deadlock. It is for one
// goroutine.
type Keys struct {
	// Consumer is the claim's.
	Consumer string

	keys   []Key
	places []int         // of keys, in the claim
	states []store.State // in the order of the claim
	known  []bool        // of keys
}

// Key is one key on its way into the table.
type Key struct {
	// Stored is its stored form.
	Stored string
	// Fingerprint of the body, 32 bytes, or nil.
	Fingerprint []byte
}

func newKeys(c store.Claim) *Keys {
	n := len(c.Keys)
	k := &Keys{
		Consumer: c.Consumer, keys: make([]Key, n), places: make([]int, n),
		states: make([]store.State, n), known: make([]bool, n),
	}
	stored := make([]string, n)
	for i, key := range c.Keys {
		stored[i], k.places[i] = store.StoredKey(key.Raw), i
	}
	slices.SortFunc(k.places, func(a, b int) int { return strings.Compare(stored[a], stored[b]) })
	for i, place := range k.places {
		k.keys[i] = Key{Stored: stored[place], Fingerprint: c.Keys[place].Fingerprint}
		if len(k.keys[i].Fingerprint) == 0 {
			k.keys[i].Fingerprint = nil
		}
	}
	return k
}

// stored returns the stored forms of all keys, sorted.
func (k *Keys) stored() []string {
	stored := make([]string, len(k.keys))
	for i, key := range k.keys {
		stored[i] = key.Stored
	}
	return stored
}

// Pending returns the keys whose state is not known yet, sorted.
func (k *Keys) Pending() []Key {
	pending := make([]Key, 0, len(k.keys))
	for i, key := range k.keys {
		if !k.known[i] {
			pending = append(pending, key)
		}
	}
	return pending
}

// Claimed returns the stored forms of the keys that are fresh, sorted.
func (k *Keys) Claimed() []string {
	var claimed []string
	for i, key := range k.keys {
		if k.known[i] && k.states[k.places[i]] == store.Fresh {
			claimed = append(claimed, key.Stored)
		}
	}
	return claimed
}

// HasFingerprints tells whether a key of the claim has a fingerprint.
func (k *Keys) HasFingerprints() bool {
	return slices.ContainsFunc(k.keys, func(key Key) bool { return key.Fingerprint != nil })
}

// Fresh notes that a key was inserted.
func (k *Keys) Fresh(stored string) error { return k.settle(stored, store.Fresh) }

// Found notes that a key was there with a fingerprint; nil if it is unknown,
// which never makes a conflict.
func (k *Keys) Found(stored string, fingerprint []byte) error {
	state := store.Duplicate
	if i, ok := k.find(stored); ok && fingerprint != nil && k.keys[i].Fingerprint != nil &&
		!bytes.Equal(fingerprint, k.keys[i].Fingerprint) {
		state = store.Conflict
	}
	return k.settle(stored, state)
}

func (k *Keys) find(stored string) (int, bool) {
	return slices.BinarySearchFunc(k.keys, stored, func(key Key, s string) int {
		return strings.Compare(key.Stored, s)
	})
}

// settle fails only if a key column gives back other bytes than it was given.
func (k *Keys) settle(stored string, state store.State) error {
	i, ok := k.find(stored)
	if !ok {
		return fmt.Errorf("the server answered for key %q, which was not asked for", stored)
	}
	k.states[k.places[i]], k.known[i] = state, true
	return nil
}

// settleAll gives a state to the pending keys that match.
func (k *Keys) settleAll(state store.State, match func(Key) bool) {
	for i, key := range k.keys {
		if !k.known[i] && match(key) {
			k.states[k.places[i]], k.known[i] = state, true
		}
	}
}

func (k *Keys) more() bool { return slices.Contains(k.known, false) }

// Args returns the parameters of a statement about keys: the consumer, and
// their stored forms.
func Args[K Key | string](k *Keys, keys []K) []any {
	args := make([]any, 0, len(keys)+1)
	args = append(args, k.Consumer)
	for _, key := range keys {
		if key, ok := any(key).(Key); ok {
			args = append(args, key.Stored)
			continue
		}
		args = append(args, key)
	}
	return args
}

// ScanFound is Found for a row of a stored form and a fingerprint.
func (k *Keys) ScanFound(rows *sql.Rows) error {
	var stored string
	var fingerprint []byte
	if err := rows.Scan(&stored, &fingerprint); err != nil {
		return err
	}
	return k.Found(stored, fingerprint)
}
