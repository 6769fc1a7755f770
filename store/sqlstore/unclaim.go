package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/sekali/sekali/store"
)

var _ store.Unclaimer[*sql.Tx] = (*Store)(nil)

// unclaimAtOnce keeps a statement below every database's limit of parameters.
const unclaimAtOnce = 500

// Unclaim implements store.Unclaimer.
func (s *Store) Unclaim(ctx context.Context, tx *sql.Tx, c store.Claim) error {
	if err := s.remove(ctx, tx, c.Consumer, newKeys(c).stored()); err != nil {
		return fmt.Errorf("take claims of consumer %q back: %w", c.Consumer, err)
	}
	return nil
}

// remove deletes the rows of keys, given in their stored forms.
func (s *Store) remove(ctx context.Context, tx *sql.Tx, consumer string, stored []string) error {
	for keys := range slices.Chunk(stored, unclaimAtOnce) {
		q := query{texts: s.texts}
		q.add("DELETE FROM "+s.texts.ProcessedMessages+" WHERE consumer_name = ? AND message_key IN (", consumer)
		for i, key := range keys {
			comma := ", "
			if i == 0 {
				comma = ""
			}
			q.add(comma+"?", key)
		}
		q.add(")")
		if _, err := tx.ExecContext(ctx, q.sql.String(), q.args...); err != nil {
			return err
		}
	}
	return nil
}
