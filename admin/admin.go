// Package admin is what people who run consumers look at and decide about:
// which messages were processed, what became dead letters, effects whose
// outcome nobody knows, events that are not published, and whether all is well.
// The command line and the operator page use nothing else.
//
//	desk := pgxstore.New(pool).Admin()
//	rows, err := desk.Keys.Find(ctx, "order-42:paid")
//
// A store gives it by its method Admin. It is no part of processing: nothing
// here is called for a message.
//
// Tables may have many millions of rows. Lists go in pages, each of which is
// read by an index from where the last one ended; counts end at MaxCount. What
// must read a whole table says so.
package admin

import (
	"context"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/outbox"
)

// Admin is what a store offers to people. Its parts may be called at once from
// many goroutines. An error that wraps a *store.SchemaError names a table that
// is not there, and what makes it.
type Admin struct {
	Keys        Keys
	DeadLetters DeadLetters
	Effects     Effects
	Outbox      Outbox
	Health      Health
}

// Keeper is what a Store offers: find it with store.As.
type Keeper interface{ Admin() Admin }

// Decision says who decides, and why, for the audit trail. By is required.
type Decision struct{ By, Note string }

// DeadLetters is where dead letters are read and decided about: see
// deadletter.Desk.
type DeadLetters interface {
	List(ctx context.Context, f deadletter.Filter) ([]deadletter.Letter, error)
	Get(ctx context.Context, id int64) (deadletter.Letter, error)
	Redrive(ctx context.Context, id int64, d deadletter.Decision) error
	Discard(ctx context.Context, id int64, d deadletter.Decision) error
	Sent(ctx context.Context, id int64, d deadletter.Decision) error
	Record(ctx context.Context, a deadletter.Audit) error
	Trail(ctx context.Context, id int64, limit int) ([]deadletter.Audit, error)
}

// Effects is where effects outside the database are read and resolved: see
// effect.Desk.
type Effects interface {
	List(ctx context.Context, f effect.Filter) ([]effect.Row, error)
	Get(ctx context.Context, number int64) (effect.Row, error)
	Resolve(ctx context.Context, number int64, r effect.Resolution) error
}

// Outbox is where events are read and decided about: see outbox.Desk.
type Outbox interface {
	List(ctx context.Context, f outbox.Filter) ([]outbox.Row, error)
	Get(ctx context.Context, id int64) (outbox.Row, error)
	Retry(ctx context.Context, id int64, d outbox.Decision) error
	Discard(ctx context.Context, id int64, d outbox.Decision) error
	// Stats tells how much there is to do: see outbox.Rows.
	Stats(ctx context.Context) (outbox.Stats, error)
}

// Health tells what goes on and whether all is well.
type Health interface {
	// Activity returns what consumers did, from the table consumer_stats.
	Activity(ctx context.Context, s Span) ([]Bucket, error)
	// Overview returns what waits for people or for consumers.
	Overview(ctx context.Context) (Overview, error)
	// Backlog is Overview without its Consumers: short queries, by indexes, each
	// of which counts to MaxCount, for whoever asks every few seconds.
	Backlog(ctx context.Context) (Overview, error)
	// Facts returns what Diagnose judges. It takes two connections, and reads
	// catalogues and the ends of indexes, no whole table. An error says that
	// the database could not be asked; what it answers is never one.
	Facts(ctx context.Context) (Facts, error)
}

// MaxCount is how far things are counted: nobody waits for a count of millions.
const MaxCount = outbox.MaxCount

// Overview is what waits for people or for consumers.
type Overview struct {
	// DeadLetters are the unresolved letters by their status: open, held,
	// requested, waiting.
	DeadLetters map[deadletter.Status]Waiting
	// Effects are those that wait, by their state: unknown ones, parked ones,
	// and started ones whose process ended (their lease is over).
	Effects map[effect.State]Waiting
	// Outbox is how much is to be published.
	Outbox outbox.Stats
	// Consumers are all that have rows or statistics, by name.
	Consumers []Consumer
	// Missing are the tables that are not there, without which a part of this
	// is empty.
	Missing []string
}

// Waiting is how many there are of something.
type Waiting struct {
	// Count ends at MaxCount.
	Count int
	// Oldest is how long ago the one with the lowest ID was written (an effect:
	// changed); 0: there is none.
	Oldest time.Duration
}

// Consumer is a name under which rows are stored.
type Consumer struct {
	Name string
	// HasKeys tells that it has rows in processed_messages.
	HasKeys bool
	// LastActive is the last minute, in UTC, in which it did something, by the
	// table consumer_stats; zero if that knows of none within ActiveWithin.
	LastActive time.Time
}

// ActiveWithin is how far back consumers are looked for in consumer_stats.
const ActiveWithin = 30 * 24 * time.Hour
