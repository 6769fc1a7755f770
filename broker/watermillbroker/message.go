package watermillbroker

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
)

// deliveryOf makes a delivery of a message.
func (c SourceConfig) deliveryOf(m *message.Message) *broker.Delivery {
	d := &broker.Delivery{Handle: m, Message: broker.Message{ID: m.UUID, Topic: c.Topic, Body: m.Payload, Headers: headersOf(m.Metadata)}}
	if d.Message.Body == nil {
		d.Message.Body = []byte{}
	}
	if key, ok := m.Metadata[c.OrderingKeyMetadata]; ok && c.OrderingKeyMetadata != "" {
		d.Message.OrderingKey = []byte(key)
	}
	if c.PublishedAtMetadata != "" {
		d.Message.PublishedAt = timeOf(m.Metadata[c.PublishedAtMetadata])
	}
	if n, err := strconv.Atoi(m.Metadata[c.AttemptMetadata]); err == nil && n > 0 && c.AttemptMetadata != "" {
		d.Attempt, d.Redelivered = n, n > 1
	}
	if c.Ordered {
		d.Lane = c.Topic
	}
	return d
}

// printed is how time.Time prints itself.
const printed = "2006-01-02 15:04:05.999999999 -0700 MST"

// timeOf reads a time; zero if it cannot be read.
func timeOf(text string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, printed} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}

func headersOf(metadata message.Metadata) broker.Headers {
	if len(metadata) == 0 {
		return nil
	}
	headers := make(broker.Headers, 0, len(metadata))
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		headers = append(headers, broker.Header{Name: name, Value: []byte(metadata[name])})
	}
	return headers
}
