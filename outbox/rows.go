package outbox

import (
	"context"
	"errors"
	"time"
)

// Lanes is how many there are. An ordering key (and an event without one) falls
// into one of them by a hash that the database computes; Relays share the
// lanes, so more Relays than lanes are of no use.
const Lanes = 64

// Status is where an event stands.
type Status string

// The statuses.
const (
	// Pending: to be published.
	Pending Status = "pending"
	// Published: the broker has confirmed it.
	Published Status = "published"
	// Parked: the broker refuses it, or it cannot be read. It waits for
	// somebody's decision.
	Parked Status = "parked"
	// Discarded: somebody decided that it is not published.
	Discarded Status = "discarded"
)

// Statuses are all that there are.
func Statuses() []Status { return []Status{Pending, Published, Parked, Discarded} }

// Row is an event in the table.
type Row struct {
	// ID is its number; 0 before it was inserted.
	ID int64
	// Lane in which it is, 0 to Lanes-1.
	Lane int
	// MessageID, Topic, OrderingKey, Body, NotBefore are those of Message.
	MessageID   string
	Topic       string
	OrderingKey []byte
	Body        []byte
	NotBefore   time.Time
	// Headers as UnmarshalHeaders reads them.
	Headers []byte

	Status Status
	// Attempts counts how often the broker has refused it.
	Attempts int
	// Error is why it was not published the last time.
	Error string
	// CreatedAt and PublishedAt, in UTC by the database's clock; the latter is
	// zero until then.
	CreatedAt, PublishedAt time.Time
}

// Rows is what a Relay needs of the table. All methods may be called at once
// from many goroutines; each is a short transaction of its own.
type Rows interface {
	// Tend says that a relay is alive, and renews its lanes for lease. It gives
	// up those in leave, and takes free ones if the relay has less than its
	// share. It returns the relay's lanes and what its share is.
	Tend(ctx context.Context, relay string, lease time.Duration, leave []int) (lanes []int, share int, err error)
	// Leave gives up all that a relay has.
	Leave(ctx context.Context, relay string) error
	// Pending returns the events to be published, in the order of their
	// numbers, as one statement sees them.
	Pending(ctx context.Context, w Want) ([]Row, error)
	// Done records what became of events, all or nothing. What is not pending
	// any more, or in a lane that is not the relay's any more, stays as it is.
	Done(ctx context.Context, relay string, published []int64, failed []Failure) error
	// Stats tells how much there is to do.
	Stats(ctx context.Context) (Stats, error)
	// Check tells whether the tables are there.
	Check(ctx context.Context) error
}

// Want says which pending events to return.
type Want struct {
	Lanes []int
	// Except are ordering keys whose events are not wanted now.
	Except [][]byte
	// HoldKeys leaves out events behind a parked one of their ordering key.
	HoldKeys bool
	Limit    int
}

// Failure is an event that was not published.
type Failure struct {
	ID    int64
	Error string
	// Refused tells that the attempt counts.
	Refused bool
	// Park it.
	Park bool
	// Delay before it is tried again. It is kept for events without an ordering
	// key alone: others wait in the Relay, and those behind them with them.
	Delay time.Duration
}

// Stats is how much there is to do.
type Stats struct {
	// Pending and Parked count events, at most MaxCount of each: nobody waits
	// for a count of millions.
	Pending, Parked int
	// Lag is how long ago the oldest pending event that is due was created; 0:
	// there is none.
	Lag time.Duration
}

// MaxCount is how far Stats counts.
const MaxCount = 100_000

// ErrNotFound is the error of a Get for an event that is not there.
var ErrNotFound = errors.New("no such event in the outbox")

// ErrNotParked is the error of a decision about an event of which nothing is to
// be decided.
var ErrNotParked = errors.New("nothing is to be decided about the event")

// Filter chooses events. Empty fields choose all.
type Filter struct {
	Status Status
	Topic  string
	// OrderingKey chooses the events of one key.
	OrderingKey []byte
	// MessageID chooses one event by its id.
	MessageID string
	// Before keeps numbers below it: for the next page, the last of this one.
	Before int64
	// Limit is how many to return at most. Defaults to 100.
	Limit int
}

// DefaultLimit is what Filter.Limit defaults to.
const DefaultLimit = 100

// Decision says who decides, and why, for the audit trail. By is required.
type Decision struct{ By, Note string }

// Desk is where people look at the outbox and decide. A decision is written to
// the audit trail in the same transaction.
type Desk interface {
	// List returns the events that f lets through, newest first.
	List(ctx context.Context, f Filter) ([]Row, error)
	// Get returns one event, or an error that wraps ErrNotFound.
	Get(ctx context.Context, id int64) (Row, error)
	// Retry has a parked event published again, its attempts counted anew. An
	// error that wraps ErrNotParked: it is not parked.
	Retry(ctx context.Context, id int64, d Decision) error
	// Discard has a parked or pending event never published. A pending one may
	// be on its way already.
	Discard(ctx context.Context, id int64, d Decision) error
}
