// Package deadletter keeps messages that could not be processed: with their
// bytes, headers, key and the reason, where a person can read them and decide.
//
// A Consumer writes a letter, and has it confirmed, before it acknowledges the
// original. A message is therefore either in the broker or a letter, never
// neither.
package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/broker"
)

// ErrNotFound is the error of a Get for a letter that is not there.
var ErrNotFound = errors.New("no such dead letter")

// Reason says why a message became a dead letter.
type Reason string

// The reasons.
const (
	// Exhausted: the handler failed as often as MaxAttempts allows.
	Exhausted Reason = "exhausted"
	// Permanent: the handler said that trying again is of no use.
	Permanent Reason = "permanent"
	// NoKey: no message key could be taken from the message.
	NoKey Reason = "no-key"
	// Conflict: another message with another body was processed under its key.
	Conflict Reason = "conflict"
	// Survived: the handler committed by itself, or ran DDL that did, so that
	// the key is recorded and perhaps half the effect. Look at the business
	// data before anything else.
	Survived Reason = "survived"
	// Crashed: its handler was started MaxCrashes times while nothing else was
	// in work, and each time the process died.
	Crashed Reason = "crashed"
	// Blocked: an earlier message of its ordering key is a dead letter or
	// held, and Config.OnBlocked is HoldKey. Its status is Held.
	Blocked Reason = "blocked"
	// Parked: an effect of it outside the database waits for a person. Its
	// status is Waiting.
	Parked Reason = "parked"
	// TooOld: the message was published before keys of its consumer were removed
	// by a pruner, so that nobody knows whether it was processed. Look at the
	// business data; then discard it, or redrive it with force.
	TooOld Reason = "too-old"
)

// Status says what became of a letter.
type Status string

// The statuses.
const (
	// Open: somebody must decide.
	Open Status = "open"
	// Held: it waits, unprocessed, for what is before it in its ordering key.
	Held Status = "held"
	// Requested: somebody decided that it is to be processed again; the
	// consumer takes it when it runs.
	Requested Status = "requested"
	// Waiting: it goes on by itself when none of its effects is parked any more.
	Waiting Status = "waiting"
	// Processed: it has had its effect, after a redrive.
	Processed Status = "processed"
	// Duplicate: a redrive found that its key had been processed before.
	Duplicate Status = "duplicate"
	// Stale: a redrive found that its entity was newer already.
	Stale Status = "stale"
	// Discarded: somebody decided that it is never to have an effect.
	Discarded Status = "discarded"
	// Sent: it was published to where it had come from.
	Sent Status = "sent"
)

// Statuses are all that there are. Letters of the first four are unresolved.
func Statuses() []Status {
	return []Status{Open, Held, Requested, Waiting, Processed, Duplicate, Stale, Discarded, Sent}
}

// Unresolved tells that something has still to happen with a letter.
func (s Status) Unresolved() bool {
	return s == Open || s == Held || s == Requested || s == Waiting
}

// Reasons are all that there are.
func Reasons() []Reason {
	return []Reason{Exhausted, Permanent, NoKey, Conflict, Survived, Crashed, Blocked, Parked, TooOld}
}

// Letter is a message that could not be processed.
type Letter struct {
	// ID of the letter in its queue; 0 before it is written.
	ID int64
	// Consumer that could not process it.
	Consumer string
	// Key is the message key, as the extractor returned it; empty if none
	// could be taken.
	Key string
	// OrderingKey is what keeps it in order with others, as Config.Order gave
	// it; empty: nothing does.
	OrderingKey string
	// Reason is the kind of failure, Error the text of the last one.
	Reason Reason
	Error  string
	// Message is the original, untouched by handlers.
	Message broker.Message
	// Attempts is how often the handler was called on it in vain, since the
	// consumer's process last received it.
	Attempts int
	// Copies is how many copies of it were written: redelivered copies of a
	// message whose letter is open update that letter.
	Copies int
	Status Status
	// FirstAt and LastAt are when its first and its last copy were written, in
	// UTC by the clock of whatever keeps the letter.
	FirstAt, LastAt time.Time
}

// Sink takes letters.
type Sink interface {
	// Put writes a letter and returns nil when it is kept durably. There is
	// one unresolved letter for each Identity: a further copy updates reason,
	// error, attempts and LastAt, counts in Copies, and is open (or waiting, if
	// l.Status is), unless a redrive of it was requested. It may be called at once from many
	// goroutines, and again after an error.
	Put(ctx context.Context, l Letter) error
}

// Queue is a Sink whose letters can be read.
type Queue interface {
	Sink
	// List returns the letters that f lets through, newest ID first, without
	// their bodies' being looked into.
	List(ctx context.Context, f Filter) ([]Letter, error)
	// Get returns one letter, or an error that wraps ErrNotFound.
	Get(ctx context.Context, id int64) (Letter, error)
}

// Holder is what a Sink offers that can keep messages back, in their order,
// while an earlier one of their ordering key waits for somebody's decision.
type Holder interface {
	// Blocked tells whether an unresolved letter of the consumer's ordering key
	// is there. orderingKey is not empty.
	Blocked(ctx context.Context, consumer, orderingKey string) (bool, error)
	// Hold writes l with the status Held, behind all that is held of its
	// ordering key. A further copy of what is open or held counts as a copy
	// and keeps its place and status.
	Hold(ctx context.Context, l Letter) error
}

// Checker is what a Sink offers that can tell beforehand whether it will be
// able to take letters. A Consumer asks at its start.
type Checker interface {
	Check(ctx context.Context) error
}

// Filter chooses letters. Empty fields choose all.
type Filter struct {
	Consumer string
	// Key is a raw message key.
	Key string
	// OrderingKey is a raw ordering key.
	OrderingKey string
	Reason      Reason
	Status      Status
	// Unresolved chooses those with which something has still to happen: open,
	// held, requested and waiting ones.
	Unresolved bool
	// Topic from which it came.
	Topic string
	// Before keeps IDs below it: for the next page, the last ID of this one.
	Before int64
	// Limit is how many to return at most. Defaults to 100.
	Limit int
}

// DefaultLimit is what Filter.Limit defaults to.
const DefaultLimit = 100

// Identity returns what makes two letters copies of one: consumer, key and
// body, and where there is no key the broker's id too. The parts are hashed
// with their lengths, so that no two different lists of parts look alike.
func (l Letter) Identity() [sha256.Size]byte {
	h := sha256.New()
	part := func(present bool, b []byte) {
		var head [9]byte
		if present {
			head[0] = 1
		}
		binary.BigEndian.PutUint64(head[1:], uint64(len(b)))
		h.Write(head[:])
		h.Write(b)
	}
	part(true, []byte(l.Consumer))
	part(l.Key != "", []byte(l.Key))
	part(l.Message.Body != nil, l.Message.Body)
	if l.Key == "" {
		part(true, []byte(l.Message.ID))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// maxError is how much of an error's text a letter keeps, in bytes.
const maxError = 8 << 10

// CleanError returns the text of an error as every database can store it:
// valid UTF-8 without NUL, 8 KiB at most. A text is for people; the message
// beside it keeps every byte.
func CleanError(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= maxError {
		return text
	}
	cut := maxError - len("…")
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
