//go:build !fast

package pgxstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

var errNoSuchRow = errors.New("no such row")

// pipeline queues what a message asks for by its name.
func pipeline(b *pgx.Batch, m string) error {
	b.Queue(`INSERT INTO piped VALUES ($1)`, m)
	switch m {
	case "queue":
		return errors.New("the function itself fails")
	case "check":
		b.Queue(`UPDATE piped SET name = name WHERE name = 'none'`).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				return errNoSuchRow
			}
			return nil
		})
	case "scan":
		b.Queue(`SELECT count(*) FROM piped WHERE name = 'none'`).QueryRow(func(row pgx.Row) error {
			var n int
			if err := row.Scan(&n); err != nil {
				return err
			}
			if n == 0 {
				return errNoSuchRow
			}
			return nil
		})
	case "statement":
		b.Queue(`SELECT 1 / (SELECT count(*) FROM piped WHERE name = 'none')`)
	case "prepare":
		b.Queue(`SELECT no_such_column FROM piped`)
	}
	return nil
}

func TestThePipelinesCulpritIsNamedAndOneThatCannotBePreparedIsNotTheFirstMessage(t *testing.T) {
	for _, m := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(m.String(), func(t *testing.T) {
			pool := newPool(t, schemaTable+`; CREATE TABLE piped (name TEXT)`, mode(m))
			s := pgxstore.New(pool)
			handle := pgxstore.Pipelined(pipeline)
			for bad, named := range map[string]bool{"queue": true, "check": true, "scan": true, "statement": true, "prepare": false} {
				if m == pgx.QueryExecModeExec || m == pgx.QueryExecModeSimpleProtocol {
					named = true // nothing is prepared
				}
				tx := begin(t, s, claimOf("k"), store.Fresh)
				err := handle(context.Background(), tx, []string{"a", "b", bad, "c"})
				var at *store.FailedAt
				if is := errors.As(err, &at); err == nil || is != named || named && at.Index != 2 {
					t.Errorf("%s: %v, with the culprit %+v; want it named: %v", bad, err, at, named)
				}
				if (bad == "check" || bad == "scan") && !errors.Is(err, errNoSuchRow) {
					t.Errorf("%s: %v does not wrap the check's error", bad, err)
				}
				rollBack(t, s, tx)
			}
			tx := begin(t, s, claimOf("k"), store.Fresh)
			for _, all := range [][]string{{"a", "b"}, nil} {
				if err := handle(context.Background(), tx, all); err != nil {
					t.Fatal(err)
				}
			}
			commit(t, s, tx)
			if n := value[int](t, pool, `SELECT count(*)::int FROM piped`); n != 2 {
				t.Errorf("%d rows of what was piped, want 2", n)
			}
			wantIdle(t, pool)
		})
	}
}
