// Package shop has handlers that call another package.
package shop

import (
	"context"
	"database/sql"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/sekalivet/testdata/src/facts/lib"
)

func handle(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
	if err := lib.Deep(ctx); err != nil { // want `http\.Get, called through lib\.Deep → Call \(lib\.go:14\), is called inside`
		return err
	}
	if err := lib.Allowed(ctx); err != nil {
		return err
	}
	lib.End(1, tx) // want `tx\.Commit, called through lib\.End \(lib\.go:\d+\), ends` `tx\.Exec, called through lib\.End \(lib\.go:\d+\), drops`
	return lib.Right(ctx, tx)
}

func other(ctx context.Context, tx *sql.Tx, m *sekali.Message, own *sql.Tx) {
	lib.End(1, own)
}

func use(ctx context.Context, inbox *sekali.Inbox[*sql.Tx]) error {
	err := lib.Once(ctx, inbox, func(ctx context.Context, tx *sql.Tx) error {
		return lib.Call(ctx) // want `http\.Get, called through lib\.Call \(lib\.go:14\), is called inside`
	})
	if err != nil {
		return err
	}
	if _, err := inbox.Process(ctx, "k", lib.Handle); err != nil { // want `http\.Get, called through lib\.Handle → Call \(lib\.go:14\), is called inside`
		return err
	}
	_, err = inbox.Process(ctx, lib.Stamp(), lib.Right) // want `time\.Now, called through lib\.Stamp \(lib\.go:\d+\), differs`
	return err
}
