package store

import "context"

// Unclaimer is what a Store offers that can take claims back before their
// transaction ends, so that a batch whose handlers are slow is committed
// early. Without it, such a batch stays open until its last handler.
type Unclaimer[Tx any] interface {
	// Unclaim removes keys that this transaction claimed, all of them Fresh,
	// as if they had not been claimed.
	Unclaim(ctx context.Context, tx Tx, c Claim) error
}
