package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/kafkabroker"
)

const (
	// kafkaPartitions are enough for several to have work at a time: the shop
	// has ten skus.
	kafkaPartitions = 6
	// kafkaSession is the shortest that brokers allow by default. Where a dead
	// member cannot be buried, its group waits for it so long: much shorter
	// than the demo may stand still.
	kafkaSession = 6 * time.Second
	// kafkaFetch is how long a fetch may wait for something new.
	kafkaFetch = 200 * time.Millisecond
	// kafkaAnswer is how long a server may take to answer.
	kafkaAnswer = 2 * connectTimeout
)

// kafkaFeed is a topic of the demo's own, with a consumer group for each
// consumer.
type kafkaFeed struct {
	url, topic string
	client     *kgo.Client
	admin      *kadm.Client
}

func checkKafka(url string) error {
	_, err := kafkabroker.Options(url)
	return err
}

func kafkaGroup(topic, consumer string) string { return topic + "-" + consumer }

func kafkaSource(t task) (broker.Source, error) {
	return kafkabroker.NewSource(kafkabroker.SourceConfig{
		URL: t.Broker, Group: kafkaGroup(t.Topic, t.Service), Topics: []string{t.Topic}, SessionTimeout: kafkaSession,
		// A fetch that begins with an empty partition makes the others wait for
		// its end, in every process anew.
		Options: []kgo.Opt{kgo.FetchMaxWait(kafkaFetch)},
	})
}

// openKafka makes the topic, or leaves nothing.
func openKafka(ctx context.Context, url, run string) (feed, error) {
	f := &kafkaFeed{url: url, topic: "sekali-demo-" + run}
	opts, err := kafkabroker.Options(url)
	if err != nil {
		return nil, err
	}
	opts = append(opts, kgo.ClientID("sekali-demo"), kgo.DialTimeout(connectTimeout), kgo.RetryTimeout(kafkaAnswer))
	if f.client, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", f, err)
	}
	f.admin = kadm.NewClient(f.client)
	answering, done := context.WithTimeout(ctx, kafkaAnswer)
	defer done()
	if err := f.client.Ping(answering); err != nil {
		f.client.Close()
		return nil, fmt.Errorf("connect to %s: %w: is the server running, and are its address, tls and sasl right?", f, err)
	}
	if err := f.makeTopic(ctx); err != nil {
		tidying, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer done()
		return nil, errors.Join(err, f.close(tidying, false))
	}
	return f, nil
}

// makeTopic makes the topic and waits until it can be used.
func (f *kafkaFeed) makeTopic(ctx context.Context) error {
	// Not to be interrupted: a request that is under way might be carried out
	// after the topic was deleted.
	making, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer done()
	const asTheServerHasIt = -1 // how many replicas
	if _, err := f.admin.CreateTopic(making, kafkaPartitions, asTheServerHasIt, nil, f.topic); err != nil {
		return fmt.Errorf("make the topic %s at %s: %w: may the user make topics, and can every broker's advertised address be reached from here?",
			f.topic, f, err)
	}
	// The controller answers before the brokers have heard of it, and Kafka
	// tells nobody when they have: ask again and again.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		led, err := f.partitionsWithLeader(making)
		if err != nil {
			return fmt.Errorf("wait for the topic %s at %s: %w: has each of its partitions a leader?", f.topic, f, err)
		}
		if led == kafkaPartitions {
			return ctx.Err()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// partitionsWithLeader asks by itself: the admin's client would remember for a
// while that the topic was not there.
func (f *kafkaFeed) partitionsWithLeader(ctx context.Context) (led int, err error) {
	request := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = &f.topic
	request.Topics = append(request.Topics, wanted)
	answer, err := request.RequestWith(ctx, f.client)
	if err != nil {
		return 0, err
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 && p.Leader >= 0 {
				led++
			}
		}
	}
	return led, nil
}

func (f *kafkaFeed) address() (url, topic string) { return f.url, f.topic }

func (f *kafkaFeed) publisher() (broker.Publisher, error) {
	opts, err := kafkabroker.Options(f.url)
	if err != nil {
		return nil, err
	}
	return kafkabroker.NewPublisher(opts...)
}

// drained: the group's committed offsets have reached the end of each
// partition.
func (f *kafkaFeed) drained(ctx context.Context, consumer string) (bool, error) {
	group := kafkaGroup(f.topic, consumer)
	ends, err := f.admin.ListEndOffsets(ctx, f.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return false, fmt.Errorf("ask for the ends of the topic %s: %w", f.topic, err)
	}
	committed, err := f.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = committed.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the offsets of the group %s: %w", group, err)
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		at, ok := committed.Lookup(f.topic, end.Partition)
		// Where nothing was published there is no offset to commit.
		all = all && (end.Offset == 0 || ok && at.At >= end.Offset)
	})
	return all, nil
}

// bury takes the dead member out of its group, as an operator may who knows
// that it is dead: else the group waits for it until its session is over. That
// commits nothing in its name. Whoever comes next gets what was in its hand as
// after a session's end, only sooner; and if it fails, at the session's end.
func (f *kafkaFeed) bury(ctx context.Context, consumer string) {
	ctx, done := context.WithTimeout(ctx, kafkaSession)
	defer done()
	_ = f.expel(ctx, kafkaGroup(f.topic, consumer))
}

// expel takes all members out of a group: all of them are dead. (kadm's own
// LeaveGroup is for static members alone.)
func (f *kafkaFeed) expel(ctx context.Context, group string) error {
	found, err := f.admin.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	reason := "its process has ended"
	request := kmsg.NewPtrLeaveGroupRequest()
	request.Group = group
	for _, m := range found[group].Members {
		dead := kmsg.NewLeaveGroupRequestMember()
		dead.MemberID, dead.InstanceID, dead.Reason = m.MemberID, m.InstanceID, &reason
		request.Members = append(request.Members, dead)
	}
	if len(request.Members) == 0 {
		return found[group].Err
	}
	answer, err := request.RequestWith(ctx, f.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.ErrorCode)
}

func (f *kafkaFeed) String() string { return kafkabroker.RedactURL(f.url) }

func (f *kafkaFeed) kept() string {
	return "the topic " + f.topic + " and the consumer groups " + kafkaGroup(f.topic, "*")
}

func (f *kafkaFeed) close(ctx context.Context, keep bool) error {
	defer f.client.Close()
	if keep {
		return nil
	}
	var first error
	for _, s := range services {
		if err := f.deleteGroup(ctx, kafkaGroup(f.topic, s.name)); err != nil && first == nil {
			first = err
		}
	}
	_, err := f.admin.DeleteTopic(ctx, f.topic)
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) && first == nil {
		first = err
	}
	if first != nil {
		// One server, one cause.
		return fmt.Errorf("delete %s at %s: %w: delete by hand what is there", f.kept(), f, first)
	}
	return nil
}

// deleteGroup deletes a group whose members are all dead, as soon as the
// server agrees that they are.
func (f *kafkaFeed) deleteGroup(ctx context.Context, group string) error {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		_ = f.expel(ctx, group) // else their sessions' end it is
		_, err := f.admin.DeleteGroup(ctx, group)
		switch {
		case err == nil, errors.Is(err, kerr.GroupIDNotFound):
			return nil
		case !errors.Is(err, kerr.NonEmptyGroup):
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}
