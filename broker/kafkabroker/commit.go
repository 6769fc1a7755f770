package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// notePrefix begins the metadata of an offset that a Source committed:
// "sekali/1 <incarnation> <note>".
const notePrefix = "sekali/1 "

func noteText(incarnation string, note int64) string {
	return notePrefix + incarnation + " " + strconv.FormatInt(note, 10)
}

// parseNote reads a note. Another tool's metadata says nothing of a
// predecessor.
func parseNote(text string) (incarnation string, note int64, ok bool) {
	rest, ok := strings.CutPrefix(text, notePrefix)
	if !ok {
		return "", 0, false
	}
	at := strings.LastIndexByte(rest, ' ')
	if at < 0 {
		return "", 0, false
	}
	note, err := strconv.ParseInt(rest[at+1:], 10, 64)
	return rest[:at], note, err == nil
}

// position is what is committed of a partition.
type position struct {
	at   kgo.EpochOffset
	note int64
}

// commit commits the heads of partitions, with notes that reach beyond what
// is in hand, where that says anything new. It tries again what may pass,
// until ctx ends. broker.ErrLost: a partition is not ours any more.
func (s *Source) commit(ctx context.Context, parts []*partition) error {
	return s.commitAs(ctx, parts, func(p *partition) (position, bool) {
		head, ok := p.head()
		if !ok || head.Offset == p.committed && (p.peek() == nil || p.peek().offset < p.noted) {
			return position{}, false
		}
		return position{head, p.note()}, true
	})
}

// giveUp commits the heads of partitions that are to go, and that nothing else
// is open.
func (s *Source) giveUp(ctx context.Context, parts []*partition) error {
	err := s.commitAs(ctx, parts, func(p *partition) (position, bool) {
		head, ok := p.head()
		note := p.cleanNote()
		return position{head, note}, ok && (head.Offset != p.committed || note != p.noted)
	})
	if errors.Is(err, broker.ErrLost) {
		return nil // then it has gone already
	}
	return err
}

func (s *Source) commitAs(ctx context.Context, parts []*partition, what func(*partition) (position, bool)) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		s.mu.Lock()
		client := s.client
		want := map[*partition]position{}
		for _, p := range parts {
			if s.parts[p.place] != p {
				continue
			}
			if x, ok := what(p); ok {
				want[p] = x
			}
		}
		s.mu.Unlock()
		if len(want) == 0 {
			return nil
		}
		err := s.commitOnce(ctx, client, want)
		if err == nil || !passes(err) {
			return err
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// commitOnce sends one commit, and keeps in mind what the broker took.
func (s *Source) commitOnce(ctx context.Context, client *kgo.Client, want map[*partition]position) error {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	byPlace := map[place]*partition{}
	for p, x := range want {
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.number] = x.at
		byPlace[p.place] = p
	}
	noting := kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			for j := range t.Partitions {
				p := byPlace[place{t.Topic, t.Partitions[j].Partition}]
				if p == nil {
					return fmt.Errorf("commit of %s/%d was not asked for", t.Topic, t.Partitions[j].Partition)
				}
				t.Partitions[j].Metadata = kmsg.StringPtr(noteText(p.incarnation, want[p].note))
			}
		}
		return nil
	})
	var result error
	client.CommitOffsetsSync(noting, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			result = err
			return
		}
		result = s.committed(resp, byPlace, want)
	})
	if isLost(result) {
		return fmt.Errorf("commit offsets of group %q: %w: %w", s.cfg.Group, broker.ErrLost, result)
	}
	if result != nil {
		return fmt.Errorf("commit offsets of group %q: %w", s.cfg.Group, result)
	}
	return nil
}

// committed keeps in mind what the broker took. It returns the error of what
// it did not take.
func (s *Source) committed(resp *kmsg.OffsetCommitResponse, byPlace map[place]*partition, want map[*partition]position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tell()
	var failed error
	answered := 0
	for _, t := range resp.Topics {
		for _, x := range t.Partitions {
			answered++
			p := byPlace[place{t.Topic, x.Partition}]
			if err := kerr.ErrorForCode(x.ErrorCode); err != nil {
				if failed == nil || isLost(failed) {
					failed = err
				}
			} else if p != nil {
				p.committed, p.noted, p.sinceNote = want[p].at.Offset, want[p].note, 0
			}
		}
	}
	if failed == nil && answered < len(want) {
		failed = errNotAnswered
	}
	return failed
}

// errNotAnswered: the client left partitions out of the request.
var errNotAnswered = errors.New("the commit left a partition out")

// isLost tells that partitions are not this member's any more.
func isLost(err error) bool {
	for _, code := range []error{
		kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.FencedInstanceID, kerr.FencedMemberEpoch,
		kerr.UnknownTopicID, kerr.UnknownTopicOrPartition, errNotAnswered,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// passes tells that a commit may succeed when it is sent again.
func passes(err error) bool {
	var code *kerr.Error
	switch {
	case errors.Is(err, broker.ErrLost), errors.Is(err, kgo.ErrClientClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, kerr.RebalanceInProgress), errors.Is(err, kerr.StaleMemberEpoch):
		return true
	case errors.As(err, &code):
		return code.Retriable
	}
	return true // the network
}
