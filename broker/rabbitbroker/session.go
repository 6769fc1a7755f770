package rabbitbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
)

// How long to wait before the next attempt to get a session.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// session is a channel that consumes. Delivery tags are of a session.
type session struct {
	link *link
	ch   *amqp.Channel
	open []*item // unsettled, by tag; those that are done are taken out now and then. Source.mu
	done int     // of them. Source.mu
}

// item is a delivery that was not settled yet. It is a Delivery's Handle.
type item struct {
	session  *session
	tag      uint64
	delivery *broker.Delivery
	settled  bool           // or to be handed over anew. Source.mu
	atLeast  int            // how often the message was delivered
	raw      *amqp.Delivery // to make a copy of
}

func compareTags(a, b uint64) int { return cmp.Compare(a, b) }

// again is the same message, to be handed over once more.
func (it *item) again() *item {
	old := it.delivery
	d := &broker.Delivery{Message: old.Message, Lane: old.Lane, Redelivered: true}
	if old.Attempt > 0 {
		d.Attempt = old.Attempt + 1
	}
	again := &item{session: it.session, tag: it.tag, delivery: d, atLeast: it.atLeast + 1, raw: it.raw}
	d.Handle = again
	return again
}

func (x *session) replace(old, with *item) {
	old.settled = true
	if at := slices.Index(x.open, old); at >= 0 {
		x.open[at] = with
	}
}

// settle notes that an item is settled.
func (x *session) settle(it *item) {
	it.settled = true
	x.done++
	if len(x.open) > 64 && x.done > len(x.open)/2 || x.done == len(x.open) {
		x.open = slices.DeleteFunc(x.open, func(it *item) bool { return it.settled })
		x.done = 0
	}
}

// run keeps a session until ctx ends.
func (s *Source) run(ctx context.Context) {
	var l *link
	defer func() {
		if l != nil {
			l.close(context.Background())
		}
	}()
	pause := minPause
	for ctx.Err() == nil {
		var err error
		if l != nil && !l.alive() {
			l.close(ctx)
			l = nil
		}
		if l == nil {
			l, err = dial(ctx, s.cfg.URL, s.cfg.Client)
		}
		any := false
		if err == nil {
			any, err = s.serve(ctx, l)
		}
		if any {
			pause = minPause
		}
		s.report(err)
		wait := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
		pause = min(2*pause, maxPause)
	}
}

func (s *Source) report(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = err
	s.tell()
}

// serve opens a channel and receives until it ends. It tells whether anything
// came, or why it could not begin.
func (s *Source) serve(ctx context.Context, l *link) (any bool, err error) {
	opening, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	ch, err := l.channel(opening)
	if err != nil {
		return false, err
	}
	defer l.leave(ch)
	ended := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 1))
	deliveries, err := s.consume(opening, l, ch)
	if err != nil {
		return false, err
	}
	x := &session{link: l, ch: ch}
	s.mu.Lock()
	s.session, s.trouble = x, nil
	s.mu.Unlock()
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				s.lose(x, explain(ending(ended, cancelled)))
				return any, nil
			}
			any = true
			s.add(x, &d)
		case <-ctx.Done():
			s.lose(x, nil)
			return any, nil
		}
	}
}

// ending waits for why deliveries ended: the channel's end, or the server's
// cancelling of the consumer. At the channel's end the library closes both.
func ending(ended <-chan *amqp.Error, cancelled <-chan string) error {
	why := func(e *amqp.Error) error {
		if e == nil {
			return amqp.ErrClosed
		}
		return e
	}
	select {
	case e := <-ended:
		return why(e)
	case <-cancelled:
		select {
		case e := <-ended:
			return why(e)
		default:
			return errCancelled
		}
	}
}

var errCancelled = errors.New("the server cancelled the consumer: the queue was deleted, or its leader is gone")

// explain says what the end of a session means and how to mend it.
func explain(err error) error {
	var e *amqp.Error
	switch {
	case errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "timed out"):
		return fmt.Errorf("a delivery stayed unsettled for longer than the server's consumer_timeout; all that were in hand come again:"+
			" handle messages faster, lower Prefetch, or raise consumer_timeout on the server: %w", err)
	case errors.Is(err, errCancelled):
		return err
	}
	return fmt.Errorf("the channel ended, and what was in hand comes again: %w", err)
}

// consume begins to receive on ch.
func (s *Source) consume(ctx context.Context, l *link, ch *amqp.Channel) (<-chan amqp.Delivery, error) {
	defer l.guard(ctx, 0)()
	err := s.findQueue(ch)
	if err == nil {
		err = ch.Qos(s.cfg.Prefetch, 0, false)
	}
	var deliveries <-chan amqp.Delivery
	if err == nil {
		deliveries, err = ch.Consume(s.cfg.Queue, "", false, false, false, false, nil)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer in %v: %w", s.cfg.Timeout, ctx.Err())
	}
	return deliveries, err
}

// findQueue makes the queue, or looks whether it is there.
func (s *Source) findQueue(ch *amqp.Channel) error {
	d := s.cfg.Declare
	if d == nil {
		_, err := ch.QueueDeclarePassive(s.cfg.Queue, true, false, false, false, nil)
		if said(err, amqp.NotFound) {
			return fmt.Errorf("the queue is not there: make it, or set Declare: %w", err)
		}
		return err
	}
	_, err := ch.QueueDeclare(s.cfg.Queue, !d.Transient, false, false, false, d.Arguments)
	if said(err, amqp.PreconditionFailed) {
		return fmt.Errorf("the queue is there and is not as Declare says: correct Declare, or delete the queue: %w", err)
	}
	return err
}

// add takes a delivery in.
func (s *Source) add(x *session, d *amqp.Delivery) {
	it := s.itemOf(x, d)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.open = append(x.open, it)
	s.ready = append(s.ready, it)
	s.tell()
}

func (s *Source) itemOf(x *session, raw *amqp.Delivery) *item {
	o := originOf(raw)
	it := &item{session: x, tag: raw.DeliveryTag}
	d := &broker.Delivery{Message: s.cfg.messageOf(raw, o), Redelivered: raw.Redelivered || o.deliveries > 0, Handle: it}
	d.Attempt, it.atLeast = attempt(raw, o.deliveries)
	if s.cfg.SingleActive {
		d.Lane = s.cfg.Queue
	}
	if s.copies != nil {
		it.raw = raw
	}
	it.delivery = d
	return it
}

// attempt is the count of deliveries of a message of whose originals there were
// so many before; 0 where it is unknown. A classic queue counts nothing.
func attempt(d *amqp.Delivery, before int) (exact, atLeast int) {
	count, counted := integer(d.Headers[countHeader])
	switch {
	case counted:
		n := before + int(min(max(count, 0), 1<<30)) + 1
		return n, n
	case !d.Redelivered:
		return before + 1, before + 1
	}
	return 0, before + 2
}

// lose ends a session, for a reason to be told: what it had in hand comes
// again.
func (s *Source) lose(x *session, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range x.open {
		if !it.settled {
			it.delivery.Extend(-time.Second) // it is not to be begun
		}
	}
	x.open, s.ready, s.session, s.ended = nil, nil, nil, why
	s.tell()
}
