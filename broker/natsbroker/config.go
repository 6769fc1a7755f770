package natsbroker

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What SourceConfig's fields default to.
const (
	DefaultAckWait       = 30 * time.Second
	DefaultMaxAckPending = 1000
	DefaultTimeout       = 10 * time.Second
)

// minAckWait keeps a round trip and the margin well inside a delivery's time.
const minAckWait = 500 * time.Millisecond

// SourceConfig says which messages a Source receives, and how.
type SourceConfig struct {
	// Stream to receive from. It must be there when Receive is first called;
	// until then Receive returns an error that may pass. Required.
	Stream string
	// Consumer is the name of the durable JetStream consumer. Sources of the
	// same consumer compete. Required.
	Consumer string
	// FilterSubjects are the subjects to receive, wildcards allowed. Defaults
	// to all of the stream. More than one needs nats-server 2.10.
	FilterSubjects []string
	// OnlyNew has a consumer that does not exist yet begin with messages
	// published after its creation. Defaults to false: with the first message
	// that the stream holds.
	OnlyNew bool
	// AckWait is how long a delivery may stay unsettled before the server
	// gives the message to somebody else. At least 500 ms. Defaults to 30 s.
	AckWait time.Duration
	// MaxAckPending is how many deliveries may be unsettled at once, over all
	// sources of the consumer. Defaults to 1000; with Ordered to 1.
	MaxAckPending int
	// Ordered has the messages of the consumer take effect one after another,
	// in the stream's order, across all its sources: one delivery is out at a
	// time (MaxAckPending 1), in the one lane that there is. Retries keep the
	// order: the Consumer waits by itself. Defaults to false: no order.
	Ordered bool
	// BindOnly takes the consumer as it is on the server, for those who make
	// consumers by other means. It must be a pull consumer with explicit
	// acknowledgement and without a MaxDeliver. Defaults to false: the
	// consumer is made at the first Receive, and its AckWait, MaxAckPending,
	// filter and MaxDeliver (unlimited) are brought in line if they differ.
	BindOnly bool
	// OrderingKeyHeader is the header whose value becomes Message.OrderingKey.
	// Defaults to none.
	OrderingKeyHeader string
	// OrderingKeyToken is the position, from 1, of the subject's token that
	// becomes Message.OrderingKey: 2 is "42" in "orders.42.paid". Defaults to
	// 0: none.
	OrderingKeyToken int
	// Timeout bounds one question to the server. Defaults to 10 s.
	Timeout time.Duration
}

// withDefaults returns a copy with every default filled in, or an error that
// names all that is missing or contradicts itself.
func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !validName(c.Stream) {
		bad("Stream is %q: name the stream to receive from, which is no subject, without blanks and any of . * > / \\", c.Stream)
	}
	if !validName(c.Consumer) {
		bad("Consumer is %q: give the durable consumer a name without blanks and any of . * > / \\", c.Consumer)
	}
	for _, s := range c.FilterSubjects {
		if !validSubject(s, true) {
			bad("FilterSubjects has %q, which is not a subject: correct or remove it", s)
		}
	}
	if c.Ordered && c.MaxAckPending > 1 {
		bad("Ordered means one delivery at a time, but MaxAckPending is %d: leave one of them out", c.MaxAckPending)
	}
	if c.OrderingKeyHeader != "" && c.OrderingKeyToken != 0 {
		bad("OrderingKeyHeader and OrderingKeyToken are both set: keep one")
	}
	if c.AckWait < 0 || c.MaxAckPending < 0 || c.Timeout < 0 || c.OrderingKeyToken < 0 {
		bad("AckWait, MaxAckPending, Timeout or OrderingKeyToken is negative: leave it 0 for its default")
	}
	if c.AckWait > 0 && c.AckWait < minAckWait {
		bad("AckWait is %v: make it %v at least", c.AckWait, minAckWait)
	}
	if c.BindOnly && (len(c.FilterSubjects) > 0 || c.AckWait != 0 || c.MaxAckPending != 0 || c.OnlyNew) {
		bad("BindOnly takes the consumer as it is: remove FilterSubjects, OnlyNew, AckWait and MaxAckPending")
	}
	if err := errors.Join(errs...); err != nil {
		return c, oneLine(err, errs)
	}
	c.AckWait = orDefault(c.AckWait, DefaultAckWait)
	c.Timeout = orDefault(c.Timeout, DefaultTimeout)
	pending := DefaultMaxAckPending
	if c.Ordered {
		pending = 1
	}
	c.MaxAckPending = orDefault(c.MaxAckPending, pending)
	return c, nil
}

// oneLine joins the texts of errs with semicolons, where errors.Join would put
// each on a line.
func oneLine(err error, errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	texts := make([]string, len(errs))
	for i := range errs {
		texts[i] = errs[i].Error()
	}
	return &joined{strings.Join(texts, "; "), err}
}

type joined struct {
	text string
	err  error
}

func (j *joined) Error() string { return j.text }
func (j *joined) Unwrap() error { return j.err }

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// validName tells whether a stream or consumer can have this name.
func validName(s string) bool {
	return s != "" && !strings.ContainsAny(s, ".*>/\\") && !strings.ContainsFunc(s, unprintable)
}

// validSubject tells whether s is a subject to publish to, or, with
// wildcards, to subscribe to. A blank in one would end the protocol's line.
func validSubject(s string, wildcards bool) bool {
	if s == "" || strings.ContainsFunc(s, unprintable) {
		return false
	}
	tokens := strings.Split(s, ".")
	for i, t := range tokens {
		wild := t == "*" || t == ">" && i == len(tokens)-1
		if t == "" || wild && !wildcards || t == ">" && !wild {
			return false
		}
	}
	return true
}

func unprintable(r rune) bool { return r <= ' ' || r == 0x7f }
