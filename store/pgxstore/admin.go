package pgxstore

import (
	"context"

	"github.com/sekali/sekali/admin"
)

var _ admin.Keeper = (*Store)(nil)

// Admin returns what people look at and decide about. It takes its
// connections from the store's pool.
func (s *Store) Admin() admin.Admin {
	return admin.Admin{Keys: keyDesk{s}, DeadLetters: letters{s}, Effects: effects{s}, Outbox: events{s}, Health: health{s}}
}

type keyDesk struct{ s *Store }

func (k keyDesk) desk() (_ admin.Keys, done func()) {
	lent, done := k.s.lend()
	return lent.Admin().Keys, done
}

// Find implements admin.Keys.
func (k keyDesk) Find(ctx context.Context, key string) ([]admin.Key, error) {
	desk, done := k.desk()
	defer done()
	return desk.Find(ctx, key)
}

// List implements admin.Keys.
func (k keyDesk) List(ctx context.Context, f admin.KeyFilter) ([]admin.Key, error) {
	desk, done := k.desk()
	defer done()
	return desk.List(ctx, f)
}

// Consumers implements admin.Keys.
func (k keyDesk) Consumers(ctx context.Context) ([]string, error) {
	desk, done := k.desk()
	defer done()
	return desk.Consumers(ctx)
}

// Days implements admin.Keys.
func (k keyDesk) Days(ctx context.Context, consumer string) ([]admin.Day, error) {
	desk, done := k.desk()
	defer done()
	return desk.Days(ctx, consumer)
}

// Forget implements admin.Keys.
func (k keyDesk) Forget(ctx context.Context, keys []admin.Key, d admin.Decision) (int, error) {
	desk, done := k.desk()
	defer done()
	return desk.Forget(ctx, keys, d)
}

// Seed implements admin.Keys.
func (k keyDesk) Seed(ctx context.Context, s admin.Seed, d admin.Decision) (int, error) {
	desk, done := k.desk()
	defer done()
	return desk.Seed(ctx, s, d)
}

type health struct{ s *Store }

func (h health) lent() (_ admin.Health, done func()) {
	lent, done := h.s.lend()
	return lent.Admin().Health, done
}

// Activity implements admin.Health.
func (h health) Activity(ctx context.Context, s admin.Span) ([]admin.Bucket, error) {
	lent, done := h.lent()
	defer done()
	return lent.Activity(ctx, s)
}

// Overview implements admin.Health.
func (h health) Overview(ctx context.Context) (admin.Overview, error) {
	lent, done := h.lent()
	defer done()
	return lent.Overview(ctx)
}

// Backlog implements admin.Health.
func (h health) Backlog(ctx context.Context) (admin.Overview, error) {
	lent, done := h.lent()
	defer done()
	return lent.Backlog(ctx)
}

// Facts implements admin.Health.
func (h health) Facts(ctx context.Context) (admin.Facts, error) {
	lent, done := h.lent()
	defer done()
	f, err := lent.Facts(ctx)
	f.Pool = int(h.s.pool.Config().MaxConns)
	return f, err
}
