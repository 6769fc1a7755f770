// Package broker is the contract between Sekali and a message broker: where
// messages come from (Source) and where they go (Publisher).
//
// A broker delivers at least once. A Source hands deliveries over and is told
// of each what became of it, after the database has committed. It never
// decides by itself that a message is done.
//
// The package is a leaf: it imports the standard library alone.
package broker

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrLost is the error of a Settle for deliveries that are no longer this
	// Source's to settle: the lane was revoked, the connection that brought
	// them is gone, or their time is over. The broker delivers them again.
	ErrLost = errors.New("the delivery is no longer ours to settle")

	// ErrClosed is the error of a Receive or Settle after Close, and of a
	// Receive from a source that cannot go on at all (its queue was deleted,
	// say). A Consumer ends with it; it waits and calls again after any other
	// error of Receive.
	ErrClosed = errors.New("the source is closed")

	// ErrRefused is wrapped by the error of a message that a broker was asked to
	// keep and refuses, or that cannot travel by it at all: no queue or stream
	// takes it, it is too large, a header has a name that the broker keeps for
	// itself. Sent again as it is, it will be refused again, unless somebody
	// mends the broker. A broker that is not there, does not answer, or is full
	// has not refused.
	ErrRefused = errors.New("the broker refuses it")
)

// refusal is an error that wraps ErrRefused besides.
type refusal struct{ error }

func (r refusal) Unwrap() []error { return []error{r.error, ErrRefused} }

// Refuse returns err as one that wraps ErrRefused besides, for Publishers; nil
// for nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return refusal{err}
}

// Source is a subscription: a queue, a topic with a consumer group, a stream
// with a durable consumer. Receive is called by one goroutine at a time;
// Settle may run beside it, one call at a time.
type Source interface {
	// Receive waits until at least one delivery is there and returns what has
	// arrived, max at most, in the broker's order within each lane. It returns
	// when ctx ends, with ctx's error. An error other than ErrClosed means
	// trouble that may pass: the caller waits and calls again, and the Source
	// reconnects by itself.
	Receive(ctx context.Context, max int) ([]*Delivery, error)

	// Settle tells the broker what became of deliveries, in the order given,
	// and returns when the broker has confirmed it, or is certain to have it
	// where the protocol knows no confirmation. One call costs one
	// confirmation, not one per delivery. After an error any of them may
	// come again. An error that wraps ErrLost says that some will: those that
	// were still ours have been settled.
	Settle(ctx context.Context, s []Settlement) error

	// Close gives unsettled deliveries back and ends the subscription. It may
	// be called twice.
	Close(ctx context.Context) error
}

// KeepAliver is what a Source offers whose broker takes a delivery back when
// it is not settled in time.
type KeepAliver interface {
	// KeepAliveEvery is how often KeepAlive must be called for every delivery
	// in hand, buffered ones and those that wait for a retry among them.
	KeepAliveEvery() time.Duration
	// KeepAlive asks the broker for more time and moves the deadlines of those
	// for which it was granted (Delivery.Extend).
	KeepAlive(ctx context.Context, d []*Delivery) error
}

// DelayedRetry is what a Source offers that can have the broker wait before
// it delivers again: it obeys Settlement.Delay. Where it is missing, and for
// messages that have an order to keep, the Consumer waits by itself.
type DelayedRetry interface {
	// MaxDelay is the longest delay that the broker takes.
	MaxDelay() time.Duration
}

// PinsLanes is what a Source offers whose broker gives each lane to one
// instance at a time, so that order within a lane holds across instances.
type PinsLanes interface {
	PinsLanes() bool
}

// Revoker is what a Source offers whose lanes the broker can give to another
// instance while their deliveries are in hand.
type Revoker interface {
	// OnRevoke sets the function that the Source calls before it lets lanes
	// go. The function is to drop the deliveries of these lanes that were not
	// begun, without settling them, and to return when those that were begun
	// are settled, or when ctx ends, which it has already if the lanes are gone.
	// It is set before the first Receive. While it runs, Receive may block.
	OnRevoke(fn func(ctx context.Context, lanes []string))
}

// Action is what becomes of a delivery.
type Action uint8

// The ways to settle a delivery.
const (
	// Ack: its effect is committed (or it is a duplicate, or a dead letter
	// that has been written): the broker may forget it.
	Ack Action = iota
	// Retry: give it back, to be delivered again, to whomever.
	Retry
)

// String returns the name of the action in lower case.
func (a Action) String() string {
	if a == Ack {
		return "ack"
	}
	return "retry"
}

// Settlement is the end of a delivery.
type Settlement struct {
	Delivery *Delivery
	Action   Action
	// Delay before a Retry is delivered again; obeyed by a DelayedRetry alone.
	Delay time.Duration
}

// Publisher sends messages. It is safe for concurrent use.
type Publisher interface {
	// Publish sends messages and returns when the broker has confirmed that it
	// keeps them. nil: all were. A *PublishError says which were not; any
	// other error means that any of them may have been or not: send them
	// again, under the same ids.
	Publish(ctx context.Context, m ...Message) error
	// Close waits for what is under way and disconnects.
	Close(ctx context.Context) error
}

// PublishError tells which messages of a Publish were not confirmed.
type PublishError struct {
	// Errs has an entry for each message, nil for those that were confirmed.
	Errs []error
}

// Error tells how many failed and why the first did.
func (e *PublishError) Error() string {
	failed, first := 0, error(nil)
	for _, err := range e.Errs {
		if err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if first == nil {
		return "no message failed"
	}
	return plural(failed, "message was", "messages were") + " not confirmed: " + first.Error()
}

// Unwrap returns the errors of those that failed.
func (e *PublishError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
