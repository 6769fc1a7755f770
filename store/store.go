// Package store is the contract between Sekali and a database that remembers
// which messages a consumer has processed.
//
// A store puts the key of a message into processed_messages inside the same
// transaction in which the handler changes business data. The primary key of
// that table, never a check in application code, refuses the duplicate.
//
// Users meet this package through its two implementations, pgxstore (Tx is
// pgx.Tx) and sqlstore (Tx is *sql.Tx). Whoever writes another one implements
// Store and runs the suite in storetest against it.
//
// The package is a leaf: it imports the standard library alone.
package store

import (
	"context"
	"time"
)

// DefaultCommitTimeout bounds a COMMIT. A COMMIT never runs under the
// caller's cancellation, so it needs a deadline of its own.
const DefaultCommitTimeout = 30 * time.Second

// DefaultRollbackTimeout bounds a ROLLBACK and the look whether the claim
// survived it.
const DefaultRollbackTimeout = 10 * time.Second

// Store is what a database must offer. All methods may be called at once from
// many goroutines; one transaction is used by one goroutine at a time.
//
// Constructors of stores do no I/O: the first call that needs the schema runs
// Check by itself, once, and again after it failed.
type Store[Tx any] interface {
	// Begin opens a transaction and claims the keys of c in it, in one round
	// trip where the driver can. It returns one State per key, in the order of
	// c.Keys. It waits while another open transaction holds a claim on one of
	// the keys: if that one commits, the key is a Duplicate; if it rolls back,
	// the key is Fresh here.
	//
	// Without an error the transaction is open, whatever the states are, and
	// the caller must end it by Commit or Rollback. With an error nothing is
	// open and nothing is claimed. The caller may call again after an error
	// whose Class is ClassConflict or ClassUnavailable.
	//
	// The transaction outlives ctx: ctx bounds Begin alone.
	Begin(ctx context.Context, c Claim) (Tx, []State, error)

	// Claim claims the keys of c in a transaction that the caller began and
	// will end. After an error the caller must roll that transaction back.
	// The store neither commits it nor looks after it.
	Claim(ctx context.Context, tx Tx, c Claim) ([]State, error)

	// Commit commits a transaction from Begin, after it proved that it is
	// still the one in which the keys were claimed. It ignores the
	// cancellation of ctx and has a deadline of its own. After it returns,
	// whatever it returns, the transaction is over and its connection is
	// given back, or closed if its state is in doubt.
	//
	// nil: claim and business change are durable. ErrTransactionLost: the
	// transaction was no longer ours or could only roll back; the claim is
	// gone, unless the error is ErrKeySurvived too. ErrCommitUnknown: the
	// answer did not come; run the whole again, the claim tells. Any other
	// error: nothing was committed.
	Commit(ctx context.Context, tx Tx) error

	// Rollback ends a transaction from Begin without its effect. It ignores
	// the cancellation of ctx and has a deadline of its own. It may be called
	// after Commit, and then does nothing and returns nil.
	//
	// ErrKeySurvived: the claim is durable although it was rolled back,
	// because the handler committed by itself or ran DDL that did. An error of
	// ClassUnavailable: the connection was lost, so the server rolls back.
	Rollback(ctx context.Context, tx Tx) error

	// Seen tells the states that Begin would find, without claiming: Fresh
	// here means only that the key is not there now.
	Seen(ctx context.Context, c Claim) ([]State, error)

	// Classify says whose fault an error is. It looks at codes and types,
	// never at texts: servers speak the language of their locale.
	Classify(err error) Class

	// Check compares the schema, the collations and the widths of the tables
	// with what Sekali needs. A *SchemaError says what is wrong and how to
	// mend it.
	Check(ctx context.Context) error
}

// Claim names the messages whose processing a transaction is to record.
type Claim struct {
	// Consumer is the name of the consumer whose effect it is, 1 to
	// MaxConsumer bytes. It is part of the primary key.
	Consumer string

	// Keys are the message keys, at least one, none twice. The store claims
	// them in an order of its own, the same in every process, so that two
	// claims with the same keys cannot deadlock.
	Keys []Key

	// Force has Begin remove the rows of the keys that are there, in its
	// transaction, before it claims them: each of them is then Fresh. It is for
	// a person's decision that a message is to be processed again.
	Force bool
}

// Key is one message key to claim.
type Key struct {
	// Raw is the message key as the user's extractor returned it: any bytes,
	// not blank. The store writes and looks up StoredKey(Raw).
	Raw string

	// Fingerprint identifies the body that came with the key, 32 bytes. nil
	// means unknown: then no conflict is seen, and none is stored to be seen
	// later. It needs the column fingerprint, which sekali migrate makes.
	Fingerprint []byte
}

// State is what the table says of a claimed key.
type State uint8

// The states of a key.
const (
	// Fresh: the key was not there. After Begin or Claim it is ours now.
	Fresh State = iota
	// Duplicate: the key was there; the message was processed before.
	Duplicate
	// Conflict: the key was there, with another fingerprint: two different
	// messages bear one key.
	Conflict
)

// String returns the name of the state in lower case.
func (s State) String() string {
	switch s {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Conflict:
		return "conflict"
	}
	return "unknown"
}

// Class says whose fault an error is, and so what is to be done.
type Class uint8

// The classes of errors.
const (
	// ClassFailed: the fault of the statement or of the message. It counts as
	// an attempt.
	ClassFailed Class = iota
	// ClassConflict: transactions got in each other's way (serialization
	// failure, deadlock, lock time-out, busy). The whole is run again in a
	// fresh transaction.
	ClassConflict
	// ClassUnavailable: the connection is lost, the server shuts down, is full,
	// or is read-only after a demotion. Never the message's fault: wait.
	ClassUnavailable
	// ClassMisconfigured: a table or column that Sekali needs is missing or
	// unfit. Somebody must mend it: see SchemaError.
	ClassMisconfigured
)

// String returns the name of the class in lower case.
func (c Class) String() string {
	switch c {
	case ClassFailed:
		return "failed"
	case ClassConflict:
		return "conflict"
	case ClassUnavailable:
		return "unavailable"
	case ClassMisconfigured:
		return "misconfigured"
	}
	return "unknown"
}

// As finds in s, or in what s wraps, a value of type C: an optional interface
// or a concrete store. It sees through wrappers that have an Unwrap method
// which returns the wrapped store.
func As[C any](s any) (C, bool) {
	for s != nil {
		if c, ok := s.(C); ok {
			return c, true
		}
		w, ok := s.(interface{ Unwrap() any })
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var none C
	return none, false
}
