package brokerurl

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/broker/redisbroker"
)

// Subscription says what to receive. A broker takes the fields that it knows,
// and their defaults are those of its package.
type Subscription struct {
	// Stream of NATS or Redis.
	Stream string
	// Topics of Kafka.
	Topics []string
	// Queue of RabbitMQ or AMQP 1.0.
	Queue string
	// Group of Kafka and Redis; the durable consumer of NATS.
	Group string

	Subjects          []string // NATS
	OrderingKeyHeader string   // NATS, RabbitMQ
	OrderingKeyToken  int      // NATS
	Ordered           bool     // NATS
	MaxAckPending     int      // NATS
	OnlyNew           bool     // NATS, Kafka, Redis
	AckWait           time.Duration
	SessionTimeout    time.Duration // Kafka
	ServerSide        bool          // Kafka
	Prefetch          int           // RabbitMQ
	SingleActive      bool          // RabbitMQ
	DelayedRetry      bool          // RabbitMQ
	Declare           string        // RabbitMQ: quorum, classic, or empty
	Capability        string        // AMQP 1.0
	Credit            int           // AMQP 1.0
	Exclusive         bool          // AMQP 1.0

	BodyField, OrderingKeyField, MessageIDField string // Redis
}

// OpenSource opens a source. It does not wait for the broker: one that is not
// there yet is an error of Receive that may pass.
func OpenSource(raw string, s Subscription) (broker.Source, error) {
	k, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch k.name {
	case "kafka":
		return kafkabroker.NewSource(kafkabroker.SourceConfig{
			URL: raw, Group: s.Group, Topics: s.Topics, OnlyNew: s.OnlyNew, ServerSide: s.ServerSide, SessionTimeout: s.SessionTimeout,
		})
	case "rabbitmq":
		cfg := rabbitbroker.SourceConfig{
			URL: raw, Queue: s.Queue, Prefetch: s.Prefetch, SingleActive: s.SingleActive, OrderingKeyHeader: s.OrderingKeyHeader, DelayedRetry: s.DelayedRetry,
		}
		if s.Declare != "" {
			cfg.Declare = &rabbitbroker.Declare{Kind: rabbitbroker.Kind(s.Declare)}
		}
		return rabbitbroker.NewSource(cfg)
	case "amqp10":
		return amqpbroker.NewSource(amqpbroker.SourceConfig{URL: raw, Queue: s.Queue, Capability: s.Capability, Credit: s.Credit, Exclusive: s.Exclusive})
	case "redis":
		return redisbroker.OpenSource(raw, redisbroker.SourceConfig{
			Stream: s.Stream, Group: s.Group, OnlyNew: s.OnlyNew, AckWait: s.AckWait,
			BodyField: s.BodyField, OrderingKeyField: s.OrderingKeyField, IDField: s.MessageIDField,
		})
	}
	return natsbroker.OpenSource(raw, natsbroker.SourceConfig{
		Stream: s.Stream, Consumer: s.Group, FilterSubjects: s.Subjects, OnlyNew: s.OnlyNew, AckWait: s.AckWait, MaxAckPending: s.MaxAckPending,
		Ordered: s.Ordered, OrderingKeyHeader: s.OrderingKeyHeader, OrderingKeyToken: s.OrderingKeyToken,
	}, nats.RetryOnFailedConnect(true))
}
