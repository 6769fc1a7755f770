// Package effect is for what a message does outside the database: mail,
// couriers, card charges. No transaction holds those, so a ledger does: a row
// for each (consumer, message key, effect name), written before the call and
// after it, in short transactions of its own. None is open during the call.
//
//	label, err := effect.Do(ctx, ledger, m.Key(), "create-label",
//		func(ctx context.Context, c effect.Call) (Label, error) {
//			return courier.CreateLabel(ctx, c.IdempotencyKey, order)
//		}, effect.Repeat(24*time.Hour))
//
// # What it promises
//
// The provider gets the same idempotency key on every attempt, for ever. A
// call whose success is recorded is never made again: its result is returned.
// At one time one call of a key is under way, as long as processes do not
// freeze for longer than a lease; one that wakes up late changes nothing in
// the ledger, but what it sent may still arrive: only the provider can refuse
// that, by the key.
//
// A call whose outcome is unknown (no answer, a process that died) is dealt
// with as the user chose, for nobody else can know: Repeat it under the same
// key while the provider remembers keys, Lookup whether it has happened, or
// Park it for a person, which is the default.
package effect

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Call is one attempt to have an effect.
type Call struct {
	// IdempotencyKey is what the provider is to know the effect by: the same
	// on every attempt, in every process, for ever.
	IdempotencyKey string
	// Attempt counts the calls, this one included, from 1.
	Attempt int
	// Repeats says that a request which may have arrived may be sent again under
	// the key, at once: the user chose Repeat, for the provider knows keys.
	Repeats bool

	bind func(ctx context.Context, fingerprint []byte) error
}

// Bind records what is about to be sent under the key, given by a fingerprint
// of at most 32 bytes, before it is sent. If something else was sent under it
// before, it must not be sent: the error wraps ErrOtherRequest.
func (c Call) Bind(ctx context.Context, fingerprint []byte) error {
	if c.bind == nil {
		return nil
	}
	return c.bind(ctx, fingerprint)
}

type callKey struct{}

// CallFrom returns the call that a context belongs to: the one that Do gave
// to its function.
func CallFrom(ctx context.Context) (Call, bool) {
	c, ok := ctx.Value(callKey{}).(Call)
	return c, ok
}

// WithCall returns a context that belongs to a call, for who calls a client of
// httpeffect without a ledger.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// IdempotencyKey derives the key of an effect, in the form of a UUID (of
// version 8, RFC 9562): the SHA-256 of consumer, message key and effect name,
// each with its length.
func IdempotencyKey(consumer, messageKey, name string) string {
	h := sha256.New()
	for _, part := range []string{"sekali effect 1", consumer, messageKey, name} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	u := h.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

var (
	// ErrOtherRequest is the error of a call that would send something else
	// under a key than was sent before.
	ErrOtherRequest = errors.New("another request was sent under this idempotency key before")

	// ErrStale is the error of an attempt whose lease was over and that
	// somebody else has gone on from: it changed nothing in the ledger.
	ErrStale = errors.New("somebody else has gone on with the effect")
)

// NotDone marks an error of a call after which the effect has certainly not
// happened (the connection was refused; the provider said "too busy"): it is
// tried again, with nothing to find out before. nil stays nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDone{err: err}
}

// Refused is NotDone for what will not become better by trying again: the
// message becomes a dead letter at once. nil stays nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	return &notDone{err: err, permanent: true}
}

type notDone struct {
	err       error
	permanent bool
}

func (e *notDone) Error() string   { return e.err.Error() }
func (e *notDone) Unwrap() error   { return e.err }
func (e *notDone) Permanent() bool { return e.permanent }

// BusyError is the error of a Do that comes too early: another attempt is
// under way, or its outcome cannot be looked up yet.
type BusyError struct {
	Name string
	// After is how long to wait.
	After time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("effect %q is under way elsewhere: come back in %v", e.Name, e.After.Round(time.Millisecond))
}

// RetryAfter tells a Consumer to come back later, uncounted.
func (e *BusyError) RetryAfter() time.Duration { return e.After }

// ParkedError is the error of a Do for an effect that waits for a person. A
// Consumer stores the message and acknowledges it; it goes on when somebody
// has decided.
type ParkedError struct {
	Name, Reason string
}

func (e *ParkedError) Error() string {
	return fmt.Sprintf("effect %q is parked: %s: see sekali effects list", e.Name, e.Reason)
}

// Parked tells a Consumer what it is.
func (e *ParkedError) Parked() bool { return true }
