package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
)

// Pipelined makes a batch's handler, for Config.HandleBatch, of a function that
// queues the statements of one message: those of all messages travel in one
// round trip. M is *sekali.Message.
//
//	HandleBatch: pgxstore.Pipelined(func(b *pgx.Batch, m *sekali.Message) error {
//		b.Queue(`UPDATE stock SET quantity = quantity - 1 WHERE sku = $1`, sku(m)).Exec(func(t pgconn.CommandTag) error {
//			if t.RowsAffected() != 1 {
//				return sekali.Permanent(errors.New("no such sku"))
//			}
//			return nil
//		})
//		return nil
//	})
//
// A statement's own check (Exec, Query or QueryRow of what Queue returns)
// decides before the commit: its error, like one of the statement, is that of
// its message, and nothing of the batch is kept but what comes before and after
// it. So is an error of queue itself. An error that comes before any statement
// was run, of preparing one say, is nobody's in particular; halving finds it.
func Pipelined[M any](queue func(b *pgx.Batch, m M) error) func(ctx context.Context, tx pgx.Tx, m []M) error {
	return func(ctx context.Context, tx pgx.Tx, messages []M) error {
		var b pgx.Batch
		var owner []int // of each statement
		for i, m := range messages {
			if err := queue(&b, m); err != nil {
				return &store.FailedAt{Index: i, Err: err}
			}
			for len(owner) < b.Len() {
				owner = append(owner, i)
			}
		}
		if b.Len() == 0 {
			return nil
		}
		failed := watch(&b)
		err := tx.SendBatch(ctx, &b).Close()
		if err == nil {
			return nil
		}
		if at := *failed; at >= 0 {
			return &store.FailedAt{Index: owner[at], Err: err}
		}
		return fmt.Errorf("send the statements of %d messages: %w", len(messages), err)
	}
}

// watch returns where the index of the statement will stand that fails. It
// stays below 0 if none was run: the client prepares all statements of a batch
// before it sends any.
func watch(b *pgx.Batch) *int {
	failed := -1
	for i, q := range b.QueuedQueries {
		check := q.Fn
		q.Fn = func(results pgx.BatchResults) (err error) {
			if check != nil {
				err = check(results)
			} else {
				_, err = results.Exec()
			}
			if err != nil && failed < 0 {
				failed = i
			}
			return err
		}
	}
	return &failed
}
