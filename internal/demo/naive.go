package demo

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dburl"
)

// naive consumes the way it is often written: change the data, commit,
// acknowledge. There is no key, so whatever comes twice has its effect twice.
func naive(ctx context.Context, source broker.Source, tell *teller, do func(context.Context, order) error) error {
	defer func() { _ = source.Close(context.WithoutCancel(ctx)) }()
	for {
		deliveries, err := source.Receive(ctx, 20)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, broker.ErrClosed):
			return err
		case err != nil:
			tell.say(saidTrouble, err.Error())
			continue
		}
		for range deliveries {
			tell.say(saidDelivered, "")
		}
		for _, d := range deliveries {
			var o order
			err := json.Unmarshal(d.Message.Body, &o)
			if err == nil {
				err = do(ctx, o)
			}
			if err != nil {
				tell.say(saidTrouble, err.Error())
				settle(ctx, source, tell, broker.Settlement{Delivery: d, Action: broker.Retry})
				continue
			}
			tell.processed()
			settle(ctx, source, tell, broker.Settlement{Delivery: d})
		}
	}
}

func settle(ctx context.Context, source broker.Source, tell *teller, s broker.Settlement) {
	if err := source.Settle(ctx, []broker.Settlement{s}); err != nil && ctx.Err() == nil {
		tell.say(saidTrouble, err.Error())
	}
}

func sellNaively(ctx context.Context, db *dburl.DB, o order) error {
	tx, err := db.SQL.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, db.Kind.Placeholders(takeNaiveStock), o.Quantity, o.SKU); err != nil {
		return err
	}
	return tx.Commit()
}
