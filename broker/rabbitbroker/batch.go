package rabbitbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
)

// confirming is a channel with publisher confirms. One Publish has it at a
// time, so that what comes back on it is of that call.
type confirming struct {
	link    *link
	ch      *amqp.Channel
	returns chan amqp.Return
	end     chan *amqp.Error
	dirty   bool // something that was sent is unconfirmed
}

func newConfirming(ctx context.Context, l *link) (*confirming, error) {
	ch, err := l.channel(ctx)
	if err != nil {
		return nil, err
	}
	defer l.guard(ctx, 0)()
	c := &confirming{
		link: l, ch: ch,
		// No more can be returned than are under way, and the client library
		// hands a return over before it hands over the confirmation.
		returns: ch.NotifyReturn(make(chan amqp.Return, 2*window)),
		end:     ch.NotifyClose(make(chan *amqp.Error, 1)),
	}
	if err := ch.Confirm(false); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("ask for publisher confirms: %w", err)
	}
	return c, nil
}

// batch is the messages of one Publish.
type batch struct {
	p        *Publisher
	c        *confirming
	out      []outgoing
	errs     []error
	confirms []*amqp.DeferredConfirmation // nil: not sent, or done with
	next     int                          // the first that may be unconfirmed
	given    error                        // set when nothing more is sent or waited for
	ended    error                        // why the channel closed
}

// run sends all and waits for all.
func (b *batch) run(ctx context.Context) {
	for i := range b.out {
		if b.errs[i] == nil {
			b.errs[i] = b.send(ctx, i)
		}
		if i >= window {
			b.await(ctx, i-window)
		}
	}
	b.await(ctx, len(b.out)-1)
}

func (b *batch) send(ctx context.Context, i int) error {
	o := &b.out[i]
	if b.given == nil {
		b.given = b.p.flow(ctx, b.c.link)
	}
	if b.given == nil && ctx.Err() != nil {
		b.given = ctx.Err()
	}
	if b.given != nil {
		return fmt.Errorf("not sent: %w", b.given)
	}
	if most := b.c.link.conn.Config.FrameSize; most > 0 && o.weight() > most {
		return fmt.Errorf("its headers take %d bytes, more than the server's frame_max of %d: put them into the body", o.weight(), most)
	}
	if err := b.p.exchange(ctx, b.c.link, o.exchange); err != nil {
		return err
	}
	confirm, err := b.c.ch.PublishWithDeferredConfirm(o.exchange, o.key, true, false, o.Publishing)
	if err != nil {
		// Part of it may be on its way, and with it the whole.
		b.given = b.why(ctx)
		return fmt.Errorf("%w: %w", ErrNotConfirmed, b.given)
	}
	b.confirms[i] = confirm
	return nil
}

// await waits until all up to message last are confirmed, or given up.
func (b *batch) await(ctx context.Context, last int) {
	for ; b.next <= last; b.next++ {
		confirm := b.confirms[b.next]
		if confirm == nil {
			continue
		}
		if b.given == nil {
			b.given = b.wait(ctx, confirm)
		}
		b.match()
		b.confirms[b.next] = nil
		select {
		case <-confirm.Done():
		default:
			b.c.dirty = true
			b.fail(b.next, fmt.Errorf("%w: %w", ErrNotConfirmed, b.given))
			continue
		}
		switch {
		case confirm.Acked():
		case b.c.ch.IsClosed():
			b.given = b.why(ctx)
			b.fail(b.next, fmt.Errorf("%w: %w", ErrNotConfirmed, b.given))
		default:
			b.fail(b.next, fmt.Errorf("%w: it is full, or its leader is away", ErrRefused))
		}
	}
}

func (b *batch) wait(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
		return nil
	default:
	}
	patience := time.NewTimer(b.p.timeout)
	defer patience.Stop()
	select {
	case <-confirm.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		return fmt.Errorf("nothing came for %v", b.p.timeout)
	}
}

func (b *batch) fail(i int, err error) {
	if b.errs[i] == nil {
		b.errs[i] = err
	}
}

// why tells why the channel closed.
func (b *batch) why(ctx context.Context) error {
	if b.ended != nil {
		return b.ended
	}
	b.ended = errors.New("the connection is gone")
	select {
	case e := <-b.c.end:
		if e != nil {
			b.ended = e
		}
	default:
	}
	if ctx.Err() != nil {
		b.ended = ctx.Err()
	}
	return b.ended
}

// match gives what came back to the messages that it was. A return does not
// tell which one it is of, only what it was: of messages that are equal in
// every byte any will do.
func (b *batch) match() {
	for {
		select {
		case r, ok := <-b.c.returns:
			if !ok {
				return
			}
			b.returned(&r)
		default:
			return
		}
	}
}

func (b *batch) returned(r *amqp.Return) {
	err := broker.Refuse(fmt.Errorf("%w (%d %s): make the queue or its binding, or correct Message.Topic", ErrUnroutable, r.ReplyCode, r.ReplyText))
	found := false
	for i := b.next; i < len(b.out) && !found; i++ {
		if b.confirms[i] != nil && b.errs[i] == nil && b.out[i].is(r) {
			b.errs[i], found = err, true
		}
	}
	if found {
		return
	}
	for i := b.next; i < len(b.out); i++ { // rather too many than none
		if b.confirms[i] != nil && b.out[i].exchange == r.Exchange && b.out[i].key == r.RoutingKey {
			b.fail(i, err)
		}
	}
}

// is tells whether it is what came back.
func (o *outgoing) is(r *amqp.Return) bool {
	return o.exchange == r.Exchange && o.key == r.RoutingKey && o.MessageId == r.MessageId && bytes.Equal(o.Body, r.Body) &&
		o.CorrelationId == r.CorrelationId && o.ContentType == r.ContentType && o.ContentEncoding == r.ContentEncoding &&
		o.ReplyTo == r.ReplyTo && o.Type == r.Type && o.AppId == r.AppId &&
		(len(o.Headers) == 0 && len(r.Headers) == 0 || reflect.DeepEqual(o.Headers, r.Headers))
}
