package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sekali/sekali/broker"
)

// errNotConnected says why Receive returned at once.
var errNotConnected = errors.New("not connected to the server, trying again")

func (s *Source) receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("max is %d: ask for at least 1", max)
	}
	for {
		if err := s.ready(ctx); err != nil {
			return nil, err
		}
		if s.pull == nil || s.pull.open == 0 && len(s.pull.msgs) == 0 {
			if err := s.request(s.view.Load(), max); err != nil {
				return nil, err
			}
		}
		if d, err := s.gather(ctx, max); len(d) > 0 || err != nil {
			return d, err
		}
	}
}

// ready sees to it that there is something to ask.
func (s *Source) ready(ctx context.Context) error {
	switch {
	case s.isClosed():
		return broker.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case s.nc.IsClosed():
		return fmt.Errorf("%w: the connection was closed", broker.ErrClosed)
	case !s.nc.IsConnected():
		return errNotConnected
	}
	if !s.quiet.IsZero() && time.Since(s.quiet) > trustFor {
		s.doubt.Store(true)
	}
	s.quiet = time.Time{}
	return s.look(ctx)
}

// gather waits for a message and takes what comes with it. It returns nothing
// when the request ended without one, so that a further one is to be made. When
// ctx ends it waits a little more, so as not to leave the server with a request
// that is about to be answered: see retire.
func (s *Source) gather(ctx context.Context, max int) (got []*broker.Delivery, err error) {
	p := s.pull
	limit := time.NewTimer(time.Until(p.over) + answerGrace)
	defer limit.Stop()
	done := ctx.Done()
	for len(got) < max && (p.open > 0 || len(p.msgs) > 0) {
		select {
		case m := <-p.msgs:
			d, err := s.take(ctx, m)
			if err != nil {
				return s.kept(got, m, err)
			}
			if d == nil {
				continue
			}
			if got = append(got, d); len(got) == 1 {
				limit.Reset(gatherFor)
			}
		case <-limit.C:
			if len(got) == 0 {
				if ctx.Err() == nil { // not even the request's end came
					s.doubt.Store(true)
				}
				s.retire(ctx, 0)
			}
			return s.orEnd(got, ctx.Err())
		case _, ok := <-s.status:
			if !ok {
				s.status = nil
			}
			s.doubt.Store(true)
			// A request of an earlier connection may be gone with its server.
			if s.nc.Stats().Reconnects != p.connection || s.nc.IsClosed() {
				limit.Reset(lastWait)
			}
		case <-done:
			if len(got) > 0 {
				return got, nil
			}
			done = nil
			limit.Reset(lastWait)
		case <-s.closing:
			return s.orEnd(got, broker.ErrClosed)
		}
	}
	return got, nil
}

// take handles one message of a request. It returns nothing for a word of the
// server, and for a message whose time was over before it was received.
func (s *Source) take(ctx context.Context, m *nats.Msg) (*broker.Delivery, error) {
	p := s.pull
	if isStatus(m) {
		return nil, s.ended(m)
	}
	p.any = true
	if p.open > 0 {
		p.open--
		if p.open == 0 {
			s.quiet = time.Now()
		}
	}
	d, err := s.delivery(ctx, m)
	if err == nil && d.Expired() { // nobody was in Receive; somebody else gets it
		return nil, nil
	}
	return d, err
}

// kept returns what was gathered before an error; the error comes again, for
// its cause leaves a doubt. A message that it struck is given back.
func (s *Source) kept(got []*broker.Delivery, m *nats.Msg, err error) ([]*broker.Delivery, error) {
	if !isStatus(m) {
		ctx, cancel := s.within(context.Background())
		defer cancel()
		_ = s.giveBack(ctx, []*handle{{reply: m.Reply}})
	}
	return s.orEnd(got, err)
}

// orEnd returns an error only where there are no deliveries.
func (s *Source) orEnd(got []*broker.Delivery, err error) ([]*broker.Delivery, error) {
	if len(got) > 0 {
		return got, nil
	}
	return nil, err
}
