package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
)

// view is what was seen of the stream and the consumer. It does not change.
type view struct {
	stream  time.Time // creation of the stream: its incarnation
	ackWait time.Duration
	batch   int           // how many messages one request may ask for
	expires time.Duration // how long one request may wait
}

// ours is how long we take a delivery for ours, from before the server sent
// it: AckWait less a margin, for clocks that do not run alike.
func (v *view) ours() time.Duration { return v.ackWait - min(v.ackWait/10, time.Second) }

// look sees to it that view is true: the consumer is made at first, and looked
// at again whenever there is doubt.
func (s *Source) look(ctx context.Context) error {
	known := s.view.Load()
	if known != nil && !s.doubt.Load() {
		return nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	s.doubt.Store(false) // what raises a doubt from here on counts
	now, err := s.lookNow(ctx, known != nil)
	if err != nil {
		s.doubt.Store(true)
		return err
	}
	if known == nil || !known.stream.Equal(now.stream) {
		s.highest = position{}
	}
	s.view.Store(now)
	return nil
}

// noStream says what to do about a stream that is not there. A subject in its
// place is a common mistake: publishers name subjects.
func (s *Source) noStream(ctx context.Context, err error) error {
	if name, lookup := s.js.StreamNameBySubject(ctx, s.cfg.Stream); lookup == nil {
		return fmt.Errorf("%w: %q is a subject, and its stream is %q: name that", err, s.cfg.Stream, name)
	}
	return fmt.Errorf("%w: make the stream, or correct its name (SourceConfig.Stream)", err)
}

func (s *Source) lookNow(ctx context.Context, known bool) (*view, error) {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && known:
		return nil, fmt.Errorf("%w: the stream was deleted", broker.ErrClosed)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, s.noStream(ctx, err)
	case err != nil:
		return nil, fmt.Errorf("look at the stream: %w", connectionError(err))
	}
	info, err := s.consumer(ctx, known)
	if err != nil {
		return nil, connectionError(err)
	}
	v := viewOf(stream.CachedInfo().Created, info.Config)
	if v.ackWait < minAckWait {
		return nil, fmt.Errorf("%w: the consumer's AckWait or BackOff is %v: make it %v at least", broker.ErrClosed, v.ackWait, minAckWait)
	}
	return v, nil
}

func viewOf(created time.Time, c jetstream.ConsumerConfig) *view {
	v := &view{stream: created, ackWait: c.AckWait, batch: math.MaxInt, expires: math.MaxInt64}
	for _, wait := range c.BackOff { // they stand in AckWait's place
		v.ackWait = min(v.ackWait, wait)
	}
	for _, limit := range []int{c.MaxAckPending, c.MaxRequestBatch} {
		if limit > 0 {
			v.batch = min(v.batch, limit)
		}
	}
	if c.MaxRequestExpires > 0 {
		v.expires = c.MaxRequestExpires
	}
	return v
}

// consumer looks the consumer up, makes it if it is not there yet, and brings
// it in line with the configuration.
func (s *Source) consumer(ctx context.Context, known bool) (*jetstream.ConsumerInfo, error) {
	c, err := s.js.Consumer(ctx, s.cfg.Stream, s.cfg.Consumer)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound) && known:
		return nil, fmt.Errorf("%w: the consumer was deleted", broker.ErrClosed)
	case errors.Is(err, jetstream.ErrConsumerNotFound) && s.cfg.BindOnly:
		return nil, fmt.Errorf("%w: make the consumer, or leave SourceConfig.BindOnly out to have it made", err)
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return s.upsert(ctx, s.wanted())
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return nil, fmt.Errorf("%w: %w: name another one in SourceConfig.Consumer", broker.ErrClosed, err)
	case err != nil:
		return nil, fmt.Errorf("look at the consumer: %w", err)
	}
	info := c.CachedInfo()
	want, differs := info.Config, false
	if !s.cfg.BindOnly {
		want, differs = s.inLine(info.Config)
	}
	if err := s.fit(want); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrClosed, err)
	}
	if differs {
		return s.upsert(ctx, want)
	}
	return info, nil
}

func (s *Source) upsert(ctx context.Context, want jetstream.ConsumerConfig) (*jetstream.ConsumerInfo, error) {
	c, err := s.js.CreateOrUpdateConsumer(ctx, s.cfg.Stream, want)
	if err != nil {
		return nil, fmt.Errorf("make the consumer, or bring it in line with SourceConfig: %w", err)
	}
	return c.CachedInfo(), nil
}

// wanted is the consumer that is made where there is none.
func (s *Source) wanted() jetstream.ConsumerConfig {
	c, _ := s.inLine(jetstream.ConsumerConfig{
		Durable: s.cfg.Consumer, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if s.cfg.OnlyNew {
		c.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	return c
}

// inLine returns c with what the configuration says, and whether that differs
// from c. All else stays as somebody has set it.
func (s *Source) inLine(c jetstream.ConsumerConfig) (want jetstream.ConsumerConfig, differs bool) {
	filters := c.FilterSubjects
	if c.FilterSubject != "" {
		filters = []string{c.FilterSubject}
	}
	differs = !slices.Equal(filters, s.cfg.FilterSubjects) || c.AckWait != s.cfg.AckWait ||
		c.MaxAckPending != s.cfg.MaxAckPending || c.MaxDeliver > 0 || len(c.BackOff) > 0
	c.FilterSubject, c.FilterSubjects = "", nil
	if len(s.cfg.FilterSubjects) == 1 {
		c.FilterSubject = s.cfg.FilterSubjects[0] // servers before 2.10 know this alone
	} else {
		c.FilterSubjects = s.cfg.FilterSubjects
	}
	c.AckWait, c.MaxAckPending, c.MaxDeliver, c.BackOff = s.cfg.AckWait, s.cfg.MaxAckPending, -1, nil
	return c, differs
}

// fit refuses a consumer with which messages would be lost or lose their order.
func (s *Source) fit(c jetstream.ConsumerConfig) error {
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		return errors.New("the consumer's AckPolicy is not explicit, so that one acknowledgement would end other messages too: make one with AckPolicy explicit")
	case c.MaxDeliver > 0:
		return fmt.Errorf("the consumer's MaxDeliver is %d, after which the server would drop a message without a word: set it to -1, Sekali keeps what fails as dead letters", c.MaxDeliver)
	case c.HeadersOnly:
		return errors.New("the consumer delivers headers only: set HeadersOnly to false")
	case s.cfg.Ordered && c.MaxAckPending != 1:
		return fmt.Errorf("an Ordered source has one delivery out at a time, but the consumer's MaxAckPending is %d: set it to 1", c.MaxAckPending)
	}
	return nil
}
