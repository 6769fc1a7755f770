package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/rabbitbroker"
)

const (
	// rabbitIdle is how long nothing comes before a consumer's source rests,
	// and rabbitFirst how long if nothing came since it last did: connecting
	// takes some time too.
	rabbitIdle  = 200 * time.Millisecond
	rabbitFirst = 2 * time.Second
	// rabbitRest is how long it rests: long enough for drained to see it.
	rabbitRest = 500 * time.Millisecond
)

// rabbitFeed is a fanout exchange of the demo's own, with a quorum queue for
// each consumer.
type rabbitFeed struct {
	url, exchange string
	conn          *amqp.Connection
	empty         map[string]bool // consumers that had drained once: nothing is published later
}

func rabbitQueue(exchange, consumer string) string { return exchange + "-" + consumer }

func rabbitSource(t task) (broker.Source, error) {
	exchange := t.Topic[:len(t.Topic)-len("/")]
	return newResting(func() (broker.Source, error) {
		return rabbitbroker.NewSource(rabbitbroker.SourceConfig{URL: t.Broker, Queue: rabbitQueue(exchange, t.Service)})
	})
}

// openRabbit makes exchange and queues, or leaves nothing.
func openRabbit(ctx context.Context, url, run string) (feed, error) {
	f := &rabbitFeed{url: url, exchange: "sekali-demo-" + run, empty: map[string]bool{}}
	connecting, done := context.WithTimeout(ctx, 2*connectTimeout)
	defer done()
	conn, err := rabbitbroker.Connect(connecting, url, amqp.Config{})
	if err != nil {
		return nil, err
	}
	f.conn = conn
	if err := f.make(); err != nil {
		err = fmt.Errorf("make the exchange %s and its queues at %s: %w: may the user make them?", f.exchange, f, err)
		return nil, errors.Join(err, f.close(ctx, false))
	}
	return f, nil
}

// make makes exchange and queues.
func (f *rabbitFeed) make() error {
	return f.aside(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(f.exchange, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		for _, s := range services {
			name := rabbitQueue(f.exchange, s.name)
			if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
				return err
			}
			if err := ch.QueueBind(name, "", f.exchange, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// aside does something on a channel of its own: what is refused closes it.
func (f *rabbitFeed) aside(do func(*amqp.Channel) error) error {
	ch, err := f.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	return do(ch)
}

func (f *rabbitFeed) address() (url, topic string) { return f.url, f.exchange + "/" }

func (f *rabbitFeed) publisher() (broker.Publisher, error) { return rabbitbroker.NewPublisher(f.url) }

// drained: nothing is in the queue, and nobody has anything of it in hand.
// AMQP tells how many messages wait and how many consumers there are, but not
// what these have in hand: only of a queue without consumers is it known. The
// demo's sources rest when they have nothing to do.
func (f *rabbitFeed) drained(_ context.Context, consumer string) (drained bool, err error) {
	if f.empty[consumer] {
		return true, nil
	}
	name := rabbitQueue(f.exchange, consumer)
	err = f.aside(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		drained = err == nil && q.Messages == 0 && q.Consumers == 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("ask for the state of the queue %s: %w", name, err)
	}
	f.empty[consumer] = drained
	return drained, nil
}

// bury has nothing to do: what a dead consumer had in hand goes back when its
// connection breaks.
func (f *rabbitFeed) bury(context.Context, string) {}

func (f *rabbitFeed) String() string { return rabbitbroker.RedactURL(f.url) }

func (f *rabbitFeed) kept() string {
	return "the exchange " + f.exchange + " and the queues " + rabbitQueue(f.exchange, "*")
}

func (f *rabbitFeed) close(ctx context.Context, keep bool) (err error) {
	defer func() {
		until, ok := ctx.Deadline()
		if !ok {
			until = time.Now().Add(tidyTime)
		}
		_ = f.conn.CloseDeadline(until)
	}()
	if keep {
		return nil
	}
	for _, s := range services {
		err = errors.Join(err, f.aside(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(rabbitQueue(f.exchange, s.name), false, false, false)
			return err
		}))
	}
	err = errors.Join(err, f.aside(func(ch *amqp.Channel) error { return ch.ExchangeDelete(f.exchange, false, false) }))
	if err != nil {
		return fmt.Errorf("delete %s at %s: %w: delete by hand what is there", f.kept(), f, err)
	}
	return nil
}

// resting is a source that leaves its queue for a moment whenever it has
// nothing to do.
type resting struct {
	open func() (broker.Source, error)
	came atomic.Bool // something, since it last rested

	mu    sync.Mutex
	inner broker.Source
	held  map[*broker.Delivery]bool // handed over and not settled
}

func newResting(open func() (broker.Source, error)) (*resting, error) {
	inner, err := open()
	if err != nil {
		return nil, err
	}
	return &resting{open: open, inner: inner, held: map[*broker.Delivery]bool{}}, nil
}

// Receive receives, and rests.
func (r *resting) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	for {
		inner, idle := r.source(), rabbitFirst
		if r.came.Load() {
			idle = rabbitIdle
		}
		short, cancel := context.WithTimeout(ctx, idle)
		d, err := inner.Receive(short, max)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			r.hold(d)
			return d, err
		}
		if r.busy() {
			continue
		}
		if err := r.rest(ctx, inner); err != nil {
			return nil, err
		}
	}
}

func (r *resting) source() broker.Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inner
}

func (r *resting) hold(d []*broker.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range d {
		r.held[x] = true
		r.came.Store(true)
	}
}

// busy tells whether anything is in hand.
func (r *resting) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := range r.held {
		if x.Expired() { // whoever drops it need not settle it
			delete(r.held, x)
		}
	}
	return len(r.held) > 0
}

// rest leaves the queue and comes back. A message that comes in the meantime
// goes back unseen, or waits.
func (r *resting) rest(ctx context.Context, inner broker.Source) error {
	if err := inner.Close(ctx); err != nil {
		return err
	}
	rested := time.NewTimer(rabbitRest)
	defer rested.Stop()
	select {
	case <-rested.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	again, err := r.open()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inner = again
	r.came.Store(false)
	return nil
}

// Settle settles with the source from which the deliveries are.
func (r *resting) Settle(ctx context.Context, s []broker.Settlement) error {
	err := r.source().Settle(ctx, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range s {
		delete(r.held, x.Delivery)
	}
	return err
}

// Close closes.
func (r *resting) Close(ctx context.Context) error { return r.source().Close(ctx) }
