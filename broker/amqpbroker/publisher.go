package amqpbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
)

// PublisherConfig says how a Publisher works.
type PublisherConfig struct {
	// URL of the broker: see SourceConfig. Required.
	URL string
	// Capability is asked of addresses, as in SourceConfig: with "queue"
	// Artemis makes an anycast queue where there is none, which keeps what is
	// published before anybody receives. Defaults to "queue"; "-" means none.
	Capability string
	// Timeout bounds connecting. Defaults to 10 s.
	Timeout time.Duration
	// Client has further options of the connection. Defaults to none.
	Client *amqp.ConnOptions
}

// Publisher publishes to addresses: a message's Topic. Each is confirmed when
// the broker has accepted it; durable ones are on its disk then.
type Publisher struct {
	cfg PublisherConfig

	mu      sync.Mutex
	conn    *amqp.Conn
	session *amqp.Session
	senders map[string]*amqp.Sender
	closed  bool
	working sync.WaitGroup // Publishes
}

var _ broker.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. It connects with the first Publish.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	full, err := SourceConfig{URL: cfg.URL, Queue: "any", Capability: cfg.Capability, Timeout: cfg.Timeout}.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new AMQP 1.0 publisher: %w", err)
	}
	cfg.Capability, cfg.Timeout = full.Capability, full.Timeout
	return &Publisher{cfg: cfg, senders: map[string]*amqp.Sender{}}, nil
}

// sender returns the link to an address.
func (p *Publisher) sender(ctx context.Context, topic string) (*amqp.Sender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, broker.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	if p.conn == nil {
		conn, err := Connect(ctx, p.cfg.URL, p.cfg.Client)
		if err != nil {
			return nil, err
		}
		session, err := conn.NewSession(ctx, nil)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("open a session at %s: %w", RedactURL(p.cfg.URL), err)
		}
		p.conn, p.session = conn, session
	}
	if s := p.senders[topic]; s != nil {
		return s, nil
	}
	s, err := p.session.NewSender(ctx, topic, &amqp.SenderOptions{TargetCapabilities: capabilities(p.cfg.Capability)})
	if err != nil {
		if gone(err) && !isLink(err) {
			p.reset()
		}
		err = refused(err)
		return nil, fmt.Errorf("publish to %q at %s: %w: is the address there, and may the user send to it?", topic, RedactURL(p.cfg.URL), err)
	}
	p.senders[topic] = s
	return s, nil
}

// refused tells of an error that it is the broker's word about the address.
func refused(err error) error {
	var link *amqp.LinkError
	if !errors.As(err, &link) || link.RemoteErr == nil {
		return err
	}
	switch link.RemoteErr.Condition {
	case amqp.ErrCondNotFound, amqp.ErrCondUnauthorizedAccess, amqp.ErrCondNotAllowed, amqp.ErrCondMessageSizeExceeded:
		return broker.Refuse(err)
	}
	return err
}

func isLink(err error) bool {
	var link *amqp.LinkError
	return errors.As(err, &link)
}

// reset gives the connection up; with the lock.
func (p *Publisher) reset() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.conn, p.session, p.senders = nil, nil, map[string]*amqp.Sender{}
}

// failed gives up what an error shows to be of no use.
func (p *Publisher) failed(topic string, s *amqp.Sender, err error) {
	if !gone(err) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.senders[topic] != s {
		return // somebody has done so
	}
	if isLink(err) {
		delete(p.senders, topic)
		return
	}
	p.reset()
}

// Publish implements broker.Publisher: all are sent, then all are waited for.
func (p *Publisher) Publish(ctx context.Context, messages ...broker.Message) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return broker.ErrClosed
	}
	p.working.Add(1)
	p.mu.Unlock()
	defer p.working.Done()
	result := &broker.PublishError{Errs: make([]error, len(messages))}
	receipts := make([]*receipt, len(messages))
	for i, m := range messages {
		r, err := p.send(ctx, m)
		receipts[i] = r
		if err != nil {
			result.Errs[i] = fmt.Errorf("publish message %d of %d: %w", i+1, len(messages), err)
		}
	}
	for i, r := range receipts {
		if r == nil {
			continue
		}
		if err := r.wait(ctx, p); err != nil {
			result.Errs[i] = fmt.Errorf("publish message %d of %d: %w", i+1, len(messages), err)
		}
	}
	if errors.Join(result.Errs...) != nil {
		return result
	}
	return nil
}

// receipt is a message on its way.
type receipt struct {
	topic  string
	sender *amqp.Sender
	amqp.SendReceipt
}

func (p *Publisher) send(ctx context.Context, m broker.Message) (*receipt, error) {
	w, err := wireOf(m)
	if err != nil {
		return nil, broker.Refuse(err)
	}
	s, err := p.sender(ctx, m.Topic)
	if err != nil {
		return nil, err
	}
	sent, err := s.SendWithReceipt(ctx, w, nil)
	if err != nil {
		p.failed(m.Topic, s, err)
		return nil, err
	}
	return &receipt{m.Topic, s, sent}, nil
}

// wait waits for the broker's word.
func (r *receipt) wait(ctx context.Context, p *Publisher) error {
	state, err := r.Wait(ctx)
	if err != nil {
		p.failed(r.topic, r.sender, err)
		return fmt.Errorf("it was not confirmed: %w", err)
	}
	switch s := state.(type) {
	case *amqp.StateAccepted:
		return nil
	case *amqp.StateRejected:
		if s.Error != nil && s.Error.Condition == amqp.ErrCondResourceLimitExceeded {
			return fmt.Errorf("the broker is full: %w", s.Error)
		}
		if s.Error != nil {
			return broker.Refuse(fmt.Errorf("the broker rejects it: %w", s.Error))
		}
		return broker.Refuse(errors.New("the broker rejects it"))
	}
	return fmt.Errorf("the broker does not keep it: it says %T", state)
}

// Close implements broker.Publisher. It may be called twice.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	p.mu.Unlock()
	if again {
		return nil
	}
	done := make(chan struct{})
	go func() {
		p.working.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the AMQP 1.0 publisher: %w", ctx.Err())
	}
	p.mu.Lock()
	p.reset()
	p.mu.Unlock()
	<-done // the connection's end ends them
	return err
}
