package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Source is a member of a consumer group. Its methods are safe for concurrent
// use. It connects at the first Receive.
type Source struct {
	cfg  SourceConfig
	opts []kgo.Opt

	mu      sync.Mutex
	client  *kgo.Client // nil before the first Receive
	parts   map[place]*partition
	order   []*partition // the same, to take turns
	turn    int
	trouble error         // what Receive has to tell, once
	changed chan struct{} // closed, and replaced, when Receive should look again
	revoked func(ctx context.Context, lanes []string)
	closed  bool

	// offsets arrive in two steps, in the one goroutine that manages the
	// group: with their notes, and where the topic's incarnation is seen.
	fetched map[place]fetched

	committing sync.Mutex // one commit at a time, in the order of what it says
	polling    sync.WaitGroup
	stop       context.CancelFunc // ends polling
}

var (
	_ broker.Source    = (*Source)(nil)
	_ broker.Revoker   = (*Source)(nil)
	_ broker.PinsLanes = (*Source)(nil)
)

// NewSource returns a Source, or an error that says what is wrong with cfg. It
// does no I/O.
func NewSource(cfg SourceConfig) (*Source, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new Kafka source: %w", err)
	}
	s := &Source{cfg: cfg, parts: map[place]*partition{}, changed: make(chan struct{})}
	if s.opts, err = cfg.options(); err != nil {
		return nil, fmt.Errorf("new Kafka source: %w", err)
	}
	s.opts = append(s.opts, s.callbacks()...)
	if err := kgo.ValidateOpts(s.opts...); err != nil {
		return nil, fmt.Errorf("new Kafka source: %w", err)
	}
	return s, nil
}

// PinsLanes is true: a partition belongs to one member at a time.
func (s *Source) PinsLanes() bool { return true }

// OnRevoke sets what is called before lanes go to another member.
func (s *Source) OnRevoke(fn func(ctx context.Context, lanes []string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = fn
}

// Receive waits for records and returns what has arrived, max at most,
// partitions taking turns. Records that it does not return stay with the
// Source.
func (s *Source) Receive(ctx context.Context, max int) ([]*broker.Delivery, error) {
	if max < 1 {
		return nil, fmt.Errorf("receive from Kafka: max is %d: ask for at least 1", max)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("receive from Kafka: %w", err)
	}
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("receive from Kafka: %w", err)
	}
	for {
		got, unnoted, changed, err := s.take(max)
		switch {
		case err != nil:
			return nil, fmt.Errorf("receive from Kafka: %w", err)
		case len(got) > 0:
			return got, nil
		case len(unnoted) > 0:
			// Records beyond the note are there: it must be durable first.
			err := s.commit(ctx, unnoted)
			if errors.Is(err, broker.ErrLost) && pause(ctx, 100*time.Millisecond) {
				err = nil // the group's manager is about to hear of it too
			}
			if err != nil {
				return nil, fmt.Errorf("receive from Kafka: note what is handed over: %w", err)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("receive from Kafka: %w", ctx.Err())
		}
	}
}

// begin connects, at the first Receive.
func (s *Source) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return broker.ErrClosed
	case s.client != nil:
		return nil
	}
	client, err := kgo.NewClient(s.opts...)
	if err != nil {
		return err
	}
	s.client = client
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.polling.Go(func() { s.poll(ctx) })
	return nil
}

// take hands over what may be handed over. If nothing may, it returns the
// partitions whose note must reach further first, and what to wait for.
func (s *Source) take(max int) (got []*broker.Delivery, unnoted []*partition, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, nil, broker.ErrClosed
	}
	for more := true; more && len(got) < max; {
		more = false
		for range s.order {
			p := s.order[s.turn%len(s.order)]
			s.turn++
			if e := p.peek(); e != nil && e.offset < p.noted && len(got) < max {
				got = append(got, p.handOver())
				more = true
			}
		}
	}
	if len(got) == 0 {
		for _, p := range s.order {
			if p.peek() != nil {
				unnoted = append(unnoted, p)
			}
		}
		if len(unnoted) == 0 && s.trouble != nil {
			err, s.trouble = s.trouble, nil
		}
	}
	s.flow()
	return got, unnoted, s.changed, err
}

// tell has Receive look again. s.mu is held.
func (s *Source) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Settle marks records as done or has them wait again, and commits the offsets
// that follow from it, in one request. Its error wraps broker.ErrLost if some
// to acknowledge were not this member's any more.
func (s *Source) Settle(ctx context.Context, settlements []broker.Settlement) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return fmt.Errorf("settle with Kafka: %w", broker.ErrClosed)
	}
	lost := 0
	touched := map[*partition]struct{}{}
	for _, x := range settlements {
		p, e, ok := s.mine(x.Delivery)
		switch {
		case !ok:
			if x.Action == broker.Ack {
				lost++ // a retry that is not ours any more comes again as asked
			}
		case x.Action == broker.Ack:
			p.finish(e)
			touched[p] = struct{}{}
		default:
			p.takeBack(e)
		}
	}
	s.flow()
	s.tell()
	s.mu.Unlock()
	if err := s.commit(ctx, keys(touched)); err != nil {
		return fmt.Errorf("settle with Kafka: %w", err)
	}
	if lost > 0 {
		return fmt.Errorf("settle with Kafka: %d of %d: %w", lost, len(settlements), broker.ErrLost)
	}
	return nil
}

// mine returns a delivery's record if it is still in hand. s.mu is held.
func (s *Source) mine(d *broker.Delivery) (*partition, *entry, bool) {
	t, ok := d.Handle.(*ticket)
	if !ok || s.parts[t.partition.place] != t.partition || t.entry.turn != t.turn || t.entry.state != out {
		return nil, nil, false
	}
	return t.partition, t.entry, true
}

// Close commits what is done, notes that nothing is open, and leaves the
// group. It may be called twice.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	client, stop := s.client, s.stop
	s.tell()
	s.mu.Unlock()
	if client == nil {
		return nil
	}
	stop()
	s.polling.Wait()
	err := s.giveUp(ctx, s.all())
	// Leaving takes a round trip; without it the broker waits for the session
	// to time out.
	if e := client.LeaveGroupContext(ctx); e != nil && err == nil {
		err = e
	}
	client.CloseAllowingRebalance()
	if err != nil {
		return fmt.Errorf("close the Kafka source: %w", err)
	}
	return nil
}

func (s *Source) all() []*partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*partition(nil), s.order...)
}

func keys[K comparable](m map[K]struct{}) []K {
	all := make([]K, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
}

// pause waits, and returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
