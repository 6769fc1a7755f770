// Package sekali makes duplicates harmless: the idempotent consumer for
// message brokers and SQL databases.
//
// A broker delivers at least once, so the same message comes twice. Sekali
// records the key of each message in the same database transaction as the
// business change that the message causes; when the key is already there, the
// message is a duplicate and has no effect. The message is acknowledged after
// the commit, never before.
//
// An Inbox guards single calls, in code that has its own way of receiving:
//
//	stock := sekali.NewInbox(pgxstore.New(pool), "stock-service")
//	outcome, err := stock.Process(ctx, "order-42:paid", func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `UPDATE stock SET quantity = quantity - $1 WHERE sku = $2`, 1, "KOPI-250")
//		return err
//	})
//
// A Consumer does the whole: it receives from a broker, takes the key, claims
// it, calls the handler, commits, acknowledges, retries, and keeps what cannot
// be processed as dead letters.
//
// The promise holds for what a handler does through the transaction that it is
// handed, as long as committed data is durable and rows outlive the longest
// path of a duplicate. It does not hold for what a handler does to the rest of
// the world by itself.
package sekali

import (
	"context"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

// Headers that copies of a message carry when Sekali makes them, so that the
// key is taken once. They win over the key extractor, but only for the
// consumer that they name: another consumer, and a producer's header of the
// same name without the other, take the key in their usual way. Their values
// are escaped by deadletter.EscapeHeader.
const (
	HeaderKey      = deadletter.HeaderKey
	HeaderConsumer = deadletter.HeaderConsumer
)

// Message is a message on its way to a handler. The bytes are the handler's
// own copy: whatever it does to them, the next attempt and the dead letter see
// the original. (Publishers take the broker.Message inside.)
type Message struct {
	broker.Message
	key    string
	letter int64
}

// Key returns the message key: what the extractor returned, not its stored
// form. It is empty while the extractor itself runs.
func (m *Message) Key() string { return m.key }

// Letter returns the ID of the dead letter from which the message comes, by a
// redrive or because it was held; 0 if it comes from the broker.
func (m *Message) Letter() int64 { return m.letter }

// Outcome says what became of a message. The zero value stands beside an
// error: nothing was decided. A Conflict stands beside ErrConflict.
type Outcome uint8

// The outcomes.
const (
	// Processed: the key was fresh, the handler ran, both are committed.
	Processed Outcome = iota + 1
	// Duplicate: the key was there. The handler did not run. (If the answer
	// to an earlier commit of this very call was lost, the call did the work
	// itself and still reports Duplicate.)
	Duplicate
	// Conflict: the key was there, for a message with another fingerprint.
	// The handler did not run; it is never to be passed over in silence.
	Conflict
	// Stale: the key was fresh, and the message's entity has a newer version
	// (Config.Version). The handler did not run; both are committed.
	Stale
)

// String returns the name of the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	case Stale:
		return "stale"
	}
	return "unknown"
}

// Handler changes business data for one message, through tx alone. It runs
// once per attempt and must not commit, roll back or keep tx. An error rolls
// everything back, the claim included.
type Handler[Tx any] func(ctx context.Context, tx Tx, m *Message) error

// BatchHandler changes business data for several messages at once, through tx
// alone: all of them, or none and an error. All of them are fresh, and those of
// one ordering key stand in their order. An error that wraps a *store.FailedAt
// says which of them is at fault; of another one halving finds it, which calls
// the handler again with fewer.
type BatchHandler[Tx any] func(ctx context.Context, tx Tx, m []*Message) error
