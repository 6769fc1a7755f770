package effect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// DefaultLease is what Config.Lease defaults to.
const DefaultLease = 30 * time.Second

// endTimeout bounds how long a call's outcome is tried to be recorded, and
// endPause is between two tries.
const (
	endTimeout = 15 * time.Second
	endPause   = 200 * time.Millisecond
)

// Config says how a Ledger works.
type Config struct {
	// Lease is how long an attempt is taken to be under way without a sign of
	// life. It is renewed while the call runs, so a call may take longer; what
	// a process that died was doing is gone on with after it. At least 1 s.
	// Defaults to 30 s.
	Lease time.Duration
	// Recovery is what is done about an unknown outcome where Do is not told.
	// Defaults to Park().
	Recovery Option
}

// Ledger has effects of one consumer. It is safe for concurrent use.
type Ledger struct {
	rows     Rows
	consumer string
	cfg      Config
	invalid  error // told by the first Do
}

// New returns a ledger whose rows a store keeps, for a consumer: the same name
// as the Consumer's. It does no I/O.
//
//	ledger := effect.New(store.Effects(), "courier-service", effect.Config{})
func New(rows Rows, consumer string, cfg Config) *Ledger {
	l := &Ledger{rows: rows, consumer: consumer, cfg: cfg}
	if cfg.Lease == 0 {
		l.cfg.Lease = DefaultLease
	}
	switch {
	case consumer == "" || len(consumer) > 100:
		l.invalid = fmt.Errorf("new ledger: consumer %q: give the Consumer's name, 1 to 100 bytes", consumer)
	case l.cfg.Lease < time.Second:
		l.invalid = fmt.Errorf("new ledger of consumer %q: Lease is %v: use 1 s or more", consumer, l.cfg.Lease)
	}
	if l.cfg.Recovery == nil {
		l.cfg.Recovery = Park()
	}
	return l
}

// Check tells whether the table is there.
func (l *Ledger) Check(ctx context.Context) error {
	if l.invalid != nil {
		return l.invalid
	}
	return l.rows.Check(ctx)
}

// Option of a Do.
type Option func(*options)

type options struct {
	repeat time.Duration // 0: do not repeat
	lookup any           // a lookup[T]
	after  time.Duration // before a look-up makes sense
}

type lookup[T any] func(ctx context.Context, c Call) (T, bool, error)

// Park has an effect whose outcome is unknown wait for a person: never twice,
// and perhaps late.
func Park() Option { return func(o *options) { *o = options{} } }

// Repeat has an effect whose outcome is unknown called again, under the same
// key, while the provider remembers keys: for window after the first attempt.
// Later it is parked. Take the window shorter than the provider says: a call
// that is begun inside it must arrive inside it.
func Repeat(window time.Duration) Option {
	return func(o *options) { *o = options{repeat: window} }
}

// Lookup has the provider asked whether an effect whose outcome is unknown has
// happened: for one that knows no keys but can be searched. f returns the
// result and true if it has; false has it called again. So f must be sure: it
// is not called until after has passed since the last attempt began, which
// must be longer than a request can be on its way or the provider takes to
// show it. At least the ledger's Lease.
func Lookup[T any](after time.Duration, f func(ctx context.Context, c Call) (T, bool, error)) Option {
	return func(o *options) { *o = options{lookup: lookup[T](f), after: after} }
}

// Do has an effect, or returns the result of when it was had. call gets a
// context that belongs to the Call and ends when the lease cannot be kept; its
// result is recorded as JSON, so that T must survive that.
//
// The error of a call is returned as it is. A *BusyError: come back later. A
// *ParkedError: a person must decide. Errors of the ledger itself, before the
// call: nothing was called; after it: the outcome is unknown.
func Do[T any](ctx context.Context, l *Ledger, messageKey, name string, call func(ctx context.Context, c Call) (T, error), opts ...Option) (T, error) {
	var none T
	a, err := l.begin(ctx, ID{l.consumer, messageKey, name}, opts)
	if err != nil {
		return none, fmt.Errorf("effect %q of message %q: %w", name, messageKey, err)
	}
	if a.over {
		return decode[T](a.row)
	}
	result, err := attemptOf(ctx, a, call)
	if err != nil {
		return none, fmt.Errorf("effect %q of message %q: %w", name, messageKey, err)
	}
	return result, nil
}

// decode returns the result that is recorded.
func decode[T any](r Row) (v T, err error) {
	if len(r.Result) == 0 {
		return v, nil
	}
	if err := json.Unmarshal(r.Result, &v); err != nil {
		return v, &unreadable{fmt.Errorf("read the recorded result of effect %q of message %q as a %T: %w", r.Name, r.MessageKey, v, err)}
	}
	return v, nil
}

// unreadable will not become better by trying again.
type unreadable struct{ error }

func (u *unreadable) Unwrap() error   { return u.error }
func (u *unreadable) Permanent() bool { return true }

// givenUp is the error of an effect that a person gave up.
type givenUp struct{ text string }

func (e *givenUp) Error() string   { return "it was given up: " + e.text }
func (e *givenUp) Permanent() bool { return true }

// validName tells whether an effect can have this name.
func validName(name string) bool {
	return name != "" && len(name) <= 100 && strings.IndexFunc(name, func(r rune) bool { return r < '!' || r > '~' }) < 0
}

var errName = errors.New("its name must be 1 to 100 bytes of printable ASCII without blanks")
