package deadletter

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrNotOurs is the error of a Source whose letter was given to somebody
	// else, or resolved, since it was taken.
	ErrNotOurs = errors.New("the dead letter is no longer ours")

	// ErrNotALetter is the error of FromMessage for another message.
	ErrNotALetter = errors.New("the message is not a dead letter")

	// ErrResolved is the error of a decision about a letter with which nothing
	// has to happen any more.
	ErrResolved = errors.New("the dead letter is resolved already")
)

// Redrive is a letter that a running Consumer has taken to process it again.
type Redrive struct {
	Letter Letter
	// Key is the message key under which it is to be processed, if that is
	// another one than the letter's; else empty.
	Key string
	// Force has it processed even if its key is there: the key's row goes in
	// the transaction in which the handler runs.
	Force bool
	// Takes is how often it was taken since it was requested, this time
	// included. Above 1, a process may have died of it.
	Takes int
	// Token says that it is ours, until its lease is over.
	Token string
}

// Source gives a running Consumer the letters that are to be processed: those
// whose redrive was requested, held ones before which nothing unresolved is
// left in their ordering key, and waiting ones without a parked effect. It hands out one of an ordering key at a
// time, in their order, to whichever instance asks first.
//
// What is taken is ours until its lease is over; then another instance may
// take it. All methods may be called at once from many goroutines.
type Source[Tx any] interface {
	// Take takes up to most letters of a consumer; none is no error.
	Take(ctx context.Context, consumer string, most int, lease time.Duration) ([]Redrive, error)
	// Extend renews the leases of those that are still ours, and returns
	// their IDs.
	Extend(ctx context.Context, r []Redrive, lease time.Duration) ([]int64, error)
	// ResolveIn records, in the transaction that holds the claim, that the
	// letter is Processed or Stale. An error that wraps ErrNotOurs: the
	// transaction must be rolled back.
	ResolveIn(ctx context.Context, tx Tx, r Redrive, s Status) error
	// Resolve records that it has nothing left to do: Duplicate.
	Resolve(ctx context.Context, r Redrive, s Status) error
	// Reopen records why it could not be processed this time either. l has the
	// new Reason, Error and Attempts, and the new Status: Open or Waiting.
	Reopen(ctx context.Context, r Redrive, l Letter) error
	// Release gives letters back unprocessed.
	Release(ctx context.Context, r []Redrive) error
	// Check tells whether what it needs is there.
	Check(ctx context.Context) error
}

// Decision is what an operator decides about a letter.
type Decision struct {
	// By says who decided, for the audit trail. Required.
	By string
	// Note says why, for the audit trail.
	Note string

	// Force and Key are those of a Redrive. Force is for Sent too.
	Force bool
	Key   string
	// Effects has its effects outside the database happen again, under new
	// idempotency keys. Else those that succeeded keep their results.
	Effects bool
}

// Audit is an entry of the audit trail.
type Audit struct {
	ID       int64
	At       time.Time // UTC
	By       string
	Action   string // "redrive", "discard", "send"
	Consumer string
	Key      string // as it came
	Letter   int64  // ID; 0: it is about no letter
	Detail   string
}

// Desk is what a Queue offers at which letters are decided about. Each
// decision is written to the audit trail in the same transaction. A letter
// that is resolved stays as it is: an error that wraps ErrResolved.
type Desk interface {
	Queue
	// Count counts the letters that f lets through, whatever its Limit, by
	// their reasons.
	Count(ctx context.Context, f Filter) (map[Reason]int, error)
	// Redrive requests that an open letter be processed again. It makes no
	// difference to one that is requested already and not taken, but that the
	// new decision counts. A held letter is refused: it goes on by itself.
	Redrive(ctx context.Context, id int64, d Decision) error
	// Discard resolves a letter without its effect and records its key as
	// processed, so that late copies have none either.
	Discard(ctx context.Context, id int64, d Decision) error
	// Sent resolves a letter that was published to where it had come from. Its
	// key is not recorded: the copy is to have the effect. With Force, one that
	// was sent before may be sent again: it had gone to a wrong place.
	Sent(ctx context.Context, id int64, d Decision) error
	// Record adds an entry to the audit trail, about something that was done
	// elsewhere. Its ID and At are ignored.
	Record(ctx context.Context, a Audit) error
	// Trail returns the audit trail of a letter, oldest first; of all if id is
	// 0, the newest limit entries.
	Trail(ctx context.Context, id int64, limit int) ([]Audit, error)
}
