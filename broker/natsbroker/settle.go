package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
)

// What a delivery's reply subject is told.
var (
	ackDone     = []byte("+ACK")
	ackBack     = []byte("-NAK")
	ackProgress = []byte("+WPI")
)

// confirmIn is how long a confirmation may take before acknowledgements are
// said again, which does no harm.
const confirmIn = 2 * time.Second

// word is what is to be said about one delivery.
type word struct {
	reply string
	say   []byte
	ack   bool
}

// Settle acknowledges and gives back. Its error wraps broker.ErrLost if
// deliveries are of a stream that was deleted meanwhile. What expired before
// it was given back is not given back again: the server has done so.
func (s *Source) Settle(ctx context.Context, settlements []broker.Settlement) error {
	if s.isClosed() {
		return fmt.Errorf("settle with NATS: %w", broker.ErrClosed)
	}
	if len(settlements) == 0 {
		return nil
	}
	s.held.remove(settlements)
	stream, err := s.incarnation(ctx)
	words, lost := s.words(settlements, stream)
	if err == nil {
		err = s.say(ctx, words)
	}
	if err != nil {
		return fmt.Errorf("settle %d deliveries of NATS consumer %q: %w", len(settlements), s.cfg.Consumer, err)
	}
	if lost > 0 {
		return fmt.Errorf("settle %d deliveries of NATS consumer %q: the stream of %d is gone: %w", len(settlements), s.cfg.Consumer, lost, broker.ErrLost)
	}
	return nil
}

// incarnation returns when the stream that is there now was made; the zero time
// if there is none. It asks the server only if there is doubt.
func (s *Source) incarnation(ctx context.Context) (time.Time, error) {
	if v := s.view.Load(); v != nil && !s.doubt.Load() {
		return v.stream, nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("look at the stream: %w", connectionError(err))
	}
	return stream.CachedInfo().Created, nil
}

// words says what to tell the server. A sequence of a stream that is gone is
// another message's in the stream of that name that is there now.
func (s *Source) words(settlements []broker.Settlement, stream time.Time) (words []word, lost int) {
	for _, x := range settlements {
		h, ok := x.Delivery.Handle.(*handle)
		switch {
		case !ok || !h.stream.Equal(stream):
			lost++
		case x.Action == broker.Ack:
			words = append(words, word{h.reply, ackDone, true})
		case x.Delivery.Expired():
		case x.Delay > 0 && !s.cfg.Ordered:
			words = append(words, word{h.reply, fmt.Appendf(nil, `-NAK {"delay": %d}`, min(x.Delay, s.MaxDelay()).Nanoseconds()), false})
		default:
			words = append(words, word{h.reply, ackBack, false})
		}
	}
	return words, lost
}

// say tells the server everything, in order, and has the last word of it
// confirmed: the server handles them in order, so that it has them all. If the
// connection was replaced meanwhile some may be lost, and all acknowledgements
// are said again; what is given back is not, for somebody may have it by now.
func (s *Source) say(ctx context.Context, words []word) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	for len(words) > 0 {
		connection := s.nc.Stats().Reconnects
		// A confirmation that was lost with its connection never comes.
		try, done := context.WithTimeout(ctx, confirmIn)
		// What is given back needs no confirmation where an acknowledgement
		// follows; where it comes last it is confirmed too. In a cluster
		// acknowledgements are confirmed once they are replicated, so one of
		// them must be the last that is waited for.
		last := lastAck(words)
		err := s.sayAll(try, words[:last+1])
		if err == nil {
			err = s.sayAll(try, words[last+1:])
		}
		late := try.Err() != nil
		done()
		broken := late || s.nc.Stats().Reconnects != connection || broke(err)
		acks := onlyAcks(words)
		switch {
		case err == nil && !broken:
			return nil
		case err != nil && (!broken || len(acks) == 0 || ctx.Err() != nil):
			return err
		}
		words = acks
	}
	return nil
}

// broke tells whether writing failed because the connection broke. nats.go
// makes another one, and keeps what is said meanwhile for it.
func broke(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// sayAll publishes words and waits for the answer to the last.
func (s *Source) sayAll(ctx context.Context, words []word) error {
	for i, w := range words {
		if i < len(words)-1 {
			if err := s.nc.Publish(w.reply, w.say); err != nil {
				return connectionError(err)
			}
			continue
		}
		if _, err := s.nc.RequestWithContext(ctx, w.reply, w.say); err != nil {
			s.doubt.Store(true)
			if errors.Is(err, nats.ErrNoResponders) {
				return fmt.Errorf("nobody answers for the consumer: it was deleted, or the server is starting: %w", err)
			}
			return connectionError(err)
		}
	}
	return nil
}

// lastAck is the place of the last acknowledgement, or -1.
func lastAck(words []word) int {
	for i := len(words) - 1; i >= 0; i-- {
		if words[i].ack {
			return i
		}
	}
	return -1
}

func onlyAcks(words []word) []word {
	var acks []word
	for _, w := range words {
		if w.ack {
			acks = append(acks, w)
		}
	}
	return acks
}

// giveBack returns deliveries that nobody has begun with.
func (s *Source) giveBack(ctx context.Context, back []*handle) error {
	words := make([]word, len(back))
	for i, h := range back {
		words[i] = word{h.reply, ackBack, false}
	}
	return s.say(ctx, words)
}

// KeepAlive asks for AckWait again, from now on. A delivery whose time is over
// stays over: the server may have given it to somebody else.
func (s *Source) KeepAlive(ctx context.Context, deliveries []*broker.Delivery) error {
	var words []word
	var asked []*broker.Delivery
	v := s.view.Load()
	for _, d := range deliveries {
		if h, ok := d.Handle.(*handle); ok && v != nil && h.stream.Equal(v.stream) && !d.Expired() {
			words, asked = append(words, word{h.reply, ackProgress, false}), append(asked, d)
		}
	}
	if len(words) == 0 {
		return nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	connection, begun := s.nc.Stats().Reconnects, time.Now()
	err := s.sayAll(ctx, words)
	if err == nil && s.nc.Stats().Reconnects != connection {
		err = errors.New("the connection was replaced meanwhile")
	}
	if err != nil {
		return fmt.Errorf("keep %d deliveries of NATS consumer %q alive: %w", len(words), s.cfg.Consumer, err)
	}
	for _, d := range asked {
		if !d.Expired() { // else the server may have been told too late
			d.Extend(v.ours() - time.Since(begun))
		}
	}
	return nil
}
