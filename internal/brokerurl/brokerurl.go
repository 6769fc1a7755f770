// Package brokerurl opens brokers that a URL names, for commands.
package brokerurl

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/broker/rabbitbroker"
	"github.com/sekali/sekali/broker/redisbroker"
)

// ErrURL is the error of a URL that names no broker.
var ErrURL = errors.New("name a broker as nats://host:4222, kafka://host:9092, rabbitmq://host:5672, amqp10://host:5672 or redis://host:6379")

// group is who reads a queue for a command.
const group = "sekali-redrive"

type kind struct {
	name      string
	schemes   []string
	publisher func(url string) (broker.Publisher, error)
	queue     func(url, queue string) (broker.Source, error)
}

var kinds = []kind{
	{
		"nats",
		[]string{"nats", "tls"},
		func(url string) (broker.Publisher, error) { return natsbroker.OpenPublisher(url) },
		func(url, queue string) (broker.Source, error) {
			return natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: queue, Consumer: group})
		},
	},
	{
		"kafka",
		[]string{"kafka"},
		func(url string) (broker.Publisher, error) {
			options, err := kafkabroker.Options(url)
			if err != nil {
				return nil, err
			}
			return kafkabroker.NewPublisher(options...)
		},
		func(url, queue string) (broker.Source, error) {
			return kafkabroker.NewSource(kafkabroker.SourceConfig{URL: url, Group: group, Topics: []string{queue}})
		},
	},
	{
		"rabbitmq",
		[]string{"rabbitmq", "rabbitmqs", "amqp", "amqps"},
		func(url string) (broker.Publisher, error) { return rabbitbroker.NewPublisher(url) },
		func(url, queue string) (broker.Source, error) {
			return rabbitbroker.NewSource(rabbitbroker.SourceConfig{URL: url, Queue: queue})
		},
	},
	{
		"amqp10",
		[]string{"amqp10", "amqp10s"},
		func(url string) (broker.Publisher, error) {
			return amqpbroker.NewPublisher(amqpbroker.PublisherConfig{URL: url})
		},
		func(url, queue string) (broker.Source, error) {
			return amqpbroker.NewSource(amqpbroker.SourceConfig{URL: url, Queue: queue})
		},
	},
	{
		"redis",
		[]string{"redis", "rediss"},
		func(url string) (broker.Publisher, error) {
			return redisbroker.OpenPublisher(url, redisbroker.PublisherConfig{})
		},
		func(url, queue string) (broker.Source, error) {
			return redisbroker.OpenSource(url, redisbroker.SourceConfig{Stream: queue, Group: group})
		},
	},
}

func kindOf(raw string) (kind, error) {
	scheme, _, _ := strings.Cut(raw, "://")
	for _, k := range kinds {
		if slices.Contains(k.schemes, strings.ToLower(scheme)) {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("broker URL %q: %w", Redact(raw), ErrURL)
}

// KindOf returns the kind of broker that a URL names: nats, kafka, rabbitmq,
// amqp10 or redis.
func KindOf(raw string) (string, error) {
	k, err := kindOf(raw)
	return k.name, err
}

// OpenPublisher opens a publisher.
func OpenPublisher(raw string) (broker.Publisher, error) {
	k, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	return k.publisher(raw)
}

// OpenQueue opens a queue to take what is in it: a stream of JetStream or
// Redis, a topic of Kafka, a queue of RabbitMQ. Where the broker knows groups
// of consumers, it is the group "sekali-redrive" that reads.
func OpenQueue(raw, queue string) (broker.Source, error) {
	k, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	return k.queue(raw, queue)
}

// Redact returns a URL without its password. What cannot be read as a URL is
// hidden as a whole.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	if u.User != nil {
		if _, has := u.User.Password(); has {
			u.User = url.UserPassword(u.User.Username(), "xxxxx")
		} else {
			u.User = url.User("xxxxx") // a lone name is a token to NATS
		}
	}
	u.RawQuery = ""
	return u.String()
}
