package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// Pruner returns what removes old rows. It needs the table pruning_marks, which
// sekali migrate makes.
func (s *Store) Pruner() store.Pruner { return pruner{s} }

type pruner struct{ s *Store }

func (p pruner) real() (_ store.Pruner, done func()) {
	lent, done := p.s.lend()
	return lent.Pruner(), done
}

// Lease implements store.Pruner.
func (p pruner) Lease(ctx context.Context, token string, lease time.Duration) error {
	r, done := p.real()
	defer done()
	return r.Lease(ctx, token, lease)
}

// Release implements store.Pruner.
func (p pruner) Release(ctx context.Context, token string) error {
	r, done := p.real()
	defer done()
	return r.Release(ctx, token)
}

// Prune implements store.Pruner.
func (p pruner) Prune(ctx context.Context, b store.PruneBatch) (store.Pruned, error) {
	r, done := p.real()
	defer done()
	return r.Prune(ctx, b)
}

// Expired implements store.Pruner.
func (p pruner) Expired(ctx context.Context, rows store.Prunable, keep time.Duration) (int64, error) {
	r, done := p.real()
	defer done()
	return r.Expired(ctx, rows, keep)
}

// Check implements store.Pruner.
func (p pruner) Check(ctx context.Context) error {
	r, done := p.real()
	defer done()
	return r.Check(ctx)
}

// Classify implements store.Pruner.
func (p pruner) Classify(err error) store.Class {
	r, done := p.real()
	defer done()
	return r.Classify(err)
}

// Marks returns how far a pruner has come with each consumer's keys. Where the
// table pruning_marks is missing none has ever been at work.
func (s *Store) Marks() store.Marks[pgx.Tx] { return marks{s} }

type marks struct{ s *Store }

// Mark implements store.Marks.
func (m marks) Mark(ctx context.Context, consumer string) (time.Time, error) {
	lent, done := m.s.lend()
	defer done()
	return lent.Marks().Mark(ctx, consumer)
}

// MarkIn implements store.Marks. In a transaction with one snapshot for all its
// statements it makes sure that the mark has not moved since.
func (m marks) MarkIn(ctx context.Context, tx pgx.Tx, consumer string) (time.Time, error) {
	at, err := m.read(ctx, tx, consumer)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the pruning mark of consumer %q: %w", consumer, err)
	}
	return at, nil
}

func (m marks) read(ctx context.Context, tx pgx.Tx, consumer string) (at time.Time, err error) {
	sql := pgsql.New(m.s.tables)
	if !m.s.marked.Load() {
		var there int
		if err := tx.QueryRow(ctx, sql.HasMarks()).Scan(&there); err != nil || there == 0 {
			return at, err
		}
		m.s.marked.Store(true)
	}
	var micros *int64
	var blind int
	if err := tx.QueryRow(ctx, sql.ReadMark(), consumer).Scan(&micros, &blind); err != nil {
		return at, err
	}
	if blind != 0 {
		if _, err := tx.Exec(ctx, sql.PinMark(), consumer); err != nil {
			return at, err
		}
		if err := tx.QueryRow(ctx, sql.LockMark(), consumer).Scan(&micros); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return at, err
		}
	}
	if micros == nil || *micros == 0 {
		return at, nil
	}
	return time.UnixMicro(*micros).UTC(), nil
}
