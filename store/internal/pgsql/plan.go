package pgsql

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/sekali/sekali/store"
)

// Plan is a claim on its way through the statements: its keys sorted by their
// stored form, and what is known of each. It is for one goroutine.
type Plan struct {
	// Consumer is the claim's.
	Consumer string

	keys   []planned
	states []store.State  // in the order of the claim
	at     map[string]int // stored form: its place in keys; nil for one key
}

type planned struct {
	stored      string
	fingerprint []byte
	place       int // in the claim
	settled     bool
}

// NewPlan sorts the keys of a claim by the bytes of their stored forms: two
// claims that insert in that order cannot deadlock.
func NewPlan(c store.Claim) *Plan {
	p := &Plan{Consumer: c.Consumer, keys: make([]planned, len(c.Keys)), states: make([]store.State, len(c.Keys))}
	for i, k := range c.Keys {
		p.keys[i] = planned{stored: store.StoredKey(k.Raw), fingerprint: k.Fingerprint, place: i}
	}
	slices.SortFunc(p.keys, func(a, b planned) int { return strings.Compare(a.stored, b.stored) })
	p.at = make(map[string]int, len(p.keys))
	for i, k := range p.keys {
		p.at[k.stored] = i
	}
	return p
}

// States returns what is known, in the order of the claim's keys.
func (p *Plan) States() []store.State { return p.states }

// AllFresh tells whether every key was inserted.
func (p *Plan) AllFresh() bool {
	return !slices.ContainsFunc(p.states, func(s store.State) bool { return s != store.Fresh })
}

// HasFingerprints tells whether a key of the claim has a fingerprint.
func (p *Plan) HasFingerprints() bool {
	return slices.ContainsFunc(p.keys, func(k planned) bool { return len(k.fingerprint) > 0 })
}

// Pending returns an array literal of the stored forms of the keys that are
// not settled, sorted, and one of their fingerprints (in hexadecimal, NULL
// where unknown) beside it. more is false when all are settled.
func (p *Plan) Pending() (keys, fingerprints string, more bool) {
	var stored []string
	var prints [][]byte
	for _, k := range p.keys {
		if !k.settled {
			stored, prints = append(stored, k.stored), append(prints, k.fingerprint)
		}
	}
	return Array(stored), hexArray(prints), len(stored) > 0
}

// One returns the key, if the plan has a single one, with its fingerprint in
// hexadecimal, nil if it is unknown.
func (p *Plan) One() (stored string, fingerprint *string, ok bool) {
	if len(p.keys) != 1 {
		return "", nil, false
	}
	if f := p.keys[0].fingerprint; len(f) > 0 {
		text := hex.EncodeToString(f)
		fingerprint = &text
	}
	return p.keys[0].stored, fingerprint, true
}

// All returns an array literal of the stored forms of all keys, sorted.
func (p *Plan) All() string {
	stored := make([]string, len(p.keys))
	for i, k := range p.keys {
		stored[i] = k.stored
	}
	return Array(stored)
}

// Fresh settles a key that the claim inserted.
func (p *Plan) Fresh(stored string) error { return p.settle(stored, store.Fresh) }

// Found settles a key that was there, with its fingerprint in hexadecimal; nil
// if it is unknown, which never makes a conflict.
func (p *Plan) Found(stored string, fingerprint *string) error {
	i, ok := p.at[stored]
	if !ok {
		return unknownKey(stored)
	}
	state := store.Duplicate
	if mine := p.keys[i].fingerprint; fingerprint != nil && len(mine) > 0 {
		theirs, err := hex.DecodeString(*fingerprint)
		if err != nil {
			return fmt.Errorf("read the fingerprint of key %q: %w", stored, err)
		}
		if !bytes.Equal(mine, theirs) {
			state = store.Conflict
		}
	}
	return p.settle(stored, state)
}

// Duplicates settles the keys that the claim did not insert and whose
// fingerprint need not be read, for we have none to compare.
func (p *Plan) Duplicates() {
	for i, k := range p.keys {
		if !k.settled && len(k.fingerprint) == 0 {
			p.states[k.place], p.keys[i].settled = store.Duplicate, true
		}
	}
}

func (p *Plan) settle(stored string, state store.State) error {
	i, ok := p.at[stored]
	if !ok {
		return unknownKey(stored)
	}
	p.states[p.keys[i].place], p.keys[i].settled = state, true
	return nil
}

// unknownKey cannot happen as long as the key column gives back the bytes that
// it was given.
func unknownKey(stored string) error {
	return fmt.Errorf("the server answered for key %q, which was not asked for", stored)
}

// Array returns an array literal of texts: "{"a","b"}".
func Array(values []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		escaper.WriteString(&b, v) // a strings.Builder never fails
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func hexArray(values [][]byte) string {
	items := make([]string, len(values))
	for i, v := range values {
		items[i] = "NULL"
		if v != nil {
			items[i] = hex.EncodeToString(v)
		}
	}
	return "{" + strings.Join(items, ",") + "}"
}
