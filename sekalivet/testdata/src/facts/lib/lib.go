// Package lib is called by handlers of another package.
package lib

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/sekali/sekali"
)

func Call(ctx context.Context) error {
	_, err := http.Get("https://example.com")
	return err
}

func Allowed(ctx context.Context) error {
	//sekalivet:allow it answers from a cache of this machine
	_, err := http.Get("https://example.com")
	return err
}

func End(n int, tx *sql.Tx) {
	_ = tx.Commit()
	tx.Exec(`UPDATE stock SET quantity = 0`)
}

func Deep(ctx context.Context) error { return Call(ctx) }

func Handle(ctx context.Context, tx *sql.Tx) error {
	return Call(ctx)
}

func Stamp() string { return time.Now().String() }

func Once(ctx context.Context, inbox *sekali.Inbox[*sql.Tx], fn func(context.Context, *sql.Tx) error) error {
	_, err := inbox.Process(ctx, "k", fn)
	return err
}

func Right(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = 0`)
	return err
}
