package kafkabroker

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sekali/sekali/broker"
)

var _ broker.Retention = (*Source)(nil)

// Retention implements broker.Retention: it is a topic's retention.ms and its
// segment.ms, the longest of all Topics, since Kafka deletes a segment when the
// last of its records is old enough. A topic that is not deleted from
// (cleanup.policy=compact, retention.ms=-1) keeps messages without a limit. It
// asks on a connection of its own, outside the group. The right to describe the
// topics' configuration is needed.
func (s *Source) Retention(ctx context.Context) (age time.Duration, limited bool, err error) {
	opts, err := s.cfg.connection()
	if err != nil {
		return 0, false, fmt.Errorf("ask Kafka for the retention of topics: %w", err)
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return 0, false, fmt.Errorf("ask Kafka for the retention of topics: %w", err)
	}
	defer client.Close()
	request := kmsg.NewPtrDescribeConfigsRequest()
	for _, topic := range s.cfg.Topics {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, topic
		resource.ConfigNames = []string{cleanup, keep, segment}
		request.Resources = append(request.Resources, resource)
	}
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return 0, false, fmt.Errorf("ask Kafka for the retention of topics: %w", err)
	}
	limited = true
	for _, r := range response.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return 0, false, fmt.Errorf("ask Kafka for the retention of topic %q: %w", r.ResourceName, err)
		}
		one, ends, err := retentionOf(r.Configs)
		if err != nil {
			return 0, false, fmt.Errorf("read the retention of topic %q: %w", r.ResourceName, err)
		}
		age, limited = max(age, one), limited && ends
	}
	if !limited {
		return 0, false, nil
	}
	return age, true, nil
}

// The settings of a topic that say how long a record stays.
const (
	cleanup = "cleanup.policy"
	keep    = "retention.ms"
	segment = "segment.ms"
)

func retentionOf(configs []kmsg.DescribeConfigsResponseResourceConfig) (age time.Duration, limited bool, err error) {
	values := map[string]string{}
	for _, c := range configs {
		if c.Value != nil {
			values[c.Name] = *c.Value
		}
	}
	millis := map[string]int64{}
	for _, name := range []string{keep, segment} {
		if millis[name], err = strconv.ParseInt(values[name], 10, 64); err != nil {
			return 0, false, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	total := millis[keep] + millis[segment]
	const most = math.MaxInt64 / int64(time.Millisecond)
	if !strings.Contains(values[cleanup], "delete") || millis[keep] < 0 || total < 0 || total > most {
		return 0, false, nil
	}
	return time.Duration(total) * time.Millisecond, true, nil
}
