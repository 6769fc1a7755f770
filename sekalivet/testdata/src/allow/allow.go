// Package allow is about comments that allow.
package allow

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
)

func handle(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	//sekalivet:allow the label printer is idempotent by order number
	if _, err := http.Get("https://example.com"); err != nil {
		return err
	}
	_, _ = http.Get("https://example.com") //sekalivet:allow asks only

	/* // want `gives no reason, so it allows nothing` */ //sekalivet:allow
	_, _ = http.Get("https://example.com") // want `http\.Get is called inside`

	if _, err := tx.Exec(ctx, `UPDATE stock SET quantity = 0`); err != nil { //sekalivet:allow for nothing // want `has nothing to allow on its line`
		return err
	}
	//sekalivet:allow for this handler it does not matter
	if err := elsewhere(); err != nil {
		return err
	}
	return called()
}

func elsewhere() error {
	_, err := http.Get("http://localhost")
	return err
}

func called() error {
	//sekalivet:allow it answers from a cache of this machine
	_, err := http.Get("http://localhost")
	return err
}

//sekalivet:allowance is another comment
