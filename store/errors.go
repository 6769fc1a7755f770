package store

import (
	"errors"
	"strconv"
	"strings"
)

var (
	// ErrNoKey is the error of a key that is missing, empty or made of white
	// space alone. Such a message is never "a duplicate of the other empty
	// one": it has no identity.
	ErrNoKey = errors.New("the message key is missing or blank")

	// ErrTransactionLost is the error of a Commit that found that the
	// transaction in which the key was claimed is no longer open or can only
	// roll back: the handler swallowed an SQL error, ended the transaction by
	// itself, or ran DDL where DDL commits.
	ErrTransactionLost = errors.New("the transaction that holds the claim was lost")

	// ErrKeySurvived is the error of a Rollback, or of a Commit that lost its
	// transaction, after which the claim is durable all the same: the handler
	// committed, or ran DDL where DDL commits. Such a message must not be run
	// again, for it would be a "duplicate" without its whole effect.
	ErrKeySurvived = errors.New("the claim outlived the rollback of its transaction")

	// ErrCommitUnknown is the error of a Commit whose answer did not come, or
	// that is durable on the primary alone although more was asked for. Run
	// the whole again: if it was committed, the key is found.
	ErrCommitUnknown = errors.New("the outcome of the commit is unknown")

	// ErrUnavailable marks errors of a store's own operations that mean that
	// the database cannot be reached or cannot write at present. Stores wrap
	// it around transport errors, which by themselves could as well be a
	// handler's.
	ErrUnavailable = errors.New("the database is unavailable")
)

// SchemaError is the error of a table that is missing or unfit. Its text has
// the thing, the cause and the mend; SQL holds statements that mend it.
type SchemaError struct {
	Table string // the table, with its schema where one is configured
	Cause string // what is wrong with it
	Mend  string // what to do, in one sentence
	SQL   string // statements that do it; may be empty
	Err   error  // what the server said; may be nil
}

// Error returns the thing, the cause, the mend, and the SQL if there is any.
func (e *SchemaError) Error() string {
	var b strings.Builder
	b.WriteString("table " + e.Table + ": " + e.Cause)
	if e.Err != nil {
		b.WriteString(" (" + e.Err.Error() + ")")
	}
	b.WriteString(": " + e.Mend)
	if e.SQL != "" {
		b.WriteString("\n" + e.SQL)
	}
	return b.String()
}

// Unwrap returns what the server said.
func (e *SchemaError) Unwrap() error { return e.Err }

// FailedAt is what an error of a batch's handler wraps to say which of the
// messages is at fault: it then gets a transaction of its own, and those before
// it and after it are committed without it. Without it, halving finds it.
type FailedAt struct {
	// Index among the messages that the handler was given, from 0.
	Index int
	// Err is what went wrong with it.
	Err error
}

// Error returns what went wrong, and with which message.
func (e *FailedAt) Error() string { return "message " + strconv.Itoa(e.Index) + ": " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *FailedAt) Unwrap() error { return e.Err }
