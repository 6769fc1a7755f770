// Package watermillbroker receives from any subscriber of Watermill
// (github.com/ThreeDotsLabs/watermill), and publishes to any publisher of it, so
// that what Watermill has an adapter for comes along: Amazon SQS, Google Cloud
// Pub/Sub, SQL queues and more. It was tested with watermill-sql on PostgreSQL,
// with watermill-redisstream, and with Watermill's own channels.
//
//	subscriber, err := sqs.NewSubscriber(sqs.SubscriberConfig{AWSConfig: cfg}, logger)
//	…
//	source, err := watermillbroker.NewSource(watermillbroker.SourceConfig{
//		Subscriber: subscriber, Topic: "orders", Subscriptions: 10, CloseSubscriber: true,
//	})
//
// With Google Cloud Pub/Sub it is googlecloud.NewSubscriber, the same way.
//
// # What Watermill does not tell
//
// An acknowledgement has no answer: Settle cannot know whether the broker got
// it. A lost one costs a redelivery, which the table of processed messages
// absorbs, so no effect is lost or doubled. Close waits for a moment after the
// last one (SourceConfig.Grace).
//
// Most subscribers hand over one message and wait for its acknowledgement
// before the next: messages that could share a transaction do not come
// together. Subscriptions opens several at once. How long a message may stay
// unacknowledged is the subscriber's to set; a message whose own context has
// ended is no longer ours, and settling it is broker.ErrLost.
//
// How often a message was delivered is unknown, unless the backend puts it into
// the metadata (AttemptMetadata). Without it a message that kills the process
// is not found out: MaxCrashes needs a hint.
//
// # How a message travels
//
// Message.ID is the UUID, which the producer chose and which may be empty.
// Headers are the metadata, by name. A body that is empty or nil arrives as an
// empty one. Metadata are texts: whether other bytes survive is the backend's
// business. A Publisher refuses a header that comes twice.
package watermillbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
)

// DefaultGrace is what SourceConfig.Grace defaults to.
const DefaultGrace = 500 * time.Millisecond

// SourceConfig says what a Source receives, and how.
type SourceConfig struct {
	// Subscriber to receive from. Required. It is used by nobody else for this
	// topic, unless it delivers to each subscription what no other gets.
	Subscriber message.Subscriber
	// Topic to subscribe to. Required.
	Topic string
	// Subscriptions is how many are open at once. Only where the backend shares
	// messages among them (a queue, a consumer group). Defaults to 1.
	Subscriptions int
	// Ordered says that one subscription gets the messages in an order to be
	// kept: they are one lane. Needs Subscriptions 1. Defaults to false.
	Ordered bool
	// PinsLanes says that no other instance gets messages of the topic
	// meanwhile, so that the order holds across instances. Needs Ordered.
	PinsLanes bool
	// OrderingKeyMetadata, PublishedAtMetadata (RFC 3339) and AttemptMetadata (a
	// number, 1 for the first delivery) are names of metadata. Default to none.
	OrderingKeyMetadata, PublishedAtMetadata, AttemptMetadata string
	// Grace is how long Close waits after the last acknowledgement, so that the
	// backend can tell its broker. Defaults to 500 ms.
	Grace time.Duration
	// CloseSubscriber has Close close the Subscriber too. Defaults to false.
	CloseSubscriber bool
}

func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []string
	bad := func(is bool, text string) {
		if is {
			errs = append(errs, text)
		}
	}
	bad(c.Subscriber == nil, "Subscriber is not set: give the one to receive from")
	bad(c.Topic == "", "Topic is empty: name what to subscribe to")
	bad(c.Subscriptions < 0 || c.Grace < 0, "Subscriptions or Grace is negative: leave it 0 for its default")
	bad(c.Ordered && c.Subscriptions > 1, "Ordered means one subscription: leave Subscriptions out")
	bad(c.PinsLanes && !c.Ordered, "PinsLanes needs Ordered: without, there are no lanes")
	if len(errs) > 0 {
		return c, errors.New(strings.Join(errs, "; "))
	}
	if c.Subscriptions == 0 {
		c.Subscriptions = 1
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	return c, nil
}

// Source receives from a subscriber.
type Source struct {
	cfg     SourceConfig
	arrived chan *message.Message
	trouble chan error // the latest that nobody was told of

	life    context.Context // ends with Close
	end     context.CancelFunc
	working sync.WaitGroup

	mu      sync.Mutex
	started bool
	inHand  map[*message.Message]bool
	last    time.Time // of an acknowledgement
	closed  sync.Once
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
		cfg: full, arrived: make(chan *message.Message), trouble: make(chan error, 1), inHand: map[*message.Message]bool{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// How long a subscription rests after trouble, at first and at most.
const (
	restFirst = 100 * time.Millisecond
	restMost  = 5 * time.Second
)

// subscribe keeps one subscription until Close.
func (s *Source) subscribe() {
	for rest := restFirst; s.life.Err() == nil; rest = min(2*rest, restMost) {
		messages, err := s.cfg.Subscriber.Subscribe(s.life, s.cfg.Topic)
		if err == nil {
			if s.forward(messages) {
				rest = restFirst
			}
			err = errors.New("the subscription ended")
		}
		if s.life.Err() != nil {
			return
		}
		select {
		case s.trouble <- fmt.Errorf("subscribe to %q: %w", s.cfg.Topic, err):
		default: // one is there already
		}
		select {
		case <-s.life.Done():
		case <-time.After(rest):
		}
	}
}

// forward hands over what a subscription brings until it ends, and tells
// whether it brought anything. Nothing is swallowed: what nobody takes stays
// here.
func (s *Source) forward(messages <-chan *message.Message) (some bool) {
	for m := range messages {
		some = true
		select {
		case s.arrived <- m:
		case <-s.life.Done():
			m.Nack()
		}
	}
	return some
}

func (s *Source) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.life.Err() != nil {
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
	if s.life.Err() != nil {
		return nil, broker.ErrClosed
	}
	s.start()
	var got []*broker.Delivery
	select {
	case m := <-s.arrived:
		got = append(got, s.take(m))
	case err := <-s.trouble:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.life.Done():
		return nil, broker.ErrClosed
	}
	for len(got) < most {
		select {
		case m := <-s.arrived:
			got = append(got, s.take(m))
			continue
		default:
		}
		break
	}
	return got, nil
}

// take makes a delivery of a message that is in hand from now on.
func (s *Source) take(m *message.Message) *broker.Delivery {
	s.mu.Lock()
	s.inHand[m] = true
	s.mu.Unlock()
	d := &broker.Delivery{Handle: m, Message: broker.Message{ID: m.UUID, Topic: s.cfg.Topic, Body: m.Payload, Headers: headersOf(m.Metadata)}}
	if d.Message.Body == nil {
		d.Message.Body = []byte{}
	}
	if key, ok := m.Metadata[s.cfg.OrderingKeyMetadata]; ok && s.cfg.OrderingKeyMetadata != "" {
		d.Message.OrderingKey = []byte(key)
	}
	if at, err := time.Parse(time.RFC3339Nano, m.Metadata[s.cfg.PublishedAtMetadata]); err == nil {
		d.Message.PublishedAt = at.UTC()
	}
	if n, err := strconv.Atoi(m.Metadata[s.cfg.AttemptMetadata]); err == nil && n > 0 {
		d.Attempt, d.Redelivered = n, n > 1
	}
	if s.cfg.Ordered {
		d.Lane = s.cfg.Topic
	}
	return d
}

func headersOf(metadata message.Metadata) broker.Headers {
	if len(metadata) == 0 {
		return nil
	}
	headers := make(broker.Headers, 0, len(metadata))
	for name, value := range metadata {
		headers = append(headers, broker.Header{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(headers, func(a, b broker.Header) int { return strings.Compare(a.Name, b.Name) })
	return headers
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
		m := x.Delivery.Handle.(*message.Message)
		ours := s.inHand[m] && m.Context().Err() == nil
		delete(s.inHand, m)
		switch {
		case !ours:
			lost++
		case x.Action == broker.Ack:
			m.Ack()
			s.last = time.Now()
		default:
			m.Nack()
		}
	}
	switch {
	case s.life.Err() != nil:
		return broker.ErrClosed
	case lost > 0:
		return fmt.Errorf("settle %d of %d messages of %q: their time is over: %w", lost, len(batch), s.cfg.Topic, broker.ErrLost)
	}
	return nil
}

// Close implements broker.Source. It gives back what is in hand, ends the
// subscriptions, and waits for them.
func (s *Source) Close(ctx context.Context) (err error) {
	s.closed.Do(func() { err = s.close(ctx) })
	return err
}

func (s *Source) close(ctx context.Context) error {
	s.mu.Lock()
	for m := range s.inHand {
		m.Nack()
	}
	clear(s.inHand)
	grace := time.Until(s.last.Add(s.cfg.Grace))
	s.mu.Unlock()
	if grace > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(grace):
		}
	}
	s.mu.Lock()
	s.end() // with the lock: nobody starts from now on
	s.mu.Unlock()
	var err error
	if s.cfg.CloseSubscriber {
		err = s.cfg.Subscriber.Close()
	}
	done := make(chan struct{})
	go func() {
		s.working.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("its subscription does not end: %w", ctx.Err()))
	}
	if err != nil {
		return fmt.Errorf("close the Watermill source of %q: %w", s.cfg.Topic, err)
	}
	return nil
}
