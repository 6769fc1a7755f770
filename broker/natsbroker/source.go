package natsbroker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
)

// Source receives from a durable consumer of JetStream, a pull consumer. It
// keeps deliveries alive and has the server delay retries; with
// SourceConfig.Ordered it has one lane, which it pins.
type Source struct {
	js    jetstream.JetStream
	nc    *nats.Conn
	cfg   SourceConfig
	owned bool // the connection is ours to close

	receiving sync.Mutex // one Receive, or Close, at a time
	pull      *pull      // nil: none is open
	plain     bool       // the next request is for one message, without conditions
	highest   position   // of what was delivered, in the view's stream
	quiet     time.Time  // since when no request is open; zero: one is, or never was
	status    chan nats.Status

	// view is what was last seen of stream and consumer; nil before the first
	// Receive. doubt is set when it may not be true any more.
	view  atomic.Pointer[view]
	doubt atomic.Bool

	held heldDeliveries

	closing  chan struct{}
	closed   sync.Once
	closeErr error
}

var (
	_ broker.Source       = (*Source)(nil)
	_ broker.KeepAliver   = (*Source)(nil)
	_ broker.DelayedRetry = (*Source)(nil)
	_ broker.PinsLanes    = (*Source)(nil)
)

// NewSource returns a Source on the connection of js, which stays its owner's
// to close and should reconnect for ever (nats.MaxReconnects(-1), as Connect
// has it). It does no I/O; its error says which fields of cfg are missing or
// contradict each other.
func NewSource(js jetstream.JetStream, cfg SourceConfig) (*Source, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new NATS source: %w", err)
	}
	return &Source{
		js: js, nc: js.Conn(), cfg: full,
		held:    heldDeliveries{all: map[*handle]*broker.Delivery{}},
		closing: make(chan struct{}),
	}, nil
}

// Receive waits until a message is there and returns it with those that are
// there with it. It returns an error that wraps broker.ErrClosed after Close,
// when the connection was closed for good, when the stream or the consumer was
// deleted, and when the consumer is one that it cannot work with; any other
// error may pass.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	d, err := s.receive(ctx, max)
	if err != nil {
		return nil, fmt.Errorf("receive from NATS consumer %q of stream %q: %w", s.cfg.Consumer, s.cfg.Stream, err)
	}
	s.held.add(d)
	return d, nil
}

// Close gives back what is in hand and ends the subscription; the consumer
// stays on the server. It closes the connection if the Source made it. It may
// be called twice. An error says that messages could not be given back now:
// they come again when their time is over.
func (s *Source) Close(ctx context.Context) error {
	s.closed.Do(func() {
		close(s.closing)
		s.receiving.Lock()
		defer s.receiving.Unlock()
		s.retire(ctx, lastWait)
		if err := s.giveBack(ctx, s.held.take()); err != nil {
			s.closeErr = fmt.Errorf("give messages of NATS consumer %q back, which come again in %v: %w", s.cfg.Consumer, s.cfg.AckWait, err)
		}
		if s.status != nil {
			s.nc.RemoveStatusListener(s.status)
		}
		if s.owned {
			s.nc.Close()
		}
	})
	return s.closeErr
}

func (s *Source) isClosed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// KeepAliveEvery is a third of AckWait.
func (s *Source) KeepAliveEvery() time.Duration { return s.ackWait() / 3 }

// MaxDelay is a day; 0, which is none, for an Ordered source.
func (s *Source) MaxDelay() time.Duration {
	if s.cfg.Ordered {
		return 0
	}
	return 24 * time.Hour
}

// PinsLanes tells whether the source is Ordered.
func (s *Source) PinsLanes() bool { return s.cfg.Ordered }

// ackWait is the server's, once it is known.
func (s *Source) ackWait() time.Duration {
	if v := s.view.Load(); v != nil {
		return v.ackWait
	}
	return s.cfg.AckWait
}

// within bounds one question to the server.
func (s *Source) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.Timeout)
}

// heldDeliveries are those handed over and not settled, for Close to give
// back.
type heldDeliveries struct {
	mu    sync.Mutex
	all   map[*handle]*broker.Delivery
	sweep int // how many there may be before expired ones are looked for
}

func (h *heldDeliveries) add(d []*broker.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range d {
		h.all[x.Handle.(*handle)] = x
	}
	// Whoever drops expired deliveries need not settle them.
	if len(h.all) > max(h.sweep, 1024) {
		for k, x := range h.all {
			if x.Expired() {
				delete(h.all, k)
			}
		}
		h.sweep = 2 * len(h.all)
	}
}

func (h *heldDeliveries) remove(s []broker.Settlement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range s {
		if k, ok := x.Delivery.Handle.(*handle); ok {
			delete(h.all, k)
		}
	}
}

// take empties h and returns what is still ours, in the stream's order.
func (h *heldDeliveries) take() []*handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ours []*handle
	for k, x := range h.all {
		if !x.Expired() {
			ours = append(ours, k)
		}
	}
	clear(h.all)
	slices.SortFunc(ours, func(a, b *handle) int { return cmp.Compare(a.sequence, b.sequence) })
	return ours
}
