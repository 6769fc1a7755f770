package storetest

import (
	"strconv"
	"strings"
	"sync"

	"github.com/sekali/sekali/store"
)

func versionTests[Tx any]() []test[Tx] {
	return []test[Tx]{
		{name: "an older version is stale, an equal and a newer one are not", f: versionsCompare[Tx]},
		{name: "a version is raised with the transaction and not without it", f: versionRollsBack[Tx]},
		{name: "entities and consumers are apart, byte for byte", f: versionsApart[Tx]},
		{name: "a version that another transaction is raising is waited for", f: versionsWait[Tx]},
		{name: "two that race with versions 7 and 8 leave 8 and its state", f: versionsRace[Tx]},
		{name: "a missing table of versions is named", f: versionsWithoutTable[Tx], empty: true},
	}
}

func (b *bench[Tx]) versions(c Client[Tx]) store.Versions[Tx] {
	b.t.Helper()
	s, ok := store.As[interface{ Versions() store.Versions[Tx] }](c.Store)
	if !ok {
		b.t.Fatalf("a %T has no method Versions", c.Store)
	}
	return s.Versions()
}

// advance raises a version in a transaction, and wants it to be stale or not.
func (b *bench[Tx]) advance(c Client[Tx], tx Tx, entity string, version int64, want bool) {
	b.t.Helper()
	stale, err := b.versions(c).Advance(b.ctx, tx, consumer, entity, version)
	b.ok(err)
	if stale != want {
		b.t.Errorf("version %d of %q is stale: %v, want %v", version, entity, stale, want)
	}
}

func (b *bench[Tx]) wantStale(entity string, version int64, want bool) {
	b.t.Helper()
	stale, err := b.versions(b.Two).Stale(b.ctx, consumer, entity, version)
	b.ok(err)
	if stale != want {
		b.t.Errorf("seen from outside, version %d of %q is stale: %v, want %v", version, entity, stale, want)
	}
}

func versionsCompare[Tx any](b *bench[Tx]) {
	b.wantStale("e", -1<<63, false)
	for i, step := range []struct {
		version int64
		stale   bool
	}{{-5, false}, {7, false}, {6, true}, {7, false}, {-6, true}, {8, false}, {1<<63 - 1, false}, {8, true}, {-1 << 63, true}} {
		tx := b.begin(b.One, claimOf(string(rune('a'+i))), store.Fresh)
		b.advance(b.One, tx, "e", step.version, step.stale)
		b.commit(b.One, tx)
		b.wantStale("e", step.version, step.stale)
	}
}

func versionRollsBack[Tx any](b *bench[Tx]) {
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	b.advance(b.One, tx, "e", 7, false)
	b.advance(b.One, tx, "e", 6, true) // within the transaction too
	b.rollback(b.One, tx)
	b.wantStale("e", 6, false)
}

func versionsApart[Tx any](b *bench[Tx]) {
	entities := []string{"e", "E", "e ", "e\x00", "\xff", strings.Repeat("e", 4096), "sha256:e"}
	tx := b.begin(b.One, claimOf("a"), store.Fresh)
	for i, entity := range entities {
		b.advance(b.One, tx, entity, int64(i), false)
	}
	b.commit(b.One, tx)
	for i, entity := range entities {
		b.wantStale(entity, int64(i)-1, true)
		b.wantStale(entity, int64(i), false)
	}
	if stale, err := b.versions(b.One).Stale(b.ctx, "another", "e", -1); err != nil || stale {
		b.t.Errorf("another consumer's: %v, %v", stale, err)
	}
}

func versionsWait[Tx any](b *bench[Tx]) {
	first := b.begin(b.One, claimOf("a"), store.Fresh)
	b.advance(b.One, first, "e", 8, false)
	stale := false
	done := b.later(func() {
		state, err := b.process(b.Two, claimOf("b"), func(tx Tx) (err error) {
			stale, err = b.versions(b.Two).Advance(b.ctx, tx, consumer, "e", 7)
			return err
		})
		if err != nil || state != store.Fresh {
			b.t.Errorf("the second: %v, %v", state, err)
		}
	})
	b.wantWaiting(1, done)
	b.commit(b.One, first)
	b.wait(done)
	if !stale {
		b.t.Error("version 7 is not stale behind 8")
	}
}

func versionsRace[Tx any](b *bench[Tx]) {
	b.run("CREATE TABLE states (entity VARCHAR(20) PRIMARY KEY, state INT NOT NULL)"+b.engine(), "INSERT INTO states VALUES ('e', 0)")
	for round := range 10 {
		base := int64(10 * round)
		var running sync.WaitGroup
		for i, c := range []Client[Tx]{b.One, b.Two} {
			version := base + 7 + int64(i)
			running.Go(func() {
				key := strings.Repeat("k", int(version)+1)
				_, err := b.process(c, claimOf(key), func(tx Tx) error {
					stale, err := b.versions(c).Advance(b.ctx, tx, consumer, "e", version)
					if err != nil || stale {
						return err
					}
					_, err = b.h.Exec(b.ctx, tx, "UPDATE states SET state = "+strconv.FormatInt(version, 10))
					return err
				})
				if err != nil {
					b.t.Error(err)
				}
			})
		}
		running.Wait()
		if got := b.number("SELECT state FROM states"); got != int(base)+8 {
			b.t.Fatalf("the state is %d, want %d", got, base+8)
		}
	}
}

func versionsWithoutTable[Tx any](b *bench[Tx]) {
	b.wantClass(b.One, b.versions(b.One).Check(b.ctx), store.ClassMisconfigured)
}
