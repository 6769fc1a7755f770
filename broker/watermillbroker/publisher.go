package watermillbroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
)

// Publisher publishes to a publisher of Watermill. What its confirmation is
// worth is the backend's to say.
type Publisher struct {
	inner       message.Publisher
	orderingKey string
	close       bool
}

var _ broker.Publisher = (*Publisher)(nil)

// PublisherOption changes what NewPublisher makes.
type PublisherOption func(*Publisher)

// WithOrderingKeyMetadata names the metadata that carries the ordering key.
// Without it none does.
func WithOrderingKeyMetadata(name string) PublisherOption {
	return func(p *Publisher) { p.orderingKey = name }
}

// ClosePublisher has Close close the publisher of Watermill too.
func ClosePublisher() PublisherOption { return func(p *Publisher) { p.close = true } }

// NewPublisher returns a Publisher.
func NewPublisher(p message.Publisher, options ...PublisherOption) *Publisher {
	own := &Publisher{inner: p}
	for _, o := range options {
		o(own)
	}
	return own
}

// Publish implements broker.Publisher, one message after another: of several
// at once Watermill does not say which failed.
func (p *Publisher) Publish(ctx context.Context, messages ...broker.Message) error {
	result := &broker.PublishError{Errs: make([]error, len(messages))}
	for i, m := range messages {
		w, err := p.wireOf(m)
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			w.SetContext(ctx)
			err = p.inner.Publish(m.Topic, w)
		}
		if err != nil {
			result.Errs[i] = fmt.Errorf("publish message %d of %d to %q: %w", i+1, len(messages), m.Topic, err)
		}
	}
	if errors.Join(result.Errs...) != nil {
		return result
	}
	return nil
}

func (p *Publisher) wireOf(m broker.Message) (*message.Message, error) {
	if m.Topic == "" {
		return nil, errors.New("it has no topic")
	}
	w := message.NewMessage(m.ID, m.Body)
	for _, h := range m.Headers {
		if _, twice := w.Metadata[h.Name]; twice {
			return nil, fmt.Errorf("header %q comes twice, and metadata cannot", h.Name)
		}
		w.Metadata[h.Name] = string(h.Value)
	}
	if p.orderingKey != "" && m.OrderingKey != nil {
		w.Metadata[p.orderingKey] = string(m.OrderingKey)
	}
	return w, nil
}

// Close implements broker.Publisher.
func (p *Publisher) Close(context.Context) error {
	if !p.close {
		return nil
	}
	if err := p.inner.Close(); err != nil {
		return fmt.Errorf("close the publisher of Watermill: %w", err)
	}
	return nil
}
