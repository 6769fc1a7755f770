package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How many records of a partition may wait in the Source before it is fetched
// no more, and how few before it is again.
const (
	waitAtMost  = 1000
	waitAtLeast = 500
)

// fetched is a committed offset with its note.
type fetched struct {
	offset int64
	note   string
}

// callbacks are where the group's manager meets the Source. franz-go calls
// none of them while records of a poll are being taken in, nor two at once.
func (s *Source) callbacks() []kgo.Opt {
	return []kgo.Opt{
		kgo.OnOffsetsFetched(s.onFetched),
		kgo.AdjustFetchOffsetsFn(s.onAdjust),
		kgo.OnPartitionsRevoked(func(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
			s.onRevoked(ctx, gone)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			s.onLost(gone)
		}),
	}
}

// onFetched keeps the notes of the offsets from which the partitions of a new
// assignment will be received.
func (s *Source) onFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	found := map[place]fetched{}
	add := func(topic string, number int32, offset int64, note *string, code int16) {
		if code == 0 && offset >= 0 && note != nil {
			found[place{topic, number}] = fetched{offset, *note}
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			add(t.Topic, p.Partition, p.Offset, p.Metadata, p.ErrorCode)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				add(t.Topic, p.Partition, p.Offset, p.Metadata, p.ErrorCode)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched = found
	return nil
}

// onAdjust is called before records of newly assigned partitions are fetched:
// here they begin to be ours. An offset of another incarnation of the topic
// says nothing of this one.
func (s *Source) onAdjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	s.mu.Lock()
	client := s.client
	s.mu.Unlock()
	ids, err := topicIDs(ctx, client, offsets)
	if err != nil {
		return nil, fmt.Errorf("look up the topics' ids: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, parts := range offsets {
		for number := range parts {
			p := newPartition(place{topic, number})
			p.incarnation = incarnation(topic, ids[topic])
			if was, ok := s.fetched[p.place]; ok {
				if of, note, ok := parseNote(was.note); ok && of != p.incarnation {
					parts[number] = kgo.NewOffset().AtStart()
				} else if ok {
					p.suspects = note
				}
			}
			s.assign(p)
		}
	}
	return offsets, nil
}

func topicIDs(ctx context.Context, client *kgo.Client, offsets map[string]map[int32]kgo.Offset) (map[string][16]byte, error) {
	req := kmsg.NewPtrMetadataRequest()
	for topic := range offsets {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, t)
	}
	ids := map[string][16]byte{}
	if len(req.Topics) == 0 {
		return ids, nil
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return nil, err
		}
		if t.Topic != nil {
			ids[*t.Topic] = t.TopicID
		}
	}
	return ids, nil
}

// assign makes a partition ours. s.mu is held.
func (s *Source) assign(p *partition) {
	s.drop(s.parts[p.place])
	s.parts[p.place] = p
	s.order = append(s.order, p)
	if s.client != nil { // it may have been paused in an earlier life
		s.client.ResumeFetchPartitions(map[string][]int32{p.topic: {p.number}})
	}
}

// drop makes a partition ours no more. s.mu is held.
func (s *Source) drop(p *partition) {
	if p == nil || s.parts[p.place] != p {
		return
	}
	delete(s.parts, p.place)
	s.order = slices.DeleteFunc(s.order, func(o *partition) bool { return o == p })
}

// onRevoked gives partitions up: what is in work is finished and committed.
func (s *Source) onRevoked(ctx context.Context, gone map[string][]int32) {
	parts, lanes := s.of(gone)
	if len(parts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RebalanceTimeout*3/4)
	defer cancel()
	s.withhold(parts)
	s.tellRevoked(ctx, lanes)
	// A commit is worth its own time, also when the message in work had none
	// left. If it fails, the next member finds the lane not ended cleanly.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.RebalanceTimeout/8)
	defer cancel()
	_ = s.giveUp(last, parts)
	s.forget(parts)
}

// onLost is told when partitions are somebody else's already.
func (s *Source) onLost(gone map[string][]int32) {
	parts, lanes := s.of(gone)
	if len(parts) == 0 {
		return
	}
	s.forget(parts)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	s.tellRevoked(over, lanes)
}

// of returns those of our partitions that are named.
func (s *Source) of(named map[string][]int32) (parts []*partition, lanes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, numbers := range named {
		for _, number := range numbers {
			if p := s.parts[place{topic, number}]; p != nil {
				parts = append(parts, p)
				lanes = append(lanes, p.lane())
			}
		}
	}
	return parts, lanes
}

// withhold hands over nothing more of partitions that still are ours.
func (s *Source) withhold(parts []*partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		s.order = slices.DeleteFunc(s.order, func(o *partition) bool { return o == p })
	}
}

func (s *Source) forget(parts []*partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		s.drop(p)
	}
}

// tellRevoked tells the Consumer, unless it has closed the Source.
func (s *Source) tellRevoked(ctx context.Context, lanes []string) {
	s.mu.Lock()
	fn, closed := s.revoked, s.closed
	s.mu.Unlock()
	if fn != nil && !closed {
		fn(ctx, lanes)
	}
}

// poll takes records in, until ctx ends. flow keeps them few.
func (s *Source) poll(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		client := s.client
		s.mu.Unlock()
		fetches := client.PollFetches(ctx)
		again := s.takeIn(fetches)
		client.AllowRebalance()
		if again {
			continue
		}
		if !pause(ctx, 200*time.Millisecond) {
			return
		}
		if anew := recreated(fetches); anew {
			s.reopen(ctx)
		}
	}
}

// takeIn puts the records of a poll in their partitions. It returns false
// when there was trouble, which Receive tells.
func (s *Source) takeIn(fetches kgo.Fetches) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) {
		if p := s.parts[place{r.Topic, r.Partition}]; p != nil {
			p.add(r)
		}
	})
	fine := true
	fetches.EachError(func(topic string, number int32, err error) {
		if errors.Is(err, context.Canceled) {
			return
		}
		fine = false
		if errors.Is(err, kgo.ErrClientClosed) {
			err = broker.ErrClosed
		}
		if topic != "" {
			err = fmt.Errorf("topic %q, partition %d: %w", topic, number, err)
		}
		s.trouble = err
	})
	s.flow()
	s.tell()
	return fine
}

// flow stops fetching partitions of which enough is here, and those that ran
// too far ahead of what is done. s.mu is held.
func (s *Source) flow() {
	for _, p := range s.order {
		waits, ahead := p.waits(), len(p.entries)
		switch {
		case !p.paused && (waits > waitAtMost || ahead >= s.cfg.MaxAhead):
			p.paused = true
			s.client.PauseFetchPartitions(map[string][]int32{p.topic: {p.number}})
		case p.paused && waits < waitAtLeast && ahead < max(s.cfg.MaxAhead*3/4, 1):
			p.paused = false
			s.client.ResumeFetchPartitions(map[string][]int32{p.topic: {p.number}})
		}
	}
}

// recreated tells that a topic was deleted, and perhaps made again: the client
// keeps to the one that it knew.
func recreated(fetches kgo.Fetches) (is bool) {
	fetches.EachError(func(_ string, _ int32, err error) {
		is = is || errors.Is(err, kerr.UnknownTopicID)
	})
	return is
}

// reopen begins anew with another client.
func (s *Source) reopen(ctx context.Context) {
	s.mu.Lock()
	old := s.client
	s.mu.Unlock()
	_ = s.giveUp(ctx, s.all())
	_ = old.LeaveGroupContext(ctx)
	old.CloseAllowingRebalance()
	client, err := kgo.NewClient(s.opts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil { // the options were good before
		s.trouble = err
		return
	}
	s.client = client
}
