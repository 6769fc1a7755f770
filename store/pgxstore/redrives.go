package pgxstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// Redrives returns the dead letters that a running Consumer is to process.
func (s *Store) Redrives() deadletter.Source[pgx.Tx] { return redrives{s} }

type redrives struct{ s *Store }

func (r redrives) source() (_ deadletter.Source[*sql.Tx], done func()) {
	lent, done := r.s.lend()
	return lent.Redrives(), done
}

// Take implements deadletter.Source.
func (r redrives) Take(ctx context.Context, consumer string, most int, lease time.Duration) ([]deadletter.Redrive, error) {
	s, done := r.source()
	defer done()
	return s.Take(ctx, consumer, most, lease)
}

// Extend implements deadletter.Source.
func (r redrives) Extend(ctx context.Context, list []deadletter.Redrive, lease time.Duration) ([]int64, error) {
	s, done := r.source()
	defer done()
	return s.Extend(ctx, list, lease)
}

// ResolveIn implements deadletter.Source.
func (r redrives) ResolveIn(ctx context.Context, tx pgx.Tx, one deadletter.Redrive, status deadletter.Status) error {
	doing := fmt.Sprintf("resolve dead letter %d as %s", one.Letter.ID, status)
	tag, err := tx.Exec(ctx, pgsql.New(r.s.tables).ResolveLetter(), one.Letter.ID, one.Token, string(status))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	case tag.RowsAffected() == 0:
		return fmt.Errorf("%s: %w", doing, deadletter.ErrNotOurs)
	}
	return nil
}

// Resolve implements deadletter.Source.
func (r redrives) Resolve(ctx context.Context, one deadletter.Redrive, status deadletter.Status) error {
	s, done := r.source()
	defer done()
	return s.Resolve(ctx, one, status)
}

// Reopen implements deadletter.Source.
func (r redrives) Reopen(ctx context.Context, one deadletter.Redrive, l deadletter.Letter) error {
	s, done := r.source()
	defer done()
	return s.Reopen(ctx, one, l)
}

// Release implements deadletter.Source.
func (r redrives) Release(ctx context.Context, list []deadletter.Redrive) error {
	s, done := r.source()
	defer done()
	return s.Release(ctx, list)
}

// Check implements deadletter.Source.
func (r redrives) Check(ctx context.Context) error {
	s, done := r.source()
	defer done()
	return s.Check(ctx)
}
