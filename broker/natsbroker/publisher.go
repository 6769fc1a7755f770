package natsbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
)

// ErrNoStream is the error for a message whose subject no stream stores.
var ErrNoStream = errors.New("no stream stores this subject")

// ErrNotConfirmed is the error for a message of which the server did not say
// in time whether it keeps it. It may have.
var ErrNotConfirmed = errors.New("the server did not confirm in time")

// window is how many messages may be under way in one Publish. Servers drop
// what they are too far behind with.
const window = 256

// Publisher publishes to JetStream: many messages at once, each confirmed by
// the server. It is safe for concurrent use.
type Publisher struct {
	nc        *nats.Conn
	owned     bool
	withoutID bool
	keyHeader string
	timeout   time.Duration

	mu     sync.RWMutex // held for reading during a Publish
	closed bool
}

var _ broker.Publisher = (*Publisher)(nil)

// PublisherOption changes a Publisher.
type PublisherOption func(*Publisher)

// WithoutMsgID has the Publisher not send Message.ID as Nats-Msg-Id. With it a
// stream confirms a message whose id it saw in its duplicate window (2 minutes
// by default) and drops it. That is what one wants of a producer that sends
// again; a redrive of a message that came a moment ago it swallows.
func WithoutMsgID() PublisherOption {
	return func(p *Publisher) { p.withoutID = true }
}

// WithOrderingKeyHeader has the Publisher send Message.OrderingKey in a header
// (see SourceConfig.OrderingKeyHeader).
func WithOrderingKeyHeader(name string) PublisherOption {
	return func(p *Publisher) { p.keyHeader = name }
}

// WithConfirmTimeout says how long to wait for the next confirmation. Defaults
// to 10 s.
func WithConfirmTimeout(d time.Duration) PublisherOption {
	return func(p *Publisher) { p.timeout = d }
}

// NewPublisher returns a Publisher on the connection of js, which stays its
// owner's to close. It does no I/O.
func NewPublisher(js jetstream.JetStream, options ...PublisherOption) *Publisher {
	p := &Publisher{nc: js.Conn(), timeout: DefaultTimeout}
	for _, o := range options {
		o(p)
	}
	return p
}

// Publish publishes messages and waits until the server has confirmed each. A
// *broker.PublishError tells which ones it did not: among them ErrNoStream,
// ErrNotConfirmed and the server's own refusals.
func (p *Publisher) Publish(ctx context.Context, m ...broker.Message) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return fmt.Errorf("publish to NATS: %w", broker.ErrClosed)
	}
	if len(m) == 0 {
		return nil
	}
	b, err := newPublishing(p, len(m))
	if err != nil {
		return err
	}
	defer b.end()
	for i := range m {
		if b.underWay == window {
			b.wait(ctx)
		}
		b.send(i, m[i])
	}
	for b.underWay > 0 {
		b.wait(ctx)
	}
	return b.result(m)
}

// Close waits for what is under way, and closes the connection if the
// Publisher made it. It may be called twice.
func (p *Publisher) Close(context.Context) error {
	p.mu.Lock() // no Publish is under way
	defer p.mu.Unlock()
	if !p.closed && p.owned {
		p.nc.Close()
	}
	p.closed = true
	return nil
}

// publishing is one call of Publish. The confirmation of message i comes to
// the inbox's subject i.
type publishing struct {
	p        *Publisher
	inbox    string
	acks     chan *nats.Msg
	sub      *nats.Subscription
	errs     []error
	sent     []bool // without an answer yet
	underWay int
	failed   int
	given    error // set when nobody waits for answers any more
}

func newPublishing(p *Publisher, n int) (*publishing, error) {
	b := &publishing{
		p: p, inbox: p.nc.NewInbox() + ".", errs: make([]error, n), sent: make([]bool, n),
		acks: make(chan *nats.Msg, n), // as many as can come
	}
	sub, err := p.nc.ChanSubscribe(b.inbox+"*", b.acks)
	if err != nil {
		return nil, fmt.Errorf("publish to NATS: %w", connectionError(err))
	}
	b.sub = sub
	return b, nil
}

func (b *publishing) end() { _ = b.sub.Unsubscribe() }

func (b *publishing) fail(i int, err error) {
	b.errs[i] = err
	b.failed++
}

// send sends message i, or notes why it cannot.
func (b *publishing) send(i int, m broker.Message) {
	if b.given != nil {
		b.fail(i, fmt.Errorf("not sent: %w", b.given))
		return
	}
	out, err := b.p.natsMessage(m)
	if err != nil {
		b.fail(i, broker.Refuse(err))
		return
	}
	out.Reply = b.inbox + strconv.Itoa(i)
	if err := b.p.nc.PublishMsg(out); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) {
			err = broker.Refuse(err)
		}
		b.fail(i, connectionError(err))
		return
	}
	b.sent[i] = true
	b.underWay++
}

// wait waits for one answer. When none comes in time, all that are under way
// have failed.
func (b *publishing) wait(ctx context.Context) {
	timer := time.NewTimer(b.p.timeout)
	defer timer.Stop()
	select {
	case ack := <-b.acks:
		b.answer(ack)
	case <-ctx.Done():
		b.giveUp(ctx.Err())
	case <-timer.C:
		b.giveUp(fmt.Errorf("%w (%v)", ErrNotConfirmed, b.p.timeout))
	}
}

func (b *publishing) giveUp(err error) {
	b.given = err
	for i := range b.sent {
		if b.sent[i] {
			b.sent[i] = false
			b.fail(i, err)
		}
	}
	b.underWay = 0
}

func (b *publishing) answer(ack *nats.Msg) {
	i, err := strconv.Atoi(strings.TrimPrefix(ack.Subject, b.inbox))
	if err != nil || i < 0 || i >= len(b.sent) || !b.sent[i] {
		return
	}
	b.sent[i] = false
	b.underWay--
	if err := ackError(ack); err != nil {
		b.fail(i, err)
	}
}

// ackError returns nil if an answer says that a stream keeps the message. (One
// that it has already, by its id, it keeps too.)
func ackError(ack *nats.Msg) error {
	if len(ack.Data) == 0 && ack.Header.Get("Status") == "503" {
		return broker.Refuse(fmt.Errorf("%w: make a stream for it, or correct Message.Topic", ErrNoStream))
	}
	var said struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(ack.Data, &said); {
	case err != nil || said.Error == nil && said.Stream == "":
		return broker.Refuse(fmt.Errorf("%w: something that is not a stream answered", ErrNoStream))
	case said.Error != nil && said.Error.Code == 400: // what is asked for is wrong
		return broker.Refuse(fmt.Errorf("the stream refused it: %w", said.Error))
	case said.Error != nil:
		return fmt.Errorf("the stream does not keep it now: %w", said.Error)
	}
	return nil
}

func (b *publishing) result(m []broker.Message) error {
	if b.failed == 0 {
		return nil
	}
	for i, err := range b.errs {
		if err != nil {
			b.errs[i] = fmt.Errorf("publish message %d of %d to %q: %w", i+1, len(m), m[i].Topic, err)
		}
	}
	return &broker.PublishError{Errs: b.errs}
}

// connectionError says ErrClosed of a connection that is closed for good.
func connectionError(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionDraining) || errors.Is(err, nats.ErrInvalidConnection) {
		return fmt.Errorf("%w: %w", broker.ErrClosed, err)
	}
	return err
}
