// Package found is about the ways in which a function becomes a handler.
package found

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
)

func call() error {
	_, err := http.Get("https://example.com")
	return err
}

var c = sekali.Config[pgx.Tx]{
	Name: "a",
	HandleBatch: func(ctx context.Context, tx pgx.Tx, m []*sekali.Message) error {
		_, err := http.Get("https://example.com/batch") // want `http\.Get is called inside`
		return err
	},
}

func assigned() sekali.Config[pgx.Tx] {
	var cfg sekali.Config[pgx.Tx]
	handle := func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
		_, err := http.Get("https://example.com/assigned") // want `http\.Get is called inside`
		return err
	}
	cfg.Handle = logged(handle)
	return cfg
}

func logged(next sekali.Handler[pgx.Tx]) sekali.Handler[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
		if _, err := http.Get("https://example.com/log"); err != nil { // want `http\.Get is called inside`
			return err
		}
		return next(ctx, tx, m)
	}
}

func use(ctx context.Context, inbox *sekali.Inbox[pgx.Tx]) error {
	return once(ctx, inbox, func(ctx context.Context, tx pgx.Tx) error {
		_, err := http.Get("https://example.com/once") // want `http\.Get is called inside`
		return err
	})
}

// once hands a function on to Process.
func once(ctx context.Context, inbox *sekali.Inbox[pgx.Tx], fn func(context.Context, pgx.Tx) error) error {
	_, err := inbox.Process(ctx, "k", fn)
	return err
}

func named(ctx context.Context, inbox *sekali.Inbox[pgx.Tx], i *item) error {
	_, err := inbox.Process(ctx, "k", i.save)
	return err
}

type item struct{}

func (i *item) save(ctx context.Context, tx pgx.Tx) error {
	_, err := http.Get("https://example.com/item") // want `http\.Get is called inside`
	return err
}

func makes() func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := http.Get("https://example.com/makes") // want `http\.Get is called inside`
		return err
	}
}

func made(ctx context.Context, inbox *sekali.Inbox[pgx.Tx]) error {
	_, err := inbox.Process(ctx, "k", makes())
	return err
}

func commit(ctx context.Context, m *sekali.Message) (sekali.Commit[pgx.Tx], error) {
	return (&item{}).commit, nil
}

func (i *item) commit(ctx context.Context, tx pgx.Tx) error {
	_, err := http.Get("https://example.com/commit") // want `http\.Get is called inside`
	return err
}

// Functions that call themselves, and each other.
func even(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	if len(m.Body) == 0 {
		return nil
	}
	m.Body = m.Body[1:]
	return odd(ctx, tx, m, 0)
}

func odd(ctx context.Context, tx pgx.Tx, m *sekali.Message, n int) error {
	if n > 3 {
		_, err := http.Get("https://example.com/odd") // want `http\.Get, called through odd, is called inside`
		return err
	}
	return even(ctx, tx, m)
}

func variable(ctx context.Context, inbox *sekali.Inbox[pgx.Tx]) error {
	save := func(ctx context.Context, tx pgx.Tx) error {
		_, err := http.Get("https://example.com/variable") // want `http\.Get is called inside`
		return err
	}
	_, err := inbox.Process(ctx, "k", save)
	return err
}
