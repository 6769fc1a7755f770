package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// Seed implements admin.Keys. The keys are claimed as a Consumer claims them,
// and then dated.
func (k keyDesk) Seed(ctx context.Context, s admin.Seed, d admin.Decision) (recorded int, err error) {
	doing := fmt.Sprintf("seed keys of consumer %q", s.Consumer)
	claim, err := claimOf(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s: %w", doing, err)
	case d.By == "":
		return 0, fmt.Errorf("%s: say who decides (Decision.By)", doing)
	case len(claim.Keys) > admin.MaxSeed:
		return 0, fmt.Errorf("%s: %d at once: %d at most", doing, len(claim.Keys), admin.MaxSeed)
	}
	var texts DeskTexts
	var shape Shape
	if err := k.with(ctx, doing, func(_ *sql.Conn, d DeskTexts, sh Shape) error { texts, shape = d, sh; return nil }); err != nil {
		return 0, err
	}
	err = k.repeated(ctx, func(tx *sql.Tx) error {
		keys := newKeys(claim)
		if _, err := k.s.dialect.Claim(ctx, tx, k.s.tables, shape, keys); err != nil {
			return err
		}
		claimed := keys.Claimed()
		if recorded = len(claimed); recorded == 0 {
			return nil
		}
		if err := k.date(ctx, tx, texts, s, claimed); err != nil {
			return err
		}
		return k.note(ctx, tx, "seed keys", admin.Key{Consumer: s.Consumer}, d.By, seedText(s, claimed, d.Note))
	})
	if err != nil {
		return 0, k.failed(ctx, doing, err)
	}
	return recorded, nil
}

// claimOf is the claim of keys that are to be recorded, each once.
func claimOf(s admin.Seed) (store.Claim, error) {
	c := store.Claim{Consumer: s.Consumer}
	there := make(map[string]bool, len(s.Keys))
	for _, key := range s.Keys {
		if !there[key] {
			there[key] = true
			c.Keys = append(c.Keys, store.Key{Raw: key})
		}
	}
	return c, c.Validate()
}

// date gives rows that were claimed the time at which they are said to have
// been processed.
func (k keyDesk) date(ctx context.Context, tx *sql.Tx, texts DeskTexts, s admin.Seed, claimed []string) error {
	if s.ProcessedAt.IsZero() {
		return nil
	}
	for some := range slices.Chunk(claimed, maxAges) {
		q := k.query()
		q.add("UPDATE "+q.texts.ProcessedMessages+" SET processed_at = "+texts.Time, s.ProcessedAt.UnixMicro())
		q.add(" WHERE consumer_name"+texts.Exact+" = ? AND message_key"+texts.Exact+" IN (", s.Consumer)
		for i, key := range some {
			q.add(", ?"[2*btoi(i == 0):], key)
		}
		q.add(")")
		if _, err := k.exec(ctx, tx, q); err != nil {
			return err
		}
	}
	return nil
}

func seedText(s admin.Seed, claimed []string, note string) string {
	text := fmt.Sprintf("%d keys, %q to %q", len(claimed), claimed[0], claimed[len(claimed)-1])
	if !s.ProcessedAt.IsZero() {
		text += ", processed at " + s.ProcessedAt.UTC().Format(time.RFC3339)
	}
	return joinNote(text, note)
}

// trailEntry is an entry of the audit trail; the key as it is stored and as it
// came, nil where there is none or it is not known.
type trailEntry struct {
	by, action, consumer string
	stored, raw, letter  any
	detail               string
}

func (l letters) entry(ctx context.Context, on execer, e trailEntry) error {
	q := l.query()
	q.add("INSERT INTO "+q.texts.AuditTrail+" (at, actor, action, consumer_name, message_key, raw_key, letter_id, detail) VALUES ("+
		q.texts.Now+", ?, ?, ?, ?, ?, ?, ?)", deadletter.CleanError(e.by), e.action, e.consumer, e.stored, e.raw, e.letter,
		deadletter.CleanError(e.detail))
	_, err := l.exec(ctx, on, q)
	return err
}
