package watermillbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
)

// Publisher publishes to a publisher of Watermill. What its confirmation is
// worth is the backend's to say: Watermill allows one that returns before its
// broker has answered. Set yours to wait, where it has the choice.
type Publisher struct {
	inner       message.Publisher
	orderingKey string
	onlyText    bool
	closeInner  bool

	mu       sync.Mutex
	closed   bool
	underWay sync.WaitGroup
}

var _ broker.Publisher = (*Publisher)(nil)

// PublisherOption changes what NewPublisher makes.
type PublisherOption func(*Publisher)

// WithOrderingKeyMetadata names the metadata that carries the ordering key
// (see SourceConfig.OrderingKeyMetadata). It wins over a header of that name.
// Without it no metadata does.
func WithOrderingKeyMetadata(name string) PublisherOption {
	return func(p *Publisher) { p.orderingKey = name }
}

// OnlyText refuses messages whose ID, headers or ordering key are not UTF-8:
// backends that write metadata as JSON (watermill-sql) or as a protocol's text
// (SQS, Google Cloud Pub/Sub) would alter them, some without a word. Bodies may
// be anything. Without it all bytes are handed to the backend.
func OnlyText() PublisherOption { return func(p *Publisher) { p.onlyText = true } }

// ClosePublisher has Close close the publisher of Watermill too.
func ClosePublisher() PublisherOption { return func(p *Publisher) { p.closeInner = true } }

// NewPublisher returns a Publisher. It is safe for concurrent use, as
// Watermill wants its publishers to be.
func NewPublisher(p message.Publisher, options ...PublisherOption) *Publisher {
	own := &Publisher{inner: p}
	for _, o := range options {
		o(own)
	}
	return own
}

// Publish implements broker.Publisher, one message after another: of several
// at once Watermill does not say which failed. Whether it returns when ctx ends
// is the backend's business: the messages carry ctx.
func (p *Publisher) Publish(ctx context.Context, messages ...broker.Message) error {
	if !p.begin() {
		return fmt.Errorf("publish through Watermill: %w", broker.ErrClosed)
	}
	defer p.underWay.Done()
	result, failed := &broker.PublishError{Errs: make([]error, len(messages))}, false
	for i, m := range messages {
		w, err := p.wireOf(m)
		if err != nil {
			err = broker.Refuse(err)
		} else {
			err = ctx.Err()
		}
		if err == nil {
			w.SetContext(ctx)
			err = p.inner.Publish(m.Topic, w)
		}
		if err != nil {
			failed = true
			result.Errs[i] = fmt.Errorf("publish message %d of %d to %q: %w", i+1, len(messages), m.Topic, err)
		}
	}
	if failed {
		return result
	}
	return nil
}

// begin counts a Publish; false after Close.
func (p *Publisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.underWay.Add(1)
	}
	return !p.closed
}

func (p *Publisher) wireOf(m broker.Message) (*message.Message, error) {
	if m.Topic == "" {
		return nil, errors.New("it has no topic: set Message.Topic")
	}
	w := message.NewMessage(m.ID, m.Body)
	for _, h := range m.Headers {
		if _, twice := w.Metadata[h.Name]; twice {
			return nil, fmt.Errorf("header %q comes twice, and metadata cannot: join its values", h.Name)
		}
		w.Metadata[h.Name] = string(h.Value)
	}
	if p.orderingKey != "" && m.OrderingKey != nil {
		w.Metadata[p.orderingKey] = string(m.OrderingKey)
	}
	if p.onlyText {
		return w, textual(w)
	}
	return w, nil
}

// textual tells what of a message is not text, and has to be.
func textual(w *message.Message) error {
	if !utf8.ValidString(w.UUID) {
		return fmt.Errorf("its ID %q is not UTF-8: encode it", w.UUID)
	}
	for name, value := range w.Metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("header %q is not UTF-8: encode its value, in base64 say", name)
		}
	}
	return nil
}

// Close implements broker.Publisher. It waits for what is under way until ctx
// ends.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	done := make(chan error, 1)
	go func() { // Close of Watermill knows no context
		p.underWay.Wait()
		var err error
		if p.closeInner && !again {
			err = p.inner.Close()
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("close the publisher of Watermill: %w", err)
	}
	return nil
}
