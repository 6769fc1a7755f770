package store

import "context"

// Versions is what a Store offers, by a method Versions() Versions[Tx], that can
// keep the table entity_versions: the newest version of each entity that a
// consumer has seen. consumer is that of a Claim; entity is any bytes. All
// methods may be called at once from many goroutines.
type Versions[Tx any] interface {
	// Advance raises an entity's version in the transaction that claimed the
	// key, and returns true if the entity had a newer one already: the message
	// is stale. It waits while another open transaction has raised it. An equal
	// version is not stale.
	Advance(ctx context.Context, tx Tx, consumer, entity string, version int64) (stale bool, err error)

	// Stale tells, without a transaction, whether the entity has a newer
	// version now.
	Stale(ctx context.Context, consumer, entity string, version int64) (bool, error)

	// Check tells whether the table is there and fit, as a *SchemaError.
	Check(ctx context.Context) error
}
