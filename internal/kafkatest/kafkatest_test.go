package kafkatest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/internal/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAFakeServerCarriesARecord(t *testing.T) { carries(t, kafkatest.Start(t)) }

// carries: a topic of the test's own has the partitions that were asked for,
// takes a record, hands it out, and is gone at the end.
func carries(t *testing.T, url string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	outside := kadm.NewClient(kafkatest.Client(t, url))
	var topic string
	t.Run("record", func(t *testing.T) {
		topic = kafkatest.TopicAt(t, url, 3, map[string]string{"cleanup.policy": "compact"})
		found, err := outside.ListTopics(ctx, topic)
		if err != nil || len(found[topic].Partitions) != 3 {
			t.Fatalf("the topic has %d partitions, want 3 (%v)", len(found[topic].Partitions), err)
		}
		configs, err := outside.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(configs[0].Configs, func(c kadm.Config) bool { return c.Key == "cleanup.policy" && c.MaybeValue() == "compact" }) {
			t.Error("the topic is not compacted")
		}
		producer := kafkatest.Client(t, url)
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Key: []byte("KOPI-250"), Value: []byte("7")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		consumer := kafkatest.Client(t, url, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(time.Second), kgo.HeartbeatInterval(300*time.Millisecond))
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		if r := fetches.Records()[0]; string(r.Key) != "KOPI-250" || string(r.Value) != "7" {
			t.Errorf("received %q = %q", r.Key, r.Value)
		}
	})
	// Not with outside, which remembers topics for a while.
	after := kadm.NewClient(kafkatest.Client(t, url))
	if found, err := after.ListTopics(ctx, topic); err != nil || found.Has(topic) {
		t.Errorf("the topic is still there (%v)", err)
	}
}

func TestATopicMayBeDeletedByItsTest(t *testing.T) {
	url := kafkatest.Start(t)
	topic := kafkatest.TopicAt(t, url, 1, nil)
	if _, err := kadm.NewClient(kafkatest.Client(t, url)).DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
}

// told is a test that notes how it ended.
type told struct {
	testing.TB
	how string
}

func (t *told) Helper() {}

func (t *told) Skipf(format string, args ...any) { t.end("skipped", format, args) }

func (t *told) Fatalf(format string, args ...any) { t.end("failed", format, args) }

func (t *told) end(how, format string, args []any) {
	t.how = how + ": " + fmt.Sprintf(format, args...)
	panic(t)
}

// ending returns how a test ends that does do.
func ending(t *testing.T, do func(testing.TB)) string {
	fake := &told{TB: t}
	func() {
		defer func() { _ = recover() }()
		do(fake)
	}()
	return fake.how
}

func TestAMissingServerFailsTheTestUnlessThisMachineCannotHaveOne(t *testing.T) {
	for name, c := range map[string]struct{ url, without, want string }{
		"nothing is set":                   {"", "", "failed: SEKALI_TEST_KAFKA_URL is not set"},
		"the machine cannot have another":  {"", "kafkaesque rabbitmq", "failed: "},
		"the machine cannot have Kafka":    {"", "rabbitmq kafka", "skipped: not run: it needs a real Kafka"},
		"there is one all the same":        {"kafka://127.0.0.1:9092", "kafka", ""},
		"a password, which is shown never": {"kafka://kopi:geheim@127.0.0.1:9092", "", "failed: the URL of the Kafka"},
		"not a URL":                        {"127.0.0.1:9092", "", "failed: the URL of the Kafka"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SEKALI_TEST_KAFKA_URL", c.url)
			t.Setenv("SEKALI_TEST_WITHOUT", c.without)
			got := ending(t, func(tb testing.TB) { kafkatest.Brokers(tb) })
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "geheim") {
				t.Errorf("the test ended so: %q, want %q", got, c.want)
			}
		})
	}
}
