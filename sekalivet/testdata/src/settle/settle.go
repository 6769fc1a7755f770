// Package settle is about acknowledging too early.
package settle

import (
	"context"
	"database/sql"

	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

type worker struct {
	inbox  *sekali.Inbox[*sql.Tx]
	source broker.Source
}

func (w *worker) early(ctx context.Context, d amqp.Delivery) error {
	_, err := w.inbox.Process(ctx, d.MessageId, func(ctx context.Context, tx *sql.Tx) error {
		if err := d.Ack(false); err != nil { // want `amqp091\.Delivery\.Ack settles the delivery before the message's transaction has committed`
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
		return err
	})
	return err
}

func (w *worker) helped(ctx context.Context, m jetstream.Msg, d []broker.Settlement) error {
	_, err := w.inbox.Process(ctx, "order-42", func(ctx context.Context, tx *sql.Tx) error {
		if err := w.source.Settle(ctx, d); err != nil { // want `broker\.Source\.Settle settles`
			return err
		}
		return done(m)
	})
	return err
}

func done(m jetstream.Msg) error {
	return m.Ack() // want `jetstream\.Msg\.Ack, called through done, settles`
}

// Right: after the commit.
func (w *worker) right(ctx context.Context, d amqp.Delivery) error {
	_, err := w.inbox.Process(ctx, d.MessageId, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
		return err
	})
	if err != nil {
		return d.Nack(false, true)
	}
	return d.Ack(false)
}

func (w *worker) prepare(d amqp.Delivery) sekali.Preparer[*sql.Tx] {
	return func(ctx context.Context, m *sekali.Message) (sekali.Commit[*sql.Tx], error) {
		return nil, d.Ack(false) // want `amqp091\.Delivery\.Ack settles`
	}
}
