package sekali

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/store"
)

// Errors of an Inbox and of a Consumer, to be told apart with errors.Is.
var (
	// ErrNoKey: the message has no key, or a blank one.
	ErrNoKey = store.ErrNoKey
	// ErrConflict: another message with another body was processed under the
	// same key.
	ErrConflict = errors.New("another message with another body was processed under this key")
	// ErrTooOld: the message was published before keys of its consumer were
	// removed by a pruner, and its key is not there: it may have been processed.
	ErrTooOld = errors.New("the message is older than the keys that are kept, so that nobody knows whether it was processed")
	// ErrTransactionLost: see store.ErrTransactionLost.
	ErrTransactionLost = store.ErrTransactionLost
	// ErrKeySurvived: see store.ErrKeySurvived. Do not run the message again:
	// look at the business data first.
	ErrKeySurvived = store.ErrKeySurvived
	// ErrCommitUnknown: see store.ErrCommitUnknown. Run the message again: the
	// claim tells whether it was committed.
	ErrCommitUnknown = store.ErrCommitUnknown
	// ErrHandlerExited: the handler ended its goroutine with runtime.Goexit
	// (as testing.T.FailNow does) instead of returning.
	ErrHandlerExited = errors.New("the handler called runtime.Goexit")
)

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // where: from the frame that panicked on
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value of the panic if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// where returns the file and line that panicked.
func (e *PanicError) where() string {
	lines := bytes.SplitN(e.Stack, []byte("\n"), 3)
	if len(lines) < 2 {
		return ""
	}
	place, _, _ := bytes.Cut(bytes.TrimSpace(lines[1]), []byte(" +0x"))
	return string(place)
}

// Permanent marks err as one that no further attempt can mend: the message
// becomes a dead letter at once. Any error with a method Permanent() bool that
// returns true does the same. It has no force over errors that are never a
// message's fault, such as a deadlock or a lost connection. Permanent(nil) is
// nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ error }

func (e *permanentError) Permanent() bool { return true }
func (e *permanentError) Unwrap() error   { return e.error }

// RetryAfter marks err as one that will pass: the message is tried again d
// from now, and it does not count as an attempt. Any error with a method
// RetryAfter() time.Duration does the same. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &laterError{err, d}
}

type laterError struct {
	error
	after time.Duration
}

func (e *laterError) RetryAfter() time.Duration { return e.after }
func (e *laterError) Unwrap() error             { return e.error }

// isPermanent tells whether an error in err's tree says that it is permanent.
func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// retryAfter returns how long an error in err's tree asks to wait.
func retryAfter(err error) (time.Duration, bool) {
	var l interface{ RetryAfter() time.Duration }
	if !errors.As(err, &l) {
		return 0, false
	}
	return max(0, l.RetryAfter()), true
}
