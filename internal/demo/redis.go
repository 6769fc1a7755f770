package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
)

// redisFeed is a stream of the demo's own, with a group for each consumer.
type redisFeed struct {
	url, stream string
	client      *redis.Client
}

func checkRedis(url string) error {
	_, err := redisbroker.Options(url)
	return err
}

func redisSource(t task) (broker.Source, error) {
	logging.Disable() // as below
	return redisbroker.OpenSource(t.Broker, redisbroker.SourceConfig{Stream: t.Topic, Group: t.Service, AckWait: ackWait})
}

// openRedis connects. The stream is made by the first order.
func openRedis(ctx context.Context, url, run string) (feed, error) {
	logging.Disable() // go-redis's own log, on standard error: whoever asks gets the error
	opts, err := redisbroker.Options(url)
	if err != nil {
		return nil, err
	}
	opts.DialTimeout, opts.DialerRetries = connectTimeout, 1
	f := &redisFeed{url, "sekali-demo-" + run, redis.NewClient(opts)}
	answering, done := context.WithTimeout(ctx, 2*connectTimeout)
	defer done()
	if err := f.client.Ping(answering).Err(); err != nil {
		_ = f.client.Close()
		return nil, fmt.Errorf("connect to %s: %w: is the server running, and are its address, user and password right?", f, err)
	}
	return f, nil
}

func (f *redisFeed) address() (url, topic string) { return f.url, f.stream }

func (f *redisFeed) publisher() (broker.Publisher, error) {
	return redisbroker.NewPublisher(f.client, redisbroker.PublisherConfig{})
}

// drained: the group has been handed the stream's last entry, and nothing is
// pending.
func (f *redisFeed) drained(ctx context.Context, consumer string) (bool, error) {
	stream, err := f.client.XInfoStream(ctx, f.stream).Result()
	if err == nil {
		var groups []redis.XInfoGroup
		groups, err = f.client.XInfoGroups(ctx, f.stream).Result()
		for _, g := range groups {
			if g.Name == consumer {
				return g.Pending == 0 && g.LastDeliveredID == stream.LastGeneratedID, nil
			}
		}
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("ask for the state of the group %s of the stream %s: %w", consumer, f.stream, err)
	}
	return false, nil
}

// bury has nothing to do: the entries of the dead are claimed after ackWait.
func (f *redisFeed) bury(context.Context, string) {}

func (f *redisFeed) String() string { return redisbroker.RedactURL(f.url) }

func (f *redisFeed) kept() string { return "the stream " + f.stream + " and its groups" }

func (f *redisFeed) close(ctx context.Context, keep bool) error {
	defer func() { _ = f.client.Close() }()
	if keep {
		return nil
	}
	if err := f.client.Del(ctx, f.stream).Err(); err != nil {
		return fmt.Errorf("delete the stream %s at %s: %w: delete it by hand", f.stream, f, err)
	}
	return nil
}
