//go:build !fast

package watermillbroker_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	watersql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/watermillbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/redistest"
)

// queue makes a queue of a backend's publisher and subscribers.
func queue(t *testing.T, p message.Publisher, subscribe func() (message.Subscriber, error)) brokertest.Queue {
	topic := "test_" + strings.ToLower(rand.Text())
	t.Cleanup(func() { _ = p.Close() })
	return brokertest.Queue{
		Topic: topic, Publisher: watermillbroker.NewPublisher(p, watermillbroker.WithOrderingKeyMetadata(keyName)),
		Source: func(t *testing.T) broker.Source {
			sub, err := subscribe()
			if err != nil {
				t.Fatal(err)
			}
			s, err := watermillbroker.NewSource(watermillbroker.SourceConfig{
				Subscriber: sub, Topic: topic, OrderingKeyMetadata: keyName, CloseSubscriber: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
}

// onPostgres is watermill-sql's queue in a table.
func onPostgres(t *testing.T, _ brokertest.Options) brokertest.Queue {
	db := dbtest.Postgres(t)
	// Acknowledgements of a batch are durable with the last of them, so the
	// batch is one message.
	schema := watersql.PostgreSQLQueueSchema{GeneratePayloadType: func(string) string { return "BYTEA" }, SubscribeBatchSize: 1}
	p, err := watersql.NewPublisher(watersql.BeginnerFromStdSQL(db.SQL), watersql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	subscribe := func() (message.Subscriber, error) {
		return watersql.NewSubscriber(watersql.BeginnerFromStdSQL(db.SQL), watersql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: watersql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
			PollInterval: 20 * time.Millisecond, ResendInterval: 20 * time.Millisecond, RetryInterval: 20 * time.Millisecond,
		}, watermill.NopLogger{})
	}
	q := queue(t, p, subscribe)
	first, err := subscribe()
	if err == nil {
		err = first.(message.SubscribeInitializer).SubscribeInitialize(q.Topic)
	}
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// onRedis is watermill-redisstream with a consumer group.
func onRedis(t *testing.T, _ brokertest.Options) brokertest.Queue {
	p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: redistest.Client(t)}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return queue(t, p, func() (message.Subscriber, error) {
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: redistest.Client(t), ConsumerGroup: "shop", Consumer: rand.Text(), OldestId: "0", NackResendSleep: 20 * time.Millisecond,
			BlockTime: 50 * time.Millisecond, ClaimInterval: 100 * time.Millisecond, MaxIdleTime: 500 * time.Millisecond,
		}, watermill.NopLogger{})
	})
}

func TestSuiteOnWatermillSQL(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{Open: onPostgres, Features: brokertest.Features{MessageID: true, OrderingKey: true, UniqueHeaders: true, OneByOne: true}})
}

func TestSuiteOnWatermillRedisStream(t *testing.T) {
	redistest.URL(t)
	brokertest.Run(t, brokertest.Harness{Open: onRedis, Features: brokertest.Features{MessageID: true, OrderingKey: true, UniqueHeaders: true, BinaryHeaders: true, OneByOne: true}})
}
