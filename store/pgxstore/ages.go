package pgxstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

var _ store.Ager = (*Store)(nil)

// Ages implements store.Ager.
func (s *Store) Ages(ctx context.Context, c store.Claim) ([]time.Duration, error) {
	if err := s.validate(c); err != nil {
		return nil, err
	}
	doing := fmt.Sprintf("read the age of keys of consumer %q", c.Consumer)
	conn, err := s.acquire(ctx, doing)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	micros, err := s.ages(ctx, conn.Conn(), pgsql.NewPlan(c))
	if err != nil {
		return nil, s.failed(ctx, doing, conn.Conn(), err)
	}
	return store.AgesOf(c, micros), nil
}

func (s *Store) ages(ctx context.Context, q querier, plan *pgsql.Plan) (map[string]int64, error) {
	shape, err := s.checked(ctx, q)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, s.sql.Ages(shape), plan.Consumer, plan.All())
	if err != nil {
		return nil, err
	}
	micros := map[string]int64{}
	var stored string
	var age *int64
	_, err = pgx.ForEachRow(rows, []any{&stored, &age}, func() error {
		if age != nil {
			micros[stored] = *age
		}
		return nil
	})
	return micros, err
}
