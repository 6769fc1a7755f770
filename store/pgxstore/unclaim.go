package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

var _ store.Unclaimer[pgx.Tx] = (*Store)(nil)

// Unclaim implements store.Unclaimer.
func (s *Store) Unclaim(ctx context.Context, tx pgx.Tx, c store.Claim) error {
	keys := make([]string, len(c.Keys))
	for i := range keys {
		keys[i] = store.StoredKey(c.Keys[i].Raw)
	}
	if _, err := tx.Exec(ctx, s.unclaimSQL(), c.Consumer, pgsql.Array(keys)); err != nil {
		return fmt.Errorf("take claims of consumer %q back: %w", c.Consumer, err)
	}
	return nil
}

// unclaimSQL returns the statement that removes keys: $1 is the consumer, $2
// an Array of their stored forms.
func (s *Store) unclaimSQL() string {
	return "DELETE FROM " + pgsql.Quote(s.tables, s.tables.ProcessedMessages) +
		" WHERE consumer_name = $1::text AND message_key = ANY($2::text[])"
}
