package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// Marks returns how far a pruner has come with each consumer's keys. Where the
// table pruning_marks is missing none has ever been at work.
func (s *Store) Marks() store.Marks[*sql.Tx] { return marks{s} }

type marks struct{ s *Store }

// MarkIn implements store.Marks.
func (m marks) MarkIn(ctx context.Context, tx *sql.Tx, consumer string) (time.Time, error) {
	at, err := m.s.mark(ctx, tx, consumer)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the pruning mark of consumer %q: %w", consumer, err)
	}
	return at, nil
}

// Mark implements store.Marks.
func (m marks) Mark(ctx context.Context, consumer string) (time.Time, error) {
	at, err := m.s.mark(ctx, m.s.db, consumer)
	if err != nil {
		return time.Time{}, m.s.failedOn(ctx, m.s.tables.PruningMarks, m.s.texts.Pruning.Marks,
			fmt.Sprintf("read the pruning mark of consumer %q", consumer), err)
	}
	return at, nil
}

// hasMarks tells whether the table is there. Once it is, nobody asks again.
func (s *Store) hasMarks(ctx context.Context, q queryRower) (bool, error) {
	if s.invalid != nil {
		return false, s.invalid
	}
	if s.marked.Load() {
		return true, nil
	}
	var n int
	if err := q.QueryRowContext(ctx, s.texts.Pruning.HasMarks).Scan(&n); err != nil {
		return false, err
	}
	s.marked.Store(n > 0)
	return n > 0, nil
}

// mark reads a mark. In a transaction that cannot see what has been committed
// since its beginning, it makes sure that nothing has.
func (s *Store) mark(ctx context.Context, q queryRower, consumer string) (time.Time, error) {
	there, err := s.hasMarks(ctx, q)
	if err != nil || !there {
		return time.Time{}, err
	}
	texts := s.texts.Pruning
	var micros sql.NullInt64
	var blind int
	if err := q.QueryRowContext(ctx, texts.ReadMark, consumer).Scan(&micros, &blind); err != nil {
		return time.Time{}, err
	}
	if tx, is := q.(*sql.Tx); is && blind != 0 {
		if _, err := tx.ExecContext(ctx, texts.PinMark, consumer); err != nil {
			return time.Time{}, err
		}
		if err := tx.QueryRowContext(ctx, texts.LockMark, consumer).Scan(&micros); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return time.Time{}, err
		}
	}
	if micros.Int64 == 0 {
		return time.Time{}, nil
	}
	return time.UnixMicro(micros.Int64).UTC(), nil
}
