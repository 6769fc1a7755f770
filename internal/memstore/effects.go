package memstore

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/sekali/sekali/effect"
)

// effectRow is a row of the ledger.
type effectRow struct {
	effect.Row
	until, first, start time.Time
	fingerprint         []byte
}

func (r *effectRow) view() effect.Row {
	v := r.Row
	v.LeaseLeft = max(0, time.Until(r.until))
	v.SinceFirst, v.SinceStart = time.Since(r.first), time.Since(r.start)
	return v
}

// Effects returns the store's ledger.
func (s *Store) Effects() effect.Rows { return (*ledger)(s) }

type ledger Store

var _ effect.Desk = (*ledger)(nil)

func (l *ledger) find(id effect.ID) *effectRow {
	for _, r := range l.effects {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// parked tells whether an effect of a message is.
func (l *ledger) parked(consumer, key string) bool {
	return slices.ContainsFunc(l.effects, func(r *effectRow) bool {
		return r.Consumer == consumer && r.MessageKey == key && r.State == effect.Parked
	})
}

// Start implements effect.Rows.
func (l *ledger) Start(_ context.Context, id effect.ID, key string, lease time.Duration) (effect.Row, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.find(id); r != nil {
		return r.view(), false, nil
	}
	now := time.Now()
	r := &effectRow{until: now.Add(lease), first: now, start: now}
	r.Row = effect.Row{ID: id, Number: int64(len(l.effects) + 1), State: effect.Started, IdempotencyKey: key, Attempt: 1, Token: 1}
	l.effects = append(l.effects, r)
	return r.view(), true, nil
}

// Take implements effect.Rows.
func (l *ledger) Take(_ context.Context, of effect.Row, lease time.Duration) (effect.Row, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.find(of.ID)
	now := time.Now()
	free := r.State == effect.Unknown || r.State == effect.Failed && !r.Final || r.State == effect.Started && !now.Before(r.until)
	if r.Token != of.Token || !free {
		return r.view(), false, nil
	}
	r.State, r.Attempt, r.Token, r.until, r.start = effect.Started, r.Attempt+1, r.Token+1, now.Add(lease), now
	return r.view(), true, nil
}

// ours returns the row, if it is still.
func (l *ledger) ours(of effect.Row) (*effectRow, error) {
	if r := l.find(of.ID); r.Token == of.Token && r.State == effect.Started {
		return r, nil
	}
	return nil, effect.ErrStale
}

// Extend implements effect.Rows.
func (l *ledger) Extend(_ context.Context, of effect.Row, lease time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.ours(of)
	if err == nil {
		r.until = time.Now().Add(lease)
	}
	return err == nil, nil
}

// Bind implements effect.Rows.
func (l *ledger) Bind(_ context.Context, of effect.Row, fingerprint []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.ours(of)
	switch {
	case err != nil:
		return err
	case r.fingerprint != nil && !bytes.Equal(r.fingerprint, fingerprint):
		return effect.ErrOtherRequest
	}
	r.fingerprint = bytes.Clone(fingerprint)
	return nil
}

// End implements effect.Rows.
func (l *ledger) End(_ context.Context, of effect.Row, to effect.State, result []byte, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := l.ours(of)
	if err == nil {
		r.State, r.Result, r.Error, r.until = to, result, text, time.Time{}
	}
	return err
}

// Check implements effect.Rows.
func (l *ledger) Check(context.Context) error { return nil }

// List implements effect.Desk.
func (l *ledger) List(_ context.Context, f effect.Filter) ([]effect.Row, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []effect.Row
	for _, r := range slices.Backward(l.effects) {
		if (f.Consumer == "" || f.Consumer == r.Consumer) && (f.MessageKey == "" || f.MessageKey == r.MessageKey) &&
			(f.Name == "" || f.Name == r.Name) && (f.State == "" || f.State == r.State) && (f.Before == 0 || r.Number < f.Before) {
			found = append(found, r.view())
		}
	}
	return found, nil
}

// Get implements effect.Desk.
func (l *ledger) Get(_ context.Context, number int64) (effect.Row, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number < 1 || number > int64(len(l.effects)) {
		return effect.Row{}, effect.ErrNotFound
	}
	return l.effects[number-1].view(), nil
}

// Resolve implements effect.Desk.
func (l *ledger) Resolve(_ context.Context, number int64, to effect.Resolution) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.effects[number-1]
	corrects, err := to.Corrects(r.Row)
	if err != nil {
		return err
	}
	if _, processed := l.rows[key(r.Consumer, r.MessageKey)]; corrects && processed {
		return effect.ErrResolved
	}
	r.State, r.Final, r.Result, r.Error, r.Token, r.until = to.To, to.GiveUp, to.Result, to.Text(r.Row), r.Token+1, time.Time{}
	return nil
}
