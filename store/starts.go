package store

import "context"

// Starts is what a Store offers, by a method Starts() Starts[Tx], that can
// keep the table message_starts: which messages a handler was started on that
// has not ended. A process that dies in a handler leaves such a row behind; a
// Consumer in careful mode finds the message by it that kills processes.
//
// consumer and key are those of a Claim; key is raw. All methods may be called
// at once from many goroutines.
type Starts[Tx any] interface {
	// Look returns whether a start that has not ended is recorded, and how
	// many lone ones were.
	Look(ctx context.Context, consumer, key string) (recorded bool, lone int, err error)

	// Start records that a handler is about to start, in a transaction of its
	// own, and returns how many lone starts are recorded now. lone counts this
	// one among them: nothing else is in work in the process meanwhile, so
	// that its death is the doing of this message.
	Start(ctx context.Context, consumer, key string, lone bool) (int, error)

	// TakeBack takes one lone start back, because the process outlived it or
	// the handler was not called. The row stays. Nothing happens without one.
	TakeBack(ctx context.Context, consumer, key string) error

	// End forgets the starts of a message.
	End(ctx context.Context, consumer, key string) error

	// EndIn is End in the transaction that claimed the key.
	EndIn(ctx context.Context, tx Tx, consumer, key string) error

	// Check tells whether the table is there and fit, as a *SchemaError.
	Check(ctx context.Context) error
}
