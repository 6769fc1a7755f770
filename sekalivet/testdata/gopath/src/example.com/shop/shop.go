// Package shop has handlers with clients that Sekali itself does not use.
package shop

import (
	"context"

	"example.com/shop/pb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sekali/sekali"
	"github.com/stripe/stripe-go/v82/charge"
	"github.com/uptrace/bun"
	"gorm.io/gorm"
)

type shop struct {
	db     *gorm.DB
	bun    *bun.DB
	queue  *sqs.Client
	orders pb.OrdersClient
}

func (s *shop) gorm(ctx context.Context, tx *gorm.DB, m *sekali.Message) error {
	if err := s.db.Create(m).Error; err != nil { // want `s\.db\.Create is not part of the message's transaction`
		return err
	}
	if err := s.db.Model(m).Update("a", 1).Error; err != nil { // want `s\.db\.Model\(m\)\.Update is not part`
		return err
	}
	if err := tx.AutoMigrate(m); err != nil { // want `tx\.AutoMigrate in the message's transaction`
		return err
	}
	return tx.Create(m).Error
}

func (s *shop) bunned(ctx context.Context, tx bun.Tx, m *sekali.Message) error {
	if _, err := s.bun.NewUpdate().Exec(ctx); err != nil { // want `s\.bun\.NewUpdate is not part`
		return err
	}
	tx.NewUpdate().Exec(ctx)                                     // want `…\.Exec drops the error`
	if _, err := tx.NewCreateTable().Exec(ctx); err != nil { // want `tx\.NewCreateTable in the message's transaction`
		return err
	}
	_, err := tx.NewUpdate().Exec(ctx)
	return err
}

// A query that is made with the pool and turned to the transaction.
func (s *shop) turned(ctx context.Context, tx bun.Tx, m *sekali.Message) error {
	if _, err := s.bun.NewUpdate().Conn(tx).Model(m).Exec(ctx); err != nil {
		return err
	}
	if err := move(ctx, s.bun, tx, m); err != nil {
		return err
	}
	q := s.bun.NewUpdate().Model(m)
	q = q.Conn(tx)
	if _, err := q.Exec(ctx); err != nil {
		return err
	}
	if _, err := s.bun.NewUpdate().Conn(s.bun).Exec(ctx); err != nil { // want `s\.bun\.NewUpdate is not part`
		return err
	}
	never := s.bun.NewUpdate().Model(m) // want `s\.bun\.NewUpdate is not part`
	_, err := never.Exec(ctx)
	return err
}

func move(ctx context.Context, orm *bun.DB, tx bun.Tx, m *sekali.Message) error {
	_, err := orm.NewUpdate().Model(m).Conn(tx).Exec(ctx)
	return err
}

func (s *shop) clients(ctx context.Context, tx bun.Tx, m *sekali.Message) error {
	if _, err := s.orders.Place(ctx, &pb.Order{}); err != nil { // want `pb\.OrdersClient\.Place is called inside`
		return err
	}
	c, err := charge.New(&charge.Params{}) // want `charge\.New is called inside`
	if err != nil || c.Name() == "" {
		return err
	}
	if _, err := s.queue.SendMessage(ctx, nil); err != nil { // want `sqs\.Client\.SendMessage is called inside`
		return err
	}
	_ = s.queue.Options()
	if _, err := sqs.NewFromFile("a"); err != nil {
		return err
	}
	_, err = s.queue.DeleteMessage(ctx, nil) // want `sqs\.Client\.DeleteMessage settles the delivery`
	return err
}
