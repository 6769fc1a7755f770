package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Publisher publishes to Kafka with an idempotent producer, and waits until
// all in-sync replicas have a record. It is safe for concurrent use.
type Publisher struct{ client *kgo.Client }

var _ broker.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. The options say at least where the brokers
// are: kgo.SeedBrokers, or what Options makes of a URL. It connects when it
// is first used.
func NewPublisher(opts ...kgo.Opt) (*Publisher, error) {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.ClientID("sekali"),
		kgo.ProducerLinger(0),
		// A topic that is not there is an error, soon.
		kgo.UnknownTopicRetries(2),
		kgo.MetadataMinAge(250 * time.Millisecond),
	}, append(opts, kgo.RequiredAcks(kgo.AllISRAcks()))...)...)
	if err != nil {
		return nil, fmt.Errorf("new Kafka publisher: %w", err)
	}
	return &Publisher{client}, nil
}

// Publish sends messages, those of one ordering key to one partition, in their
// order. A message's ID and PublishedAt have no place in Kafka. A topic that is
// not there is an error: it is not made.
func (p *Publisher) Publish(ctx context.Context, m ...broker.Message) error {
	records := make([]*kgo.Record, len(m))
	for i := range m {
		records[i] = record(m[i])
	}
	failed := &broker.PublishError{Errs: make([]error, len(m))}
	bad := false
	at := make(map[*kgo.Record]int, len(records))
	for i, r := range records {
		at[r] = i
	}
	for _, r := range p.client.ProduceSync(ctx, records...) { // as they were confirmed
		if r.Err == nil {
			continue
		}
		bad = true
		i := at[r.Record]
		failed.Errs[i] = fmt.Errorf("publish to the topic %q of Kafka: %w%s", m[i].Topic, refused(r.Err), mend(r.Err))
	}
	if bad {
		return failed
	}
	return nil
}

// refused tells of an error that it is the broker's word about the record.
func refused(err error) error {
	for _, code := range []error{
		kerr.UnknownTopicOrPartition, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTopicException,
		kerr.InvalidRecord, kerr.TopicAuthorizationFailed, kerr.PolicyViolation,
	} {
		if errors.Is(err, code) {
			return broker.Refuse(err)
		}
	}
	return err
}

func mend(err error) string {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return ": make the topic first"
	case errors.Is(err, kerr.MessageTooLarge):
		return ": raise the topic's max.message.bytes"
	}
	return ""
}

// Close waits for what is under way and disconnects.
func (p *Publisher) Close(ctx context.Context) error {
	err := p.client.Flush(ctx)
	p.client.Close()
	if err != nil {
		return fmt.Errorf("close the Kafka publisher: %w", err)
	}
	return nil
}
