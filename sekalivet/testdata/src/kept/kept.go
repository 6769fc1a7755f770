// Package kept is about transactions that are used beside or after the handler.
package kept

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/sekali/sekali"
)

type shop struct {
	tx    *sql.Tx
	later []func() error
	repos chan *repo
	all   sync.Map
	mu    sync.Mutex
	seen  map[string]bool
}

type repo struct{ tx *sql.Tx }

func newRepo(tx *sql.Tx) *repo { return &repo{tx} }

func (r *repo) save(ctx context.Context) error {
	_, err := r.tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	return err
}

var last *sql.Tx

func (s *shop) handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	go save(ctx, tx) // want `a goroutine uses the message's transaction beside the handler` `save drops the error`
	var running sync.WaitGroup
	running.Go(func() { // want `a goroutine uses`
		if err := newRepo(tx).save(ctx); err != nil {
			panic(err)
		}
	})
	running.Wait()
	time.AfterFunc(time.Second, func() { // want `a goroutine uses`
		if err := save(ctx, tx); err != nil {
			panic(err)
		}
	})
	s.tx = tx         // want `s\.tx keeps the message's transaction longer`
	last = tx         // want `last keeps`
	r := newRepo(tx)
	s.repos <- r                                                      // want `s\.repos <- keeps`
	s.later = append(s.later, func() error { return save(ctx, tx) }) // want `s\.later keeps`
	s.all.Store(m.Key(), tx)                                          // want `s\.all keeps`
	return s.remember(tx)
}

func (s *shop) remember(tx *sql.Tx) error {
	s.tx = tx // want `s\.tx, called through shop\.remember, keeps`
	return nil
}

func save(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	return err
}

// Right: what is kept holds no transaction, and what holds it is not kept.
func (s *shop) right(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	var r repo
	r.tx = tx
	if err := r.save(ctx); err != nil {
		return err
	}
	run := func() error { return save(ctx, tx) }
	if err := run(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { defer close(done); s.mu.Lock(); s.mu.Unlock() }()
	<-done
	s.seen[m.Key()] = true
	return nil
}
