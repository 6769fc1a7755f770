package kafkabroker

import (
	"fmt"
	"strconv"

	"github.com/sekali/sekali/broker"
	"github.com/twmb/franz-go/pkg/kgo"
)

// message translates a record.
func message(r *kgo.Record, incarnation string) broker.Message {
	m := broker.Message{
		ID:    incarnation + "/" + strconv.Itoa(int(r.Partition)) + "/" + strconv.FormatInt(r.Offset, 10),
		Topic: r.Topic, OrderingKey: r.Key, Body: r.Value, PublishedAt: r.Timestamp,
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, broker.Header{Name: h.Key, Value: h.Value})
	}
	return m
}

// record is message's way back. An ID has no place in Kafka.
func record(m broker.Message) *kgo.Record {
	r := &kgo.Record{Topic: m.Topic, Key: m.OrderingKey, Value: m.Body}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return r
}

// incarnation is a topic's id as text; before Kafka 2.8 its name.
func incarnation(topic string, id [16]byte) string {
	if id == [16]byte{} {
		return topic
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
