// Package kafkatest gives tests a Kafka: the real server that the environment
// names, or a fake one in the process that speaks the real protocol; and topics
// of their own on either.
//
// Files with tests that need the real server bear the build constraint !fast.
package kafkatest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// realURL is the environment's variable with the URL of a real server.
	realURL = "SEKALI_TEST_KAFKA_URL"
	// without names the servers that scripts/services could not get here. The
	// run's last lines tell of them, and CI fails.
	without = "SEKALI_TEST_WITHOUT"
)

// adminTimeout is how long making or deleting a topic may take.
const adminTimeout = 30 * time.Second

// pollInterval is how often the broker is asked about a new topic.
const pollInterval = 5 * time.Millisecond

// URL returns the URL of the real server that tests are to use. The test fails
// where there is none; it is skipped only where SEKALI_TEST_WITHOUT says that
// this machine cannot have one.
func URL(t testing.TB) string {
	t.Helper()
	raw := os.Getenv(realURL)
	if raw == "" && slices.Contains(strings.Fields(os.Getenv(without)), "kafka") {
		t.Skipf("not run: it needs a real Kafka, and %s says that this machine cannot have one: set %s to a server of yours", without, realURL)
	}
	if raw == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Maven or Docker) and"+
			" `eval \"$(scripts/services env)\"`; or set it to the URL of a server of yours, kafka://host:9092", realURL)
	}
	return raw
}

// Brokers returns the addresses in URL, for kgo.SeedBrokers.
func Brokers(t testing.TB) []string {
	t.Helper()
	return BrokersAt(t, URL(t))
}

// BrokersAt returns the addresses in a URL of a real or a fake server.
func BrokersAt(t testing.TB, raw string) []string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "kafka" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		// Not the URL itself: it may hold a password.
		t.Fatalf("the URL of the Kafka for tests is not kafka://host:port[,host:port…]: set %s so; tests log in nowhere", realURL)
	}
	return strings.Split(u.Host, ",")
}

// Topic makes a topic of the test's own on the real server, waits until it can
// be used, and returns its name. It is deleted at the end of the test.
func Topic(t testing.TB, partitions int) string {
	t.Helper()
	return TopicAt(t, URL(t), partitions, nil)
}

// TopicAt makes a topic of the test's own on the server at a URL, with
// settings such as "cleanup.policy": "compact", and waits until it can be used.
// It is deleted at the end of the test, unless the test has deleted it.
func TopicAt(t testing.TB, raw string, partitions int, settings map[string]string) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text())
	configs := map[string]*string{}
	for key, value := range settings {
		configs[key] = &value
	}
	brokers := BrokersAt(t, raw)
	err := admin(brokers, func(ctx context.Context, c *kgo.Client) error {
		if _, err := kadm.NewClient(c).CreateTopic(ctx, int32(partitions), 1, configs, name); err != nil {
			return err
		}
		return await(ctx, c, name, partitions)
	})
	if err != nil {
		t.Fatalf("make the topic %s: %v", name, err)
	}
	t.Cleanup(func() {
		err := admin(brokers, func(ctx context.Context, c *kgo.Client) error {
			// The test may have deleted it.
			if _, err := kadm.NewClient(c).DeleteTopic(ctx, name); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
				return err
			}
			return await(ctx, c, name, 0)
		})
		if err != nil {
			t.Errorf("delete the topic %s: %v", name, err)
		}
	})
	return name
}

// Client returns a client of the server at a URL. It is closed at the end of
// the test, before the test's topics are deleted.
func Client(t testing.TB, raw string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(BrokersAt(t, raw)...)}, opts...)...)
	if err != nil {
		t.Fatalf("make a Kafka client: %v", err)
	}
	t.Cleanup(c.CloseAllowingRebalance)
	return c
}

// Start starts a fake cluster of one broker on a port of its own and returns
// its URL. It ends with the test.
func Start(t testing.TB, opts ...kfake.Opt) string {
	t.Helper()
	return FakeURL(Fake(t, opts...))
}

// Fake starts a fake cluster of one broker, whose requests a test can watch
// and answer itself. It ends with the test. Sessions of its groups may be as
// short as on the server of scripts/services.
func Fake(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second)}, opts...)...)
	if err != nil {
		t.Fatalf("start a fake Kafka: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// FakeURL returns where a fake cluster answers.
func FakeURL(c *kfake.Cluster) string { return "kafka://" + strings.Join(c.ListenAddrs(), ",") }

// admin does something with a client of its own: at the end of a test its
// clients are closed, and its context has ended.
func admin(brokers []string, do func(context.Context, *kgo.Client) error) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return do(ctx, c)
}

// await waits until the broker knows that a topic has so many partitions, all
// with a leader; or none, after it was deleted. The controller answers before
// the broker has heard of it.
func await(ctx context.Context, c *kgo.Client, topic string, partitions int) error {
	// Kafka tells nobody when: ask again and again. The client remembers no
	// answers to requests that it is handed as they are.
	again := time.NewTicker(pollInterval)
	defer again.Stop()
	for {
		got, err := partitionsWithLeader(ctx, c, topic)
		if err != nil || got == partitions {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of its partitions have a leader and should be %d: %w", got, partitions, ctx.Err())
		}
	}
}

func partitionsWithLeader(ctx context.Context, c *kgo.Client, topic string) (int, error) {
	request := kmsg.NewPtrMetadataRequest()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = &topic
	request.Topics = append(request.Topics, wanted)
	answer, err := request.RequestWith(ctx, c)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 && p.Leader >= 0 {
				n++
			}
		}
	}
	return n, nil
}
