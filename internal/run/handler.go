package run

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

// Handlers put a plan's handler into a Consumer's Config. box is nil where the
// plan publishes nothing.

// onPostgres sends the statements of all messages in one round trip.
func (p *Plan) onPostgres(cfg *sekali.Config[pgx.Tx], box *outbox.Box[pgx.Tx], do *doer) {
	if do != nil {
		cfg.Prepare = prepare(p, do, func(ctx context.Context, tx pgx.Tx, j *job) error {
			return errorOf(pipeline(ctx, tx, []*job{j}))
		}, box)
		return
	}
	cfg.HandleBatch = func(ctx context.Context, tx pgx.Tx, messages []*sekali.Message) error {
		jobs := make([]*job, len(messages))
		var events []outbox.Message
		for i, m := range messages {
			j, err := p.whole(m)
			if err != nil {
				return &store.FailedAt{Index: i, Err: err}
			}
			jobs[i] = j
			events = append(events, j.events...)
		}
		if err := pipeline(ctx, tx, jobs); err != nil || len(events) == 0 {
			return err
		}
		_, err := box.AddAll(ctx, tx, events)
		return err
	}
}

// pipeline runs the statements of jobs in one round trip.
var pipeline = pgxstore.Pipelined(func(b *pgx.Batch, j *job) error {
	for i := range j.statements {
		s := &j.statements[i]
		b.Queue(s.text, s.args...).Fn = func(results pgx.BatchResults) error {
			var tag pgconn.CommandTag
			tag, err := results.Exec()
			if err != nil {
				return s.failed(err)
			}
			return s.changed(tag.RowsAffected())
		}
	}
	return nil
})

// errorOf leaves out which of one it was.
func errorOf(err error) error {
	if at, is := err.(*store.FailedAt); is {
		return at.Err
	}
	return err
}

// onSQL runs statement by statement.
func (p *Plan) onSQL(cfg *sekali.Config[*sql.Tx], box *outbox.Box[*sql.Tx], do *doer) {
	if do != nil {
		cfg.Prepare = prepare(p, do, execAll, box)
		return
	}
	cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
		j, err := p.whole(m)
		if err != nil {
			return err
		}
		if err := execAll(ctx, tx, j); err != nil {
			return err
		}
		return add(ctx, tx, box, j)
	}
}

func execAll(ctx context.Context, tx *sql.Tx, j *job) error {
	for i := range j.statements {
		s := &j.statements[i]
		result, err := tx.ExecContext(ctx, s.text, s.args...)
		if err != nil {
			return s.failed(err)
		}
		if s.of.from.Rows < 0 {
			continue
		}
		rows, err := result.RowsAffected()
		if err == nil {
			err = s.changed(rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add puts a job's events into the outbox.
func add[Tx any](ctx context.Context, tx Tx, box *outbox.Box[Tx], j *job) error {
	if len(j.events) == 0 {
		return nil
	}
	if _, err := box.AddAll(ctx, tx, j.events); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

// prepare has a message's effects, and runs its statements afterwards.
func prepare[Tx any](p *Plan, do *doer, exec func(context.Context, Tx, *job) error, box *outbox.Box[Tx]) sekali.Preparer[Tx] {
	return func(ctx context.Context, m *sekali.Message) (sekali.Commit[Tx], error) {
		in, wanted, err := p.input(m)
		if err != nil || !wanted {
			return nil, err
		}
		if err := do.all(ctx, m, in); err != nil {
			return nil, err
		}
		j, err := p.job(in)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, tx Tx) error {
			if err := exec(ctx, tx, j); err != nil {
				return err
			}
			return add(ctx, tx, box, j)
		}, nil
	}
}
