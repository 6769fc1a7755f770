package watermillbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
)

// Source receives from a subscriber.
type Source struct {
	cfg     SourceConfig
	arrived chan *message.Message
	trouble chan error // the latest that nobody was told of

	taking  context.Context // ends when Close begins
	stop    context.CancelFunc
	life    context.Context // ends with the subscriptions
	end     context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	started bool
	inHand  map[*message.Message]held
	last    time.Time // of an acknowledgement
	closed  sync.Once
}

// held is a message in hand.
type held struct {
	delivery *broker.Delivery
	forget   func() bool // ends the watch over its context
}

// drop ends what is ours of a message that is not any more: it is not to be
// begun.
func (h held) drop() {
	h.forget()
	h.delivery.Extend(0)
}

var (
	_ broker.Source    = (*Source)(nil)
	_ broker.PinsLanes = (*Source)(nil)
)

// NewSource returns a Source. It subscribes with the first Receive, and again
// whenever a subscription ends.
func NewSource(cfg SourceConfig) (*Source, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new Watermill source: %w", err)
	}
	s := &Source{
		cfg: full, arrived: make(chan *message.Message), trouble: make(chan error, 1), inHand: map[*message.Message]held{},
	}
	s.taking, s.stop = context.WithCancel(context.Background())
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// How long a subscription rests after trouble, at first and at most.
const (
	restFirst = 100 * time.Millisecond
	restMost  = 5 * time.Second
)

// rest waits, but not beyond a context.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// subscribe keeps one subscription until Close.
func (s *Source) subscribe() {
	for pause := restFirst; s.life.Err() == nil; pause = min(2*pause, restMost) {
		messages, err := s.cfg.Subscriber.Subscribe(s.life, s.cfg.Topic)
		if err == nil {
			if s.forward(messages) {
				pause = restFirst
			}
			err = errors.New("the subscriber ended the subscription: it is made again")
		}
		if s.life.Err() != nil {
			return
		}
		s.report(fmt.Errorf("subscribe to %q: %w", s.cfg.Topic, err))
		rest(s.life, pause)
	}
}

// report leaves an error for the next Receive, in the place of an older one.
func (s *Source) report(err error) {
	for {
		select {
		case s.trouble <- err:
			return
		default:
		}
		select {
		case <-s.trouble:
		default: // somebody was told of it just now
		}
	}
}

// forward hands over what a subscription brings until it ends, and tells
// whether it brought anything. It reads to the end even after Close: some
// subscribers wait for that with all else.
func (s *Source) forward(messages <-chan *message.Message) (some bool) {
	for m := range messages {
		some = true
		if m.Context().Err() != nil { // a backend may send it at once again
			m.Nack()
			rest(s.life, restFirst)
			continue
		}
		select {
		case s.arrived <- m:
		case <-m.Context().Done(): // while nobody asked for it
			m.Nack()
		case <-s.life.Done():
			m.Nack()
		}
	}
	return some
}

func (s *Source) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.taking.Err() != nil {
		return
	}
	s.started = true
	for range s.cfg.Subscriptions {
		s.working.Go(s.subscribe)
	}
}

// Receive implements broker.Source.
func (s *Source) Receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.start()
	var got []*broker.Delivery
	for len(got) == 0 {
		if s.taking.Err() != nil {
			return nil, broker.ErrClosed
		}
		select {
		case m := <-s.arrived:
			got = s.take(got, m)
		case err := <-s.trouble:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.taking.Done():
		}
	}
	for len(got) < most {
		select {
		case m := <-s.arrived:
			got = s.take(got, m)
			continue
		default:
		}
		break
	}
	return got, nil
}

// take appends the delivery of a message, which is in hand from now on until
// it is settled or its context ends.
func (s *Source) take(got []*broker.Delivery, m *message.Message) []*broker.Delivery {
	d := s.cfg.deliveryOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Context().Err() != nil || s.taking.Err() != nil {
		m.Nack()
		return got
	}
	s.inHand[m] = held{d, context.AfterFunc(m.Context(), func() { s.lose(m) })}
	return append(got, d)
}

// lose gives up a message whose context has ended. Most backends have stopped
// waiting for its end, and take no notice of the Nack.
func (s *Source) lose(m *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ours := s.inHand[m]; ours {
		delete(s.inHand, m)
		h.drop()
		m.Nack()
	}
}

// PinsLanes implements broker.PinsLanes.
func (s *Source) PinsLanes() bool { return s.cfg.PinsLanes }

// Settle implements broker.Source. That it returns nil says that the
// subscriber was told, not the broker: see the package's documentation.
func (s *Source) Settle(_ context.Context, batch []broker.Settlement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := 0
	for _, x := range batch {
		if !s.settle(x) && x.Action == broker.Ack { // what is to come again will
			lost++
		}
	}
	switch {
	case s.taking.Err() != nil:
		return broker.ErrClosed
	case lost > 0:
		return fmt.Errorf("settle %d of %d messages of %q: their time is over: %w", lost, len(batch), s.cfg.Topic, broker.ErrLost)
	}
	return nil
}

// settle tells the subscriber, and returns false if a message was not ours.
func (s *Source) settle(x broker.Settlement) bool {
	m := x.Delivery.Handle.(*message.Message)
	h, ours := s.inHand[m]
	if !ours {
		return false
	}
	delete(s.inHand, m)
	if m.Context().Err() != nil {
		h.drop()
		m.Nack()
		return false
	}
	h.forget()
	if x.Action == broker.Ack {
		s.last = time.Now()
		return m.Ack() // false: whoever stands between has given it back
	}
	m.Nack()
	return true
}

// Close implements broker.Source. It gives back what is in hand, ends the
// subscriptions, and waits for them until ctx ends.
func (s *Source) Close(ctx context.Context) (err error) {
	s.closed.Do(func() { err = s.close(ctx) })
	return err
}

func (s *Source) close(ctx context.Context) error {
	s.mu.Lock()
	s.stop() // with the lock: nobody starts or takes from now on
	grace := time.Until(s.last.Add(s.cfg.Grace))
	s.mu.Unlock()
	rest(ctx, grace)

	s.mu.Lock()
	for m, h := range s.inHand {
		h.drop()
		m.Nack()
	}
	clear(s.inHand)
	s.mu.Unlock()
	s.end()
	done := make(chan error, 1)
	go func() { // Close of Watermill knows no context
		var err error
		if s.cfg.CloseSubscriber {
			err = s.cfg.Subscriber.Close()
		}
		s.working.Wait()
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("its subscriptions do not end: %w", ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("close the Watermill source of %q: %w", s.cfg.Topic, err)
	}
	return nil
}
