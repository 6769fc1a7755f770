package broker

import (
	"bytes"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// Message is what travels through a broker. Bodies, header values and
// ordering keys are bytes; nil and empty are kept apart where the broker does
// (a Kafka tombstone is a nil body).
type Message struct {
	// ID identifies the message in its broker: the id that the producer gave
	// it there (Nats-Msg-Id, AMQP message-id), else its position with what it
	// is a position in and that thing's incarnation, so that a recreated
	// stream's messages are new. Empty if the broker has neither. Publishers
	// hand it on where the broker has a place for it.
	ID string
	// Topic is where it was published: a topic, subject, stream or queue.
	Topic string
	// OrderingKey is what the broker keeps in order (a Kafka key); nil: none.
	OrderingKey []byte
	// Headers in the order in which they came; names may repeat.
	Headers Headers
	// Body of the message; nil where the broker has no body at all.
	Body []byte
	// PublishedAt is the broker's time of publication; zero if unknown.
	PublishedAt time.Time
}

// Header is one name with one value.
type Header struct {
	Name  string
	Value []byte
}

// Headers are the headers of a message. Names compare byte for byte.
type Headers []Header

// Get returns the first value of name, and whether there is one.
func (h Headers) Get(name string) ([]byte, bool) {
	for i := range h {
		if h[i].Name == name {
			return h[i].Value, true
		}
	}
	return nil, false
}

// Set returns h with value as the only value of name, in the place of the
// first one that was there. It does not change h itself.
func (h Headers) Set(name string, value []byte) Headers {
	set, done := make(Headers, 0, len(h)+1), false
	for _, x := range h {
		switch {
		case x.Name != name:
			set = append(set, x)
		case !done:
			set, done = append(set, Header{name, value}), true
		}
	}
	if !done {
		set = append(set, Header{name, value})
	}
	return set
}

// Clone returns a copy that shares no memory with m.
func (m Message) Clone() Message {
	m.OrderingKey = bytes.Clone(m.OrderingKey)
	m.Body = bytes.Clone(m.Body)
	m.Headers = slices.Clone(m.Headers)
	for i := range m.Headers {
		m.Headers[i].Value = bytes.Clone(m.Headers[i].Value)
	}
	return m
}

// Delivery is one arrival of a message. Who receives it treats Message as
// read-only: it is what a retry and a dead letter start from.
type Delivery struct {
	Message Message
	// Lane names the line in which this delivery stands: those of one lane
	// take effect one after another, in the order in which they were handed
	// over. Empty: it stands in none, and any number may run at once.
	Lane string
	// Attempt is the broker's count of deliveries of this message, this one
	// included; 0: unknown.
	Attempt int
	// Redelivered tells that it came before, or may have: with Attempt above
	// 1, a hint that a process may have died of it.
	Redelivered bool
	// Handle is the Source's own, to settle by.
	Handle any

	deadline atomic.Int64 // since epoch, monotonic nanoseconds; 0: none
}

// epoch is the start of the monotonic clock by which deadlines are kept: a
// step of the wall clock must not expire deliveries.
var epoch = time.Now()

// Extend sets the time until which the broker leaves the delivery to us: by
// from now. It is safe beside Expired.
func (d *Delivery) Extend(by time.Duration) {
	d.deadline.Store(int64(time.Since(epoch) + by))
}

// Expired tells whether the broker may have given the message to somebody
// else by now. A delivery without a deadline never expires.
func (d *Delivery) Expired() bool {
	until := d.deadline.Load()
	return until != 0 && int64(time.Since(epoch)) >= until
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
