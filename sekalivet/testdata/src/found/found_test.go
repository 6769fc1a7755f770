package found

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
)

// Tests break rules to see what comes of it.
func broken(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	_, err := http.Get("https://example.com/test")
	return err
}
