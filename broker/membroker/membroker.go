// Package membroker is a message broker in memory, for tests and examples. It
// behaves as real ones do: it delivers at least once, takes a delivery back
// when its time is over, counts deliveries, lets several sources compete, and
// shares no memory with those who publish and receive. It keeps every message
// until the program ends.
package membroker

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
)

// Options of a Broker. The zero value is ready to use.
type Options struct {
	// AckWait is how long a delivery may stay unsettled before the message is
	// given to somebody else. Defaults to 30 s.
	AckWait time.Duration
	// Lanes is the number of lanes over which messages are spread by their
	// ordering keys, "p0" and on. A lane goes to one source at a time, and its
	// order is kept: when a delivery comes back, those handed over after it in
	// its lane come back too. Defaults to 0: no lanes, no order, and retries
	// may be delayed.
	Lanes int
	// Topics that may be published to; publishing to another is an error.
	// Defaults to all. Every consumer gets the messages of all topics.
	Topics []string
}

// DefaultAckWait is what Options.AckWait defaults to.
const DefaultAckWait = 30 * time.Second

// Broker keeps messages for any number of consumers, each of which gets all.
// It is a broker.Publisher. It is safe for concurrent use.
type Broker struct {
	opts Options
	seed maphash.Seed

	mu        sync.Mutex
	log       []stored
	consumers map[string]*consumer
	closed    bool
}

// stored is a published message with its lane; never changed afterwards.
type stored struct {
	message broker.Message
	lane    int
}

var _ broker.Publisher = (*Broker)(nil)

// New returns an empty Broker. Negative options count as zero.
func New(opts Options) *Broker {
	if opts.AckWait <= 0 {
		opts.AckWait = DefaultAckWait
	}
	opts.Lanes = max(opts.Lanes, 0)
	return &Broker{opts: opts, seed: maphash.MakeSeed(), consumers: map[string]*consumer{}}
}

// Publish keeps copies of messages. Those without an ID get their position as
// ID, those without PublishedAt the time of now. It returns a
// *broker.PublishError for messages whose topic is not there.
func (b *Broker) Publish(ctx context.Context, m ...broker.Message) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish to the memory broker: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("publish to the memory broker: %w", broker.ErrClosed)
	}
	var failed *broker.PublishError
	for i := range m {
		if len(b.opts.Topics) > 0 && !slices.Contains(b.opts.Topics, m[i].Topic) {
			if failed == nil {
				failed = &broker.PublishError{Errs: make([]error, len(m))}
			}
			failed.Errs[i] = broker.Refuse(fmt.Errorf("publish message %q: nothing listens on topic %q: add it to Options.Topics", m[i].ID, m[i].Topic))
			continue
		}
		b.keep(m[i].Clone())
	}
	for _, c := range b.consumers {
		c.catchUp(b.log)
	}
	if failed != nil {
		return failed
	}
	return nil
}

// keep appends a message. b.mu is held.
func (b *Broker) keep(m broker.Message) {
	if m.ID == "" {
		m.ID = fmt.Sprintf("mem@%p/%d", b, len(b.log)+1)
	}
	if m.PublishedAt.IsZero() {
		m.PublishedAt = time.Now().UTC()
	}
	lane := 0
	if b.opts.Lanes > 0 {
		lane = int(maphash.Bytes(b.seed, m.OrderingKey) % uint64(b.opts.Lanes))
	}
	b.log = append(b.log, stored{m, lane})
}

// Close ends publishing; sources go on with what is there. It may be called
// twice.
func (b *Broker) Close(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// NewSource returns a source of a consumer. Sources of one consumer compete
// for its messages; a consumer that is new begins with the first message ever
// published.
func (b *Broker) NewSource(name string) *Source {
	return &Source{consumer: b.consumer(name), done: make(chan struct{})}
}

// Len returns how many messages a consumer has not acknowledged: those that
// wait, those that are in somebody's hand, and those whose retry is delayed.
func (b *Broker) Len(name string) int {
	c := b.consumer(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// WaitEmpty waits until a consumer has acknowledged every message. It returns
// an error that says how many are left when ctx ends before.
func (b *Broker) WaitEmpty(ctx context.Context, name string) error {
	c := b.consumer(name)
	for {
		c.mu.Lock()
		pending, changed := c.pending, c.changed
		c.mu.Unlock()
		if pending == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for consumer %q of the memory broker: %d not acknowledged: %w", name, pending, ctx.Err())
		}
	}
}

func (b *Broker) consumer(name string) *consumer {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.consumers[name]
	if c == nil {
		c = newConsumer(b.opts)
		c.catchUp(b.log)
		b.consumers[name] = c
	}
	return c
}

func laneName(n int) string { return "p" + strconv.Itoa(n) }
