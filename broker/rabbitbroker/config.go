package rabbitbroker

import (
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What SourceConfig's fields default to.
const (
	DefaultPrefetch = 500
	DefaultTimeout  = 10 * time.Second
)

// Kind is a kind of queue.
type Kind string

// The kinds of queues that a Source can work with.
const (
	Quorum  Kind = amqp.QueueTypeQuorum
	Classic Kind = amqp.QueueTypeClassic
)

// What a queue is declared with.
const (
	argLimit      = "x-delivery-limit"
	argDeadLetter = "x-dead-letter-exchange"
)

// SourceConfig says which queue a Source receives from, and how.
type SourceConfig struct {
	// URL of the server, as CheckURL describes it. Required.
	URL string
	// Queue to receive from. Required. It must be there, unless Declare is set;
	// until it is, Receive returns an error that may pass.
	Queue string
	// Declare makes the queue if it is not there, and otherwise insists that it
	// is as described. Defaults to nil: the queue is taken as it is.
	Declare *Declare
	// Prefetch is how many deliveries may be unsettled at once: the server
	// sends no more. At least 1, at most 65,535. Defaults to 500, which is
	// enough for four workers with a batch of 100 each, and the next.
	Prefetch int
	// SingleActive says that the queue has x-single-active-consumer: one source
	// at a time receives, and others wait. Deliveries then stand in one lane,
	// which is pinned and bears the queue's name; a Retry keeps its place, for
	// the message waits in the Source. With Declare the argument is added.
	// Without, the Source cannot see whether the queue has it: one that has not
	// keeps no order across instances. Defaults to false: no lane.
	SingleActive bool
	// OrderingKeyHeader is the header whose value becomes Message.OrderingKey.
	// Defaults to none.
	OrderingKeyHeader string
	// DelayedRetry has the server wait before a Retry with a Delay is delivered
	// again, in queues named "<queue>.sekali-retry.<milliseconds>", quorum
	// queues which the Source makes and nobody deletes: 30 at most for a queue,
	// for a delay is rounded up to 1, 1.6, 2.5, 4 or 6.3 times a power of ten.
	// The message goes there as a copy, which is confirmed before the original
	// is acknowledged: a crash between may double it and never loses it.
	// Defaults to false: the Consumer waits by itself.
	DelayedRetry bool
	// Timeout bounds one question to the server. Defaults to 10 s.
	Timeout time.Duration
	// Client has settings for the client library besides: TLS, other ways to
	// authenticate, how to dial. Its Recovery must be nil: the Source
	// reconnects by itself.
	Client amqp.Config
}

// Declare describes a queue.
type Declare struct {
	// Kind of the queue. Defaults to Quorum.
	Kind Kind
	// Transient makes a classic queue that is gone when the server restarts.
	// Defaults to false: durable, as quorum queues always are.
	Transient bool
	// Arguments of the queue besides its kind: x-dead-letter-exchange,
	// x-delivery-limit and so on. Where there is a delivery limit there must be
	// a dead letter exchange, or messages that reach the limit would be gone.
	Arguments amqp.Table
}

// withDefaults returns a copy with every default filled in, or an error that
// names all that is missing or contradicts itself.
func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if c.URL == "" {
		bad(true, "URL is not set: name the server, such as rabbitmq://host:5672")
	} else if err := CheckURL(c.URL); err != nil {
		errs = append(errs, err)
	}
	bad(c.Queue == "", "Queue is not set: name the queue to receive from")
	bad(len(c.Queue) > maxShort, "Queue is longer than %d bytes: shorten it", maxShort)
	bad(c.Prefetch < 0 || c.Prefetch > 1<<16-1, "Prefetch is %d: use 1 to 65535, or leave it 0 for its default", c.Prefetch)
	bad(c.Timeout < 0, "Timeout is negative: leave it 0 for its default")
	bad(c.Client.Recovery != nil, "Client.Recovery is set, but the source reconnects by itself: remove it")
	bad(c.DelayedRetry && c.SingleActive, "DelayedRetry lets messages overtake, and SingleActive keeps their order: keep one")
	bad(c.DelayedRetry && len(retryQueue(c.Queue, maxDelay)) > maxShort, "Queue is too long for names of retry queues: shorten it, or leave DelayedRetry out")
	if c.Declare != nil {
		d, wrong := c.Declare.withDefaults(c.SingleActive)
		c.Declare, errs = &d, append(errs, wrong...)
	}
	if len(errs) > 0 {
		return c, oneLine(errs)
	}
	if c.Prefetch == 0 {
		c.Prefetch = DefaultPrefetch
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c, nil
}

// withDefaults returns a copy with all arguments, or what is wrong.
func (d Declare) withDefaults(singleActive bool) (Declare, []error) {
	if d.Kind == "" {
		d.Kind = Quorum
	}
	errs := d.check(singleActive)
	d.Arguments = maps.Clone(d.Arguments)
	if d.Arguments == nil {
		d.Arguments = amqp.Table{}
	}
	d.Arguments[amqp.QueueTypeArg] = string(d.Kind)
	if singleActive {
		d.Arguments[amqp.SingleActiveConsumerArg] = true
	}
	return d, errs
}

func (d Declare) check(singleActive bool) (errs []error) {
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(d.Kind != Quorum && d.Kind != Classic, "Declare.Kind is %q: use Quorum or Classic", d.Kind)
	bad(d.Kind == Quorum && d.Transient, "Declare.Transient is set, but quorum queues are durable: remove it, or use Classic")
	_, has := d.Arguments[amqp.QueueTypeArg]
	bad(has, "Declare.Arguments has %s: say it with Kind", amqp.QueueTypeArg)
	single, has := d.Arguments[amqp.SingleActiveConsumerArg]
	bad(has && single != any(singleActive), "Declare.Arguments has %s: say it with SingleActive", amqp.SingleActiveConsumerArg)
	_, exchange := d.Arguments[argDeadLetter]
	limit, limited := d.Arguments[argLimit]
	n, whole := integer(limit)
	bad(limited && !whole, "Declare.Arguments has an %s that is not a whole number: correct it", argLimit)
	bad(limited && whole && n >= 0 && !exchange,
		"Declare.Arguments has %s and no %s: a message that reaches the limit would be gone; add one, \"\" with x-dead-letter-routing-key for a queue", argLimit, argDeadLetter)
	if err := d.Arguments.Validate(); err != nil {
		bad(true, "Declare.Arguments: %w", err)
	}
	return errs
}
