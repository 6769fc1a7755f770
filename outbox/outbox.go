// Package outbox publishes events from the database in which they happened.
//
// A service that changes its database and then publishes can crash between the
// two. With an outbox the event is a row, written in the transaction of the
// change, and a Relay publishes it afterwards, at least once and always under
// the same id. That id is made when the event happens: it is the best message
// key that a consumer can have.
//
//	box := outbox.New(pgxstore.New(pool))
//	id, err := box.Add(ctx, tx, outbox.Message{Topic: "orders", OrderingKey: []byte("order-42"), Body: body})
//
//	relay, err := box.NewRelay(outbox.RelayConfig{Publisher: publisher})
//	err = relay.Run(ctx)
//
// The table is outbox_messages, which sekali migrate makes. Writers in other
// languages insert into it with plain SQL: see docs/outbox.md.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store"
)

// IDHeader is the header in which an event's id travels: what the key extractor
// sekali.Header("idempotency-key") takes.
const IDHeader = "idempotency-key"

// OrderingKeyHeader is the header in which an event's ordering key travels, for
// brokers that carry none themselves: the Source of a consumer takes it if its
// OrderingKeyHeader says so.
const OrderingKeyHeader = "sekali-ordering-key"

const (
	// MaxID is the longest id, in bytes.
	MaxID = 200
	// MaxTopic is the longest topic, in bytes.
	MaxTopic = 255
)

// Message is an event to be published.
type Message struct {
	// ID of the event, at most MaxID bytes of text without control characters,
	// unique among all in the table. It travels in the header IDHeader, and as
	// the broker's own id where there is one. Defaults to a new UUIDv7.
	ID string
	// Topic is where it goes, as the broker's Publisher understands it: 1 to
	// MaxTopic bytes of text. Required.
	Topic string
	// OrderingKey names what the event belongs to: events of one key are
	// published one after another. nil: none.
	OrderingKey []byte
	// Headers of the message. IDHeader and OrderingKeyHeader are set by the Relay
	// and refused here.
	Headers broker.Headers
	// Body of the message. nil and empty are kept apart where the broker does.
	Body []byte
	// NotBefore is the time, by the database's clock, before which it is not
	// published. Until then it has no place in the order of its key: later ones
	// pass it. Zero: at once.
	NotBefore time.Time
	// Type and Subject of the event as a CloudEvent. They need a Box with
	// CloudEvents, which requires Type.
	Type, Subject string
}

// Box is an outbox. It is safe for concurrent use.
type Box[Tx any] struct {
	rows    Adder[Tx]
	invalid error // told by the first call
	ordered bool
	source  string
	wake    *wakes
}

// Adder is what a store offers that keeps an outbox. Its transactions are those
// of the store.
type Adder[Tx any] interface {
	Rows
	// Add inserts rows in their order in a transaction of the user's. With lock
	// it first waits, for each ordering key, until no other transaction that
	// adds with lock has one open, so that the ids of rows follow the commits.
	Add(ctx context.Context, tx Tx, rows []Row, lock bool) error
	// OnCommit has f called after the commit of a transaction that the store
	// began. It returns false for any other.
	OnCommit(tx Tx, f func()) bool
}

// Option changes what New makes.
type Option func(*options)

type options struct {
	ordered  bool
	source   string
	notifier Notifier
}

// Ordered has Add lock its ordering key until the transaction ends, so that two
// transactions that add to one key get their ids in the order of their commits.
// Without it the Relay publishes what it finds committed, in the order of the
// ids, and what commits later, later.
//
// Use it where events of one key come from transactions that overlap, unless
// they lock the entity's row anyway before they call Add. Transactions that add
// to several keys, in several calls, can deadlock: the database ends one of
// them, which is to be run again. On SQLite it does nothing: there is one writer
// at a time.
func Ordered() Option { return func(o *options) { o.ordered = true } }

// CloudEvents has every event bear the headers of a CloudEvent (specversion
// 1.0, binary mode, "ce_id" and so on), with this source. Message.Type is then
// required.
func CloudEvents(source string) Option { return func(o *options) { o.source = source } }

// WithNotifier has Relays of other processes told at once that there is
// something to publish, by the database. Without it they look every PollEvery.
// See pgxstore.NewNotifier for what it costs.
func WithNotifier(n Notifier) Option { return func(o *options) { o.notifier = n } }

// New returns an outbox in the database of a store: a *pgxstore.Store or a
// *sqlstore.Store. It does no I/O.
func New[Tx any](s store.Store[Tx], opts ...Option) *Box[Tx] {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	b := &Box[Tx]{ordered: o.ordered, source: o.source, wake: newWakes(o.notifier)}
	keeper, ok := store.As[interface{ Outbox() Adder[Tx] }](s)
	if !ok {
		b.invalid = fmt.Errorf("outbox: a %T keeps no outbox: use pgxstore or sqlstore", s)
		return b
	}
	b.rows = keeper.Outbox()
	return b
}

// Add writes an event in a transaction of the caller's, and returns its id. The
// event is published after the commit, and never if the transaction rolls back.
//
// In a transaction that Sekali ends (an Inbox, a Consumer), a Relay of this
// process is woken by the commit; after a commit of your own call Wake, or the
// Relay finds it within PollEvery.
func (b *Box[Tx]) Add(ctx context.Context, tx Tx, m Message) (id string, err error) {
	ids, err := b.AddAll(ctx, tx, []Message{m})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// AddAll is Add for several events, in their order and in one statement.
func (b *Box[Tx]) AddAll(ctx context.Context, tx Tx, messages []Message) (ids []string, err error) {
	if b.invalid != nil {
		return nil, b.invalid
	}
	if len(messages) == 0 {
		return nil, nil
	}
	rows := make([]Row, len(messages))
	ids = make([]string, len(messages))
	for i, m := range messages {
		if rows[i], err = b.row(m); err != nil {
			return nil, fmt.Errorf("add event %d of %d for %q to the outbox: %w", i+1, len(messages), m.Topic, err)
		}
		ids[i] = rows[i].MessageID
	}
	if err := b.rows.Add(ctx, tx, rows, b.ordered); err != nil {
		return nil, err
	}
	b.rows.OnCommit(tx, b.Wake)
	return ids, nil
}

// Wake tells Relays that something was committed: those of this process, and
// with a Notifier those of others. It does not block.
func (b *Box[Tx]) Wake() { b.wake.all() }

// row makes the row of an event, or says what is wrong with it.
func (b *Box[Tx]) row(m Message) (Row, error) {
	if m.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return Row{}, fmt.Errorf("make an id: %w", err)
		}
		m.ID = id.String()
	}
	if err := b.check(m); err != nil {
		return Row{}, err
	}
	headers := m.Headers
	if b.source != "" {
		headers = append(b.cloudEvent(m), headers...)
	}
	text, err := MarshalHeaders(headers)
	if err != nil {
		return Row{}, err
	}
	return Row{
		MessageID: m.ID, Topic: m.Topic, OrderingKey: m.OrderingKey, Headers: text, Body: m.Body, NotBefore: m.NotBefore,
	}, nil
}

func (b *Box[Tx]) check(m Message) error {
	if err := checkText("ID", m.ID, MaxID); err != nil {
		return err
	}
	if err := checkText("Topic", m.Topic, MaxTopic); err != nil {
		return err
	}
	for _, h := range m.Headers {
		switch {
		case strings.EqualFold(h.Name, IDHeader):
			return fmt.Errorf("it has a header %q, which the Relay sets: put its value in Message.ID", h.Name)
		case strings.EqualFold(h.Name, OrderingKeyHeader):
			return fmt.Errorf("it has a header %q, which the Relay sets: put its value in Message.OrderingKey", h.Name)
		case b.source != "" && strings.HasPrefix(strings.ToLower(h.Name), cloudPrefix):
			return fmt.Errorf("it has a header %q, which CloudEvents sets: leave it out", h.Name)
		}
	}
	switch {
	case b.source != "" && m.Type == "":
		return errors.New("its Type is empty, which a CloudEvent has to have: set it")
	case b.source == "" && (m.Type != "" || m.Subject != ""):
		return errors.New("its Type and Subject are a CloudEvent's: make the outbox with CloudEvents, or put them into Headers")
	}
	return nil
}

func checkText(name, value string, most int) error {
	switch {
	case strings.TrimSpace(value) == "":
		return fmt.Errorf("%s is empty: set it", name)
	case len(value) > most:
		return fmt.Errorf("%s has %d bytes: use %d at most", name, len(value), most)
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%s is not text, or has control characters: use printable UTF-8", name)
	}
	return nil
}

// cloudPrefix is that of CloudEvents over Kafka; sekali.CloudEvent takes it
// from any broker.
const cloudPrefix = "ce_"

func (b *Box[Tx]) cloudEvent(m Message) broker.Headers {
	h := broker.Headers{
		{Name: cloudPrefix + "specversion", Value: []byte("1.0")},
		{Name: cloudPrefix + "id", Value: []byte(m.ID)},
		{Name: cloudPrefix + "source", Value: []byte(b.source)},
		{Name: cloudPrefix + "type", Value: []byte(m.Type)},
		{Name: cloudPrefix + "time", Value: []byte(time.Now().UTC().Format(time.RFC3339Nano))},
	}
	if m.Subject != "" {
		h = append(h, broker.Header{Name: cloudPrefix + "subject", Value: []byte(m.Subject)})
	}
	return h
}
