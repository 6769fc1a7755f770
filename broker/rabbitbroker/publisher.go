package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
)

var (
	// ErrUnroutable is the error for a message that reached no queue: the
	// queue is not there, or nothing is bound to the exchange for the routing
	// key.
	ErrUnroutable = errors.New("no queue takes it")

	// ErrRefused is the error for a message that a queue refused to take, one
	// that is full say.
	ErrRefused = errors.New("a queue refused it")

	// ErrNotConfirmed is the error for a message of which the server did not
	// say whether it keeps it. It may have.
	ErrNotConfirmed = errors.New("the server did not confirm it")
)

const (
	// DefaultConfirmTimeout is what WithConfirmTimeout defaults to.
	DefaultConfirmTimeout = 30 * time.Second
	// window is how many messages of a Publish may be unconfirmed at once.
	window = 256
	// maxChannels is how many calls of Publish run at once; others wait.
	maxChannels = 32
	// writeGrace is how long a write may go on after the end of its context,
	// before the connection is cut.
	writeGrace = 200 * time.Millisecond
)

// Publisher publishes with publisher confirms, and as mandatory: a message that
// reaches no queue is an error. Messages are persistent. It is safe for
// concurrent use; each call of Publish has a channel of its own meanwhile. It
// connects when it is first used, and again when the connection is lost.
type Publisher struct {
	url       string
	client    amqp.Config
	keyHeader string
	timeout   time.Duration

	dialing chan struct{} // holds a token while nobody dials
	slots   chan struct{} // a token for each Publish under way

	publishing sync.RWMutex // held for reading during a Publish
	tidying    sync.WaitGroup

	mu     sync.Mutex
	link   *link // nil: not connected
	idle   []*confirming
	exists map[string]bool // exchanges that were seen through link
	closed bool
}

var _ broker.Publisher = (*Publisher)(nil)

// PublisherOption changes a Publisher.
type PublisherOption func(*Publisher)

// WithOrderingKeyHeader has the Publisher send Message.OrderingKey in a header
// (see SourceConfig.OrderingKeyHeader).
func WithOrderingKeyHeader(name string) PublisherOption {
	return func(p *Publisher) { p.keyHeader = name }
}

// WithConfirmTimeout says how long to wait for the next confirmation, and for
// a server that is short of memory or disk to take messages again. Defaults to
// 30 s.
func WithConfirmTimeout(d time.Duration) PublisherOption {
	return func(p *Publisher) { p.timeout = d }
}

// WithClient has settings for the client library: TLS, other ways to
// authenticate, how to dial. Its Recovery is not used: the Publisher reconnects
// by itself.
func WithClient(cfg amqp.Config) PublisherOption {
	return func(p *Publisher) { p.client = cfg }
}

// NewPublisher returns a Publisher for the server at a URL (see CheckURL). It
// does no I/O.
func NewPublisher(url string, options ...PublisherOption) (*Publisher, error) {
	if err := CheckURL(url); err != nil {
		return nil, fmt.Errorf("new RabbitMQ publisher: %w", err)
	}
	p := &Publisher{url: url, timeout: DefaultConfirmTimeout, dialing: make(chan struct{}, 1), slots: make(chan struct{}, maxChannels)}
	p.dialing <- struct{}{}
	for _, o := range options {
		o(p)
	}
	p.client.Recovery = nil
	return p, nil
}

// Publish publishes messages, in their order, and waits until the server has
// confirmed each. A *broker.PublishError tells which ones it did not, among
// them those with ErrUnroutable, ErrRefused and ErrNotConfirmed. It returns
// when ctx ends, also when the server is short of memory and takes nothing.
func (p *Publisher) Publish(ctx context.Context, m ...broker.Message) error {
	if len(m) == 0 {
		return nil
	}
	out, errs := make([]outgoing, len(m)), make([]error, len(m))
	for i := range m {
		var err error
		out[i], err = p.outgoingOf(m[i])
		errs[i] = broker.Refuse(err)
	}
	if err := p.send(ctx, out, errs); err != nil {
		return fmt.Errorf("publish to RabbitMQ: %w", err)
	}
	failed := false
	for i, err := range errs {
		if err != nil {
			failed = true
			errs[i] = fmt.Errorf("publish message %d of %d to %q of RabbitMQ: %w", i+1, len(m), m[i].Topic, err)
		}
	}
	if failed {
		return &broker.PublishError{Errs: errs}
	}
	return nil
}

// send publishes those that have no error yet, and notes what goes wrong with
// each. It returns an error if nothing was sent at all.
func (p *Publisher) send(ctx context.Context, out []outgoing, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.publishing.RLock()
	defer p.publishing.RUnlock()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer p.giveBack(c)
	defer c.link.guard(ctx, writeGrace)()
	b := &batch{p: p, c: c, out: out, errs: errs, confirms: make([]*amqp.DeferredConfirmation, len(out))}
	b.run(ctx)
	return nil
}

// take returns a channel for one Publish.
func (p *Publisher) take(ctx context.Context) (*confirming, error) {
	l, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	for n := len(p.idle) - 1; n >= 0; n = len(p.idle) - 1 {
		c := p.idle[n]
		p.idle = p.idle[:n]
		if c.link == l && !c.ch.IsClosed() {
			p.mu.Unlock()
			return c, nil
		}
	}
	p.mu.Unlock()
	if err := p.flow(ctx, l); err != nil {
		return nil, err
	}
	return newConfirming(ctx, l)
}

// flow waits while the server takes no messages.
func (p *Publisher) flow(ctx context.Context, l *link) error {
	again, reason := l.flowing()
	if again == nil {
		return nil
	}
	patience := time.NewTimer(p.timeout)
	defer patience.Stop()
	select {
	case <-again:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the server takes no messages (%s): %w", reason, ctx.Err())
	case <-patience.C:
		return fmt.Errorf("the server has taken no messages for %v (%s): free memory or disk there", p.timeout, reason)
	}
}

// giveBack keeps a channel for the next Publish, if it is as good as new.
func (p *Publisher) giveBack(c *confirming) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.ch.IsClosed():
		if c.link == p.link {
			clear(p.exists) // one of them may be gone
		}
	case c.dirty || p.closed:
		p.tidying.Go(func() { c.link.leave(c.ch) })
	default:
		p.idle = append(p.idle, c)
	}
}

// connect returns the connection, a new one if need be.
func (p *Publisher) connect(ctx context.Context) (*link, error) {
	select {
	case <-p.dialing:
		defer func() { p.dialing <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	l, closed := p.link, p.closed
	p.mu.Unlock()
	switch {
	case closed:
		return nil, broker.ErrClosed
	case l != nil && l.alive():
		return l, nil
	case l != nil:
		l.close(ctx)
	}
	l, err := dial(ctx, p.url, p.client)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.idle, p.exists = l, nil, map[string]bool{}
	return l, err
}

// exchange tells whether an exchange is there. To publish to one that is not
// would close the channel, under all that are not confirmed yet.
func (p *Publisher) exchange(ctx context.Context, l *link, name string) error {
	p.mu.Lock()
	known := name == "" || l == p.link && p.exists[name]
	p.mu.Unlock()
	if known {
		return nil
	}
	err := l.aside(ctx, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
	})
	if said(err, amqp.NotFound) {
		return broker.Refuse(fmt.Errorf("%w: the exchange %q is not there: make it, or correct Message.Topic", ErrUnroutable, name))
	}
	if err != nil {
		return fmt.Errorf("look for the exchange %q: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l == p.link {
		p.exists[name] = true
	}
	return nil
}

// said tells whether err is the server's with this code.
func said(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// Close waits for what is under way, or until ctx ends, and disconnects. It may
// be called twice.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	l := p.link
	p.mu.Unlock()
	var release func()
	if l != nil {
		release = l.guard(ctx, 0)
	}
	p.publishing.Lock() // no Publish is under way
	defer p.publishing.Unlock()
	if l == nil {
		return nil
	}
	release()
	p.mu.Lock()
	l, p.link, p.idle = p.link, nil, nil
	p.mu.Unlock()
	if l != nil {
		l.close(ctx)
	}
	p.tidying.Wait()
	return nil
}
