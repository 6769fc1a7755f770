package demo

import (
	"context"
	"fmt"
	"strings"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/broker/rabbitbroker"
)

// feed is where the orders come from: a place of the demo's own on a broker.
type feed interface {
	// address is what a consumer process needs to open its source.
	address() (url, topic string)
	// publisher returns what the producer sends with. The caller closes it.
	publisher() (broker.Publisher, error)
	// drained tells whether a consumer has taken and settled everything that
	// was published.
	drained(ctx context.Context, consumer string) (bool, error)
	// bury is called when a consumer's process was killed, before the next one
	// starts. What was in its hand stays unsettled.
	bury(ctx context.Context, consumer string)
	// String names the broker for people, without passwords.
	String() string
	// kept says where to find the orders after a demo that keeps them.
	kept() string
	// close removes the place, unless it is kept, and disconnects.
	close(ctx context.Context, keep bool) error
}

// kind is what the demo can do with the broker of one scheme of URLs.
type kind struct {
	check  func(url string) error // does no I/O
	open   func(ctx context.Context, url, run string) (feed, error)
	source func(t task) (broker.Source, error)
}

// kindOf returns the kind of broker that a URL names.
func kindOf(url string) (kind, error) {
	scheme, _, _ := strings.Cut(url, "://")
	switch strings.ToLower(scheme) {
	case "nats", "tls":
		return kind{checkNATS, openNATS, natsSource}, nil
	case "kafka":
		return kind{checkKafka, openKafka, kafkaSource}, nil
	case "rabbitmq", "rabbitmqs", "amqp", "amqps":
		return kind{rabbitbroker.CheckURL, openRabbit, rabbitSource}, nil
	case "amqp10", "amqp10s":
		return kind{amqpbroker.CheckURL, openAMQP, amqpSource}, nil
	case "redis", "rediss":
		return kind{checkRedis, openRedis, redisSource}, nil
	}
	return kind{}, fmt.Errorf("broker URL %q: its kind is unknown: use nats://host:4222, kafka://host:9092, rabbitmq://host:5672, amqp10://host:5672 or redis://host:6379", natsbroker.RedactURL(url))
}

// CheckBroker tells what is wrong with a broker's URL, without any I/O.
func CheckBroker(url string) error {
	k, err := kindOf(url)
	if err != nil {
		return err
	}
	return k.check(url)
}

// openFeed makes the place: on an embedded server if no broker is named.
func openFeed(ctx context.Context, url, run, folder string) (feed, error) {
	if url == "" {
		return openEmbedded(ctx, run, folder)
	}
	k, err := kindOf(url)
	if err != nil {
		return nil, err
	}
	return k.open(ctx, url, run)
}
