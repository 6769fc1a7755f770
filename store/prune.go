package store

import (
	"context"
	"errors"
	"time"
)

// MinKeep is the shortest time that a pruner may keep rows. A Consumer relies
// on it: it asks for the mark only for messages that are older than half of it.
const MinKeep = time.Hour

// ErrPruning is the error of a Pruner whose database another pruner works on:
// one at a time does.
var ErrPruning = errors.New("another pruner is at work on this database")

// Prunable names a kind of rows that a Pruner removes when they are old.
type Prunable string

// The kinds of rows.
const (
	// PruneKeys: processed_messages, except keys with a letter that somebody
	// has still to decide about or that was sent to its origin, and keys with
	// an effect that is not finished. For what is removed, a mark is left.
	PruneKeys Prunable = "keys"
	// PruneDeadLetters: dead_letters that are resolved.
	PruneDeadLetters Prunable = "dead-letters"
	// PruneEffects: external_effects that have succeeded or failed, except
	// those of keys with a letter that somebody has still to decide about.
	PruneEffects Prunable = "effects"
	// PruneOutbox: outbox_messages that are published. Pending, parked and
	// discarded ones stay.
	PruneOutbox Prunable = "outbox"
	// PruneVersions: entity_versions.
	PruneVersions Prunable = "versions"
	// PruneStarts: message_starts.
	PruneStarts Prunable = "starts"
	// PruneStats: consumer_stats.
	PruneStats Prunable = "statistics"
	// PruneAudit: audit_trail.
	PruneAudit Prunable = "audit"
)

// Prunables are all that there are.
func Prunables() []Prunable {
	return []Prunable{PruneKeys, PruneDeadLetters, PruneEffects, PruneOutbox, PruneVersions, PruneStarts, PruneStats, PruneAudit}
}

// Pruner is what a Store offers, by a method Pruner() Pruner, that can remove
// rows when they are old. Ages are told by the database's clock. Package
// retention has the policy that drives it.
type Pruner interface {
	// Lease takes or extends the right to prune, for a time; ErrPruning: another
	// token has it.
	Lease(ctx context.Context, token string, lease time.Duration) error
	// Release gives the right back, if it is still the token's.
	Release(ctx context.Context, token string) error
	// Prune looks at the next rows and removes those of them that are old, in one
	// short transaction, together with the marks that tell of them. Rows that
	// somebody else has locked it passes over.
	Prune(ctx context.Context, b PruneBatch) (Pruned, error)
	// Expired counts the rows that Prune would remove.
	Expired(ctx context.Context, rows Prunable, keep time.Duration) (int64, error)
	// Check tells whether the tables are there and fit, as a *SchemaError.
	Check(ctx context.Context) error
	// Classify is the Store's.
	Classify(err error) Class
}

// PruneBatch is the work of one Prune.
type PruneBatch struct {
	Rows Prunable
	// Keep is the age up to which rows stay, MinKeep at least.
	Keep time.Duration
	// Token has the right to prune, and extends it by Lease with this batch.
	Token string
	Lease time.Duration
	// Size is how many rows are removed at most.
	Size int
	// From is where to go on: Pruned.Next of the batch before.
	From PrunePlace
}

// PrunePlace is how far a walk through a table has come. The zero value is its
// beginning. Only the Pruner that made it understands it.
type PrunePlace struct{ Consumer, Key string }

// Pruned is what became of one batch.
type Pruned struct {
	Removed int
	// More tells that there may be more: go on from Next.
	More bool
	Next PrunePlace
}

// Marks is what a Store offers, by a method Marks() Marks[Tx], from which a
// pruner removes keys. A consumer's mark is the time of the youngest of its keys
// that were removed: a message that was published before and whose key is not
// there may have been processed. A mark never goes back, and moves in the
// transaction that removes the keys.
type Marks[Tx any] interface {
	// MarkIn returns the mark in a transaction from Begin, after its claim; zero
	// if there is none. If a key of the claim is fresh because it was removed,
	// the mark is that removal's or a later one, whatever the isolation level;
	// where that cannot be, the error is of ClassConflict.
	MarkIn(ctx context.Context, tx Tx, consumer string) (time.Time, error)
	// Mark returns it without a transaction.
	Mark(ctx context.Context, consumer string) (time.Time, error)
}
