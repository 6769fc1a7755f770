package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/kafkabroker"
)

const (
	partitions = 6
	// session is the shortest that Kafka allows by default.
	session = 6 * time.Second
	// answerTimeout is how long a server may take to answer.
	answerTimeout = 10 * time.Second
)

// kafkaFeed is a Kafka topic of the demo's own.
type kafkaFeed struct {
	url, topic string
	opts       []kgo.Opt
	admin      *kadm.Client
}

func checkKafka(url string) error {
	_, err := kafkabroker.Options(url)
	return err
}

func openKafka(ctx context.Context, url, run string) (feed, error) {
	opts, err := kafkabroker.Options(url)
	if err != nil {
		return nil, err
	}
	f := &kafkaFeed{url: url, topic: "sekali-demo-" + run, opts: opts}
	if f.admin, err = kadm.NewOptClient(opts...); err != nil {
		return nil, err
	}
	making, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	// As many replicas as the server gives a topic by default.
	if _, err = f.admin.CreateTopic(making, partitions, -1, nil, f.topic); err != nil {
		f.admin.Close()
		return nil, fmt.Errorf("make the topic %s at %s: %w: is the server running, and may the user make topics?", f.topic, f, err)
	}
	return f, nil
}

func group(topic, consumer string) string { return topic + "-" + consumer }

// kafkaSource opens a static member of the consumer's group, as one is in
// production that has a name of its own: when its process is killed, the next
// one of that name takes its partitions over at once.
func kafkaSource(t task) (broker.Source, error) {
	return kafkabroker.NewSource(kafkabroker.SourceConfig{
		URL: t.Broker, Group: group(t.Topic, t.Service), Topics: []string{t.Topic}, SessionTimeout: session,
		Options: []kgo.Opt{kgo.InstanceID(t.Service)},
	})
}

func (f *kafkaFeed) address() (url, topic string) { return f.url, f.topic }

func (f *kafkaFeed) publisher() (broker.Publisher, error) { return kafkabroker.NewPublisher(f.opts...) }

func (f *kafkaFeed) drained(ctx context.Context, consumer string) (bool, error) {
	ends, err := f.admin.ListEndOffsets(ctx, f.topic)
	if err != nil {
		return false, fmt.Errorf("ask for the end of topic %s: %w", f.topic, err)
	}
	done, err := f.admin.FetchOffsets(ctx, group(f.topic, consumer))
	if errors.Is(err, kerr.GroupIDNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the offsets of consumer %s: %w", consumer, err)
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		at, _ := done.Lookup(f.topic, end.Partition)
		all = all && end.Err == nil && at.At >= end.Offset
	})
	return all, nil
}

// bury has nothing to do: the next process is the same member.
func (f *kafkaFeed) bury(context.Context, string) {}

func (f *kafkaFeed) String() string { return kafkabroker.RedactURL(f.url) }

func (f *kafkaFeed) kept() string { return "the topic " + f.topic }

func (f *kafkaFeed) close(ctx context.Context, keep bool) (err error) {
	defer f.admin.Close()
	if keep {
		return nil
	}
	var errs []error
	for _, s := range services {
		// A static member stays in its group until its session is over.
		name := group(f.topic, s.name)
		_, _ = f.admin.LeaveGroup(ctx, kadm.LeaveGroup(name).InstanceIDs(s.name))
		if _, err := f.admin.DeleteGroup(ctx, name); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			errs = append(errs, fmt.Errorf("delete the group %s at %s: %w: delete it by hand", name, f, err))
		}
	}
	if _, err := f.admin.DeleteTopic(ctx, f.topic); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		errs = append(errs, fmt.Errorf("delete the topic %s at %s: %w: delete it by hand", f.topic, f, err))
	}
	return errors.Join(errs...)
}
