package amqpbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
)

// Source receives from a queue.
type Source struct {
	cfg SourceConfig

	mu      sync.Mutex
	link    *link    // nil: there is none
	opening *opening // nil: none is being made
	working sync.WaitGroup
	life    context.Context // ends with Close
	end     context.CancelFunc
}

var (
	_ broker.Source    = (*Source)(nil)
	_ broker.PinsLanes = (*Source)(nil)
)

// NewSource returns a Source. It connects with the first Receive, and again
// whenever the connection is lost.
func NewSource(cfg SourceConfig) (*Source, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new AMQP 1.0 source: %w", err)
	}
	s := &Source{cfg: full}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// link is a receiver with its connection. Deliveries are settled through the
// link that brought them, or not at all.
type link struct {
	conn     *amqp.Conn
	session  *amqp.Session
	receiver *amqp.Receiver

	mu     sync.Mutex
	inHand map[*amqp.Message]*broker.Delivery // handed over and not settled
}

// handle is the Handle of a delivery.
type handle struct {
	link    *link
	message *amqp.Message
}

// open connects and attaches a receiver.
func (s *Source) open(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	conn, err := Connect(ctx, s.cfg.URL, s.cfg.Client)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, inHand: map[*amqp.Message]*broker.Delivery{}}
	if l.session, err = conn.NewSession(ctx, nil); err == nil {
		l.receiver, err = l.session.NewReceiver(ctx, s.cfg.Queue, &amqp.ReceiverOptions{
			Credit: int32(s.cfg.Credit), SourceCapabilities: capabilities(s.cfg.Capability),
			SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(),
		})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("receive from %s at %s: %w: is the queue there, and may the user consume from it?", s.cfg.Queue, RedactURL(s.cfg.URL), err)
	}
	return l, nil
}

// opening is a connection that is being made, for whoever waits for it.
type opening struct {
	done chan struct{}
	link *link
	err  error
}

// current returns the link, and has one made if there is none. That goes on
// when ctx ends: a Receive in a hurry would never see it finished.
func (s *Source) current(ctx context.Context) (*link, error) {
	s.mu.Lock()
	if s.life.Err() != nil || s.link != nil {
		defer s.mu.Unlock()
		return s.link, s.life.Err()
	}
	if s.opening == nil {
		s.opening = &opening{done: make(chan struct{})}
		s.working.Go(s.connect)
	}
	o := s.opening
	s.mu.Unlock()
	select {
	case <-o.done:
		return o.link, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect makes the connection that s.opening promises.
func (s *Source) connect() {
	l, err := s.open(s.life)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.opening
	s.opening = nil
	if err == nil && s.life.Err() != nil {
		_ = l.conn.Close()
		l, err = nil, s.life.Err()
	}
	s.link, o.link, o.err = l, l, err
	close(o.done)
}

// drop gives a link up. What it brought is no longer ours, and is not to be
// begun.
func (s *Source) drop(l *link) {
	l.mu.Lock()
	for _, d := range l.inHand {
		d.Extend(0)
	}
	l.mu.Unlock()
	s.mu.Lock()
	if s.link == l {
		s.link = nil
	}
	s.mu.Unlock()
	_ = l.conn.Close()
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	got, err := s.receive(ctx, most)
	switch {
	case err == nil:
		return got, nil
	case s.life.Err() != nil:
		return nil, broker.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err() // whatever it looks like from inside
	}
	return nil, err
}

func (s *Source) receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	l, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	first, err := l.receiver.Receive(ctx, nil)
	if err != nil {
		if ctx.Err() == nil {
			s.drop(l)
			err = fmt.Errorf("receive from %s at %s: %w", s.cfg.Queue, RedactURL(s.cfg.URL), err)
		}
		return nil, err
	}
	got := []*broker.Delivery{s.take(first, l)}
	for len(got) < most {
		next := l.receiver.Prefetched()
		if next == nil {
			break
		}
		got = append(got, s.take(next, l))
	}
	return got, nil
}

func (s *Source) take(m *amqp.Message, l *link) *broker.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inHand[m] = s.deliveryOf(m, l)
	return l.inHand[m]
}

// PinsLanes implements broker.PinsLanes.
func (s *Source) PinsLanes() bool { return s.cfg.Exclusive }

// Settle implements broker.Source.
func (s *Source) Settle(ctx context.Context, batch []broker.Settlement) error {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if s.life.Err() != nil {
		return broker.ErrClosed
	}
	lost, told := 0, 0
	var failed error
	for _, x := range batch {
		h := x.Delivery.Handle.(*handle)
		if h.link != l || failed != nil || !h.link.owns(h.message) {
			if x.Action == broker.Ack { // what is to come again will
				lost++
			}
			continue
		}
		told++
		if failed = h.settle(ctx, x.Action); failed != nil {
			lost++
		}
	}
	if failed == nil && told > 0 {
		failed = l.answered(ctx, s.cfg)
	}
	switch {
	case failed != nil && gone(failed):
		s.drop(l)
		return fmt.Errorf("settle %d deliveries from %s: %w: %w", len(batch), s.cfg.Queue, broker.ErrLost, failed)
	case failed != nil:
		return fmt.Errorf("settle %d deliveries from %s: %w", len(batch), s.cfg.Queue, failed)
	case lost > 0:
		return fmt.Errorf("settle %d of %d deliveries from %s: the link that brought them is gone: %w", lost, len(batch), s.cfg.Queue, broker.ErrLost)
	}
	return nil
}

// owns tells whether a message is in hand and not settled.
func (l *link) owns(m *amqp.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inHand[m] != nil
}

func (h *handle) settle(ctx context.Context, a broker.Action) error {
	var err error
	if a == broker.Ack {
		err = h.link.receiver.AcceptMessage(ctx, h.message)
	} else {
		err = h.link.receiver.ReleaseMessage(ctx, h.message)
	}
	if err == nil {
		h.link.mu.Lock()
		delete(h.link.inHand, h.message)
		h.link.mu.Unlock()
	}
	return err
}

// answered waits until the broker has read all that the session was told so
// far: it reads in order, and answers to the attaching of a link.
func (l *link) answered(ctx context.Context, cfg SourceConfig) error {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	probe, err := l.session.NewSender(ctx, cfg.Queue, &amqp.SenderOptions{TargetCapabilities: capabilities(cfg.Capability)})
	if refused := (*amqp.Error)(nil); errors.As(err, &refused) && !gone(err) {
		return nil // who may only receive gets an answer too
	}
	if err != nil {
		return err
	}
	// It is told to detach; RabbitMQ 3.10 does not answer to that.
	cancel()
	_ = probe.Close(ctx)
	return nil
}

// Close implements broker.Source: it releases what is in hand or on its way.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	l := s.link
	s.link = nil
	s.end()
	s.mu.Unlock()
	s.working.Wait()
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := l.release(ctx)
	if closing := l.conn.Close(); err == nil {
		err = closing
	}
	if err != nil && !gone(err) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the AMQP 1.0 source of %s: %w", s.cfg.Queue, err)
	}
	return nil // what a lost connection had in hand comes again anyway
}

// release gives back all deliveries of the link, and waits until the broker
// knows.
func (l *link) release(ctx context.Context) error {
	l.mu.Lock()
	messages := make([]*amqp.Message, 0, len(l.inHand))
	for m := range l.inHand {
		messages = append(messages, m)
	}
	l.mu.Unlock()
	for m := l.receiver.Prefetched(); m != nil; m = l.receiver.Prefetched() {
		messages = append(messages, m)
	}
	for _, m := range messages {
		if err := l.receiver.ReleaseMessage(ctx, m); err != nil {
			return err
		}
	}
	return l.session.Close(ctx) // RabbitMQ 3.10 does not answer when a receiver detaches
}
