package effect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// State says what is known of an effect.
type State string

// The states, and what leads to each.
//
//	started    an attempt took the row: it is new, or failed, unknown, or its
//	           owner's lease was over. While the lease lives nobody else calls.
//	succeeded  the call returned without an error, the look-up found the effect,
//	           or a person said so. For ever: the result is returned.
//	failed     it has certainly not happened: the call said NotDone or Refused,
//	           and no earlier one is unknown; or a person said so. The next
//	           attempt calls again, unless the person gave it up (Final).
//	unknown    the call ended with another error, a panic or no answer. The next
//	           attempt repeats, looks up or parks, as the user chose.
//	parked     a person must decide: the user chose so for what is unknown, or
//	           the provider may have forgotten the key, or the result could not be
//	           recorded. It stays until somebody resolves it.
//
// A started row whose lease is over is as good as unknown: its owner died, or
// is so slow that it will find the row taken (the token has changed).
const (
	Started   State = "started"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Unknown   State = "unknown"
	Parked    State = "parked"
)

// States are all that there are.
func States() []State { return []State{Started, Succeeded, Failed, Unknown, Parked} }

// ID names an effect.
type ID struct {
	// Consumer whose effect it is, and the key of the message that causes it.
	Consumer, MessageKey string
	// Name of the effect among those of the message, 1 to 100 bytes of
	// printable ASCII.
	Name string
}

// Row is what the ledger knows of an effect. Times and durations are by the
// clock of whatever keeps it.
type Row struct {
	ID
	// Number of the row, for people; ascending by age.
	Number int64
	State  State
	// Final tells that a person gave a failed one up.
	Final bool
	// IdempotencyKey is the provider's.
	IdempotencyKey string
	// Attempt counts how often it was started.
	Attempt int
	// Token changes with each start. Whoever holds an older one changes nothing.
	Token int64
	// Result in JSON, of a succeeded one.
	Result []byte
	// Error is the text of the last failure, or why it is parked; of a row that
	// a person resolved, who and why: see Decision.
	Error string

	// LeaseLeft is how long its owner has left; 0: nobody owns it.
	LeaseLeft time.Duration
	// SinceFirst and SinceStart are how long ago it was first and last started.
	SinceFirst, SinceStart time.Duration
	// UpdatedAt is when the row changed last, in UTC.
	UpdatedAt time.Time
}

// decided begins the text that a resolved row has in the place of an error.
const decided = "resolved by "

// Decision says who resolved the row, and why; empty if nobody did since it was
// last called.
func (r Row) Decision() string {
	if rest, is := strings.CutPrefix(r.Error, decided); is {
		return "by " + rest
	}
	return ""
}

// Rows keeps the ledger. All methods may be called at once from many
// goroutines; each is a short transaction of its own.
type Rows interface {
	// Start makes a started row of an effect that has none, owned by us for
	// lease. If there is one, it returns that and false.
	Start(ctx context.Context, id ID, idempotencyKey string, lease time.Duration) (Row, bool, error)
	// Take starts a row that Start returned and that nobody owns, unless its
	// state is Succeeded or Parked. It returns false if somebody was faster.
	Take(ctx context.Context, r Row, lease time.Duration) (Row, bool, error)
	// Extend renews our lease. It returns false if the row is not ours.
	Extend(ctx context.Context, r Row, lease time.Duration) (bool, error)
	// Bind records what is sent under the key: see Call.Bind. An error that
	// wraps ErrStale: the row is not ours.
	Bind(ctx context.Context, r Row, fingerprint []byte) error
	// End ends our attempt. An error that wraps ErrStale: the row is not ours.
	End(ctx context.Context, r Row, to State, result []byte, text string) error
	// Check tells whether what it needs is there.
	Check(ctx context.Context) error
}

// ErrNotFound is the error of a Get for an effect that is not there.
var ErrNotFound = errors.New("no such effect")

// ErrResolved is the error of a decision about an effect whose outcome is
// known, and that comes too late or contradicts it.
var ErrResolved = errors.New("the effect's outcome is known already")

// Filter chooses rows. Empty fields choose all.
type Filter struct {
	Consumer, MessageKey, Name string
	State                      State
	// Before keeps Numbers below it: for the next page, the last of this one.
	Before int64
	// Limit is how many to return at most. Defaults to 100.
	Limit int
}

// DefaultLimit is what Filter.Limit defaults to.
const DefaultLimit = 100

// Resolution is what a person says of an effect.
type Resolution struct {
	// To is Succeeded (it has happened) or Failed (it has not, or may happen
	// again: it is called once more).
	To State
	// Result in JSON, if it has happened. Defaults to null.
	Result []byte
	// GiveUp says of a failed one that it shall not be called any more.
	GiveUp bool
	// By says who decided, Note why, for the audit trail. By is required.
	By, Note string
}

// Text is what a row has in the place of an error when it is resolved so. It has
// none where a call succeeded: nobody has to say that.
func (r Resolution) Text(before Row) string {
	if before.State == Succeeded && before.Decision() == "" {
		return ""
	}
	if r.Note == "" {
		return decided + r.By
	}
	return decided + r.By + ", " + r.Note
}

// Corrects tells whether r changes what is known of a row already: what a person
// said of it before, or the result of one that succeeded, whose shape the handler
// cannot read. That has a sense until its message is processed. An error that
// wraps ErrResolved: a call succeeded, and nobody can say that it did not.
func (r Resolution) Corrects(row Row) (bool, error) {
	switch {
	case row.State != Succeeded && !row.Final:
		return false, nil
	case row.State == Succeeded && row.Decision() == "" && (r.To != Succeeded || r.Result == nil):
		return false, fmt.Errorf("%w: its call succeeded; what can be corrected is its result", ErrResolved)
	}
	return true, nil
}

// Desk is where people look at the ledger and decide. A decision is written to
// the audit trail in the same transaction.
type Desk interface {
	// List returns the rows that f lets through, newest first.
	List(ctx context.Context, f Filter) ([]Row, error)
	// Get returns one row, or an error that wraps ErrNotFound.
	Get(ctx context.Context, number int64) (Row, error)
	// Resolve decides about a row that nobody owns. It may be called again, to
	// correct what was said before (see Resolution.Corrects), until the message
	// is processed: from then on, its error wraps ErrResolved.
	Resolve(ctx context.Context, number int64, r Resolution) error
}
