package rabbitbroker

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxDelay is the longest step below a day.
const maxDelay = 63_000_000 * time.Millisecond

// copyHeader is the header of a copy that waited, a table. It never reaches a
// Message.
const copyHeader = "sekali-retry"

// What copyHeader's table holds.
const (
	inDeliveries = "deliveries" // of the message, before this copy
	inExchange   = "exchange"   // to which the original was published
	inKey        = "key"        // its routing key
	inAside      = "aside"      // headers of the server's, which a copy must not bear
)

// origin is where a delivery came from before it was copied.
type origin struct {
	exchange, key string
	headers       amqp.Table
	deliveries    int // of earlier copies
}

// originOf looks through a copy. What its stay in the retry queue added is not
// the message's.
func originOf(d *amqp.Delivery) origin {
	o := origin{exchange: d.Exchange, key: d.RoutingKey, headers: d.Headers}
	about, ok := d.Headers[copyHeader].(amqp.Table)
	if !ok {
		return o
	}
	n, _ := integer(about[inDeliveries])
	o.deliveries = int(min(max(n, 0), 1<<30))
	o.exchange, _ = about[inExchange].(string)
	o.key, _ = about[inKey].(string)
	o.headers = amqp.Table{}
	for name, v := range d.Headers {
		if name != copyHeader && !theServers(name) {
			o.headers[name] = v
		}
	}
	aside, _ := about[inAside].(amqp.Table)
	maps.Copy(o.headers, aside)
	return o
}

// copyOf makes what waits in a retry queue. The server would drop a message
// whose x-death says that it has been in the queue before as going in a circle;
// and CC would send it elsewhere too.
func copyOf(it *item, queue string) outgoing {
	o := originOf(it.raw)
	own, aside := amqp.Table{}, amqp.Table{}
	for name, v := range o.headers {
		switch {
		case name == countHeader:
		case theServers(name):
			aside[name] = v
		default:
			own[name] = v
		}
	}
	own[copyHeader] = amqp.Table{
		inDeliveries: int64(it.atLeast), inExchange: o.exchange, inKey: o.key, inAside: aside,
	}
	out := outgoing{"", queue, publishingOf(it.raw)}
	out.Headers = own
	out.DeliveryMode = amqp.Persistent
	return out
}

// step rounds a delay up to 1, 1.6, 2.5, 4 or 6.3 times a power of ten, from
// 100 ms to maxDelay, so that there are few queues.
func step(d time.Duration) time.Duration {
	for scale := 10 * time.Millisecond; ; scale *= 10 {
		for _, tenths := range []time.Duration{10, 16, 25, 40, 63} {
			if s := scale * tenths; s >= d || s >= maxDelay {
				return s
			}
		}
	}
}

func retryQueue(queue string, step time.Duration) string {
	return queue + ".sekali-retry." + strconv.FormatInt(step.Milliseconds(), 10)
}

// postpone has copies of messages wait in retry queues. Those that are safe
// there are then to be acknowledged, others to be given back.
func (s *Source) postpone(ctx context.Context, p *plan) error {
	// It must leave time to give back what could not be copied.
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	out, errs := make([]outgoing, len(p.delayed)), make([]error, len(p.delayed))
	queues := map[string]error{}
	for i, d := range p.delayed {
		by := step(d.by)
		name := retryQueue(s.cfg.Queue, by)
		err, known := queues[name]
		if !known {
			err = s.makeRetryQueue(ctx, name, by)
			queues[name] = err
		}
		out[i], errs[i] = copyOf(d.item, name), err
	}
	if err := s.copies.send(ctx, out, errs); err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
	for i, d := range p.delayed {
		if errs[i] == nil {
			p.acks = append(p.acks, d.item)
		} else {
			p.backs = append(p.backs, d.item)
		}
	}
	return firstOf(errs)
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// makeRetryQueue makes a queue from which messages go back when their time is
// over: a quorum queue that removes them only when the other queue has
// confirmed them. It has no x-expires: that would take a queue away with the
// messages in it, for being redeclared does not renew a quorum queue's lease.
func (s *Source) makeRetryQueue(ctx context.Context, name string, ttl time.Duration) error {
	l, err := s.copies.connect(ctx)
	if err != nil {
		return err
	}
	err = l.aside(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
			amqp.QueueTypeArg:           amqp.QueueTypeQuorum,
			amqp.QueueMessageTTLArg:     ttl.Milliseconds(),
			argDeadLetter:               "",
			"x-dead-letter-routing-key": s.cfg.Queue,
			"x-dead-letter-strategy":    "at-least-once",
			amqp.QueueOverflowArg:       amqp.QueueOverflowRejectPublish,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("make the retry queue %q: %w", name, err)
	}
	return nil
}
