package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sekali/sekali/internal/kafkatest"
)

// openFake opens a feed on a fake cluster; it is closed by the test.
func openFake(t *testing.T) (url string, f *kafkaFeed) {
	t.Helper()
	url = kafkatest.Start(t)
	opened, err := openFeed(t.Context(), url, "run", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return url, opened.(*kafkaFeed)
}

// left returns the topics and groups on a server.
func left(t *testing.T, url string) []string {
	t.Helper()
	admin := kadm.NewClient(kafkatest.Client(t, url))
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return append(topics.Names(), groups.Groups()...)
}

func TestTheDemoIsExactOnAFakeKafkaAndLeavesNothingThere(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	url := kafkatest.Start(t)
	report, err := Play(t.Context(), Config{Orders: 100, Duplicates: 0.2, Crashes: 1, Seed: 1, Broker: url, Command: []string{os.Args[0]}})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK || len(report.Kept) != 0 {
		t.Errorf("the report is %+v", report)
	}
	if found := left(t, url); len(found) != 0 {
		t.Errorf("the demo left %v behind", found)
	}
}

func TestAKeptTopicStays(t *testing.T) {
	url, f := openFake(t)
	if err := f.close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if found := left(t, url); len(found) != 1 || !strings.Contains(f.kept(), found[0]) {
		t.Errorf("on the server is %v; the report says %s", found, f.kept())
	}
}

// member joins a group as a process does that is then killed: it neither
// leaves nor closes until the end of the test.
func member(t *testing.T, f *kafkaFeed, consumer string) *kgo.Client {
	t.Helper()
	joined := make(chan struct{})
	c := kafkatest.Client(t, f.url, kgo.ConsumerGroup(kafkaGroup(f.topic, consumer)), kgo.ConsumeTopics(f.topic),
		kgo.SessionTimeout(time.Minute), kgo.HeartbeatInterval(30*time.Second), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) {
			select {
			case joined <- struct{}{}:
			case <-t.Context().Done():
			}
		}))
	select {
	case <-joined:
	case <-time.After(30 * time.Second):
		t.Fatal("the member has not joined after 30 s")
	}
	return c
}

func TestADeadMemberIsBuriedLongBeforeItsSessionIsOver(t *testing.T) {
	_, f := openFake(t)
	defer f.close(t.Context(), false)
	member(t, f, stockService)
	f.bury(t.Context(), stockService)
	found, err := f.admin.DescribeGroups(t.Context(), kafkaGroup(f.topic, stockService))
	if err != nil {
		t.Fatal(err)
	}
	if members := found[kafkaGroup(f.topic, stockService)].Members; len(members) != 0 {
		t.Errorf("in the group are still %v", members)
	}
}

func TestAGroupWithADeadMemberIsDeletedToo(t *testing.T) {
	url, f := openFake(t)
	member(t, f, courierService)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than its session
	defer cancel()
	if err := f.close(ctx, false); err != nil {
		t.Error(err)
	}
	if found := left(t, url); len(found) != 0 {
		t.Errorf("on the server is still %v", found)
	}
}

func TestAConsumerHasDrainedWhenItsOffsetsHaveReachedTheEndOfEachPartition(t *testing.T) {
	_, f := openFake(t)
	defer f.close(t.Context(), false)
	if err := publish(t, f, newPlan(Config{Orders: 50, Seed: 1})); err != nil {
		t.Fatal(err)
	}
	if drained, err := f.drained(t.Context(), stockService); err != nil || drained {
		t.Errorf("nothing was committed: drained %v, %v", drained, err)
	}
	ends, err := f.admin.ListEndOffsets(t.Context(), f.topic)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(less int64) {
		t.Helper()
		offsets, short := kadm.Offsets{}, false
		ends.Each(func(end kadm.ListedOffset) {
			at := end.Offset
			if at > 0 && !short {
				short, at = true, at-less
			}
			offsets.AddOffset(f.topic, end.Partition, at, -1)
		})
		if err := f.admin.CommitAllOffsets(t.Context(), kafkaGroup(f.topic, stockService), offsets); err != nil {
			t.Fatal(err)
		}
	}
	commit(1)
	if drained, err := f.drained(t.Context(), stockService); err != nil || drained {
		t.Errorf("one partition is one short: drained %v, %v", drained, err)
	}
	commit(0)
	if drained, err := f.drained(t.Context(), stockService); err != nil || !drained {
		t.Errorf("all is committed: drained %v, %v", drained, err)
	}
	if drained, err := f.drained(t.Context(), courierService); err != nil || drained {
		t.Errorf("another group has committed nothing: drained %v, %v", drained, err)
	}
}

func TestOrdersOfAnSKUShareAPartition(t *testing.T) {
	url, f := openFake(t)
	defer f.close(t.Context(), false)
	p := newPlan(Config{Orders: 200, Seed: 1})
	if err := publish(t, f, p); err != nil {
		t.Fatal(err)
	}
	c := kafkatest.Client(t, url, kgo.ConsumeTopics(f.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	of, used := map[string]int32{}, map[int32]bool{}
	for n := 0; n < p.copies(); {
		fetches := c.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			if before, ok := of[string(r.Key)]; ok && before != r.Partition {
				t.Errorf("%s is in the partitions %d and %d", r.Key, before, r.Partition)
			}
			of[string(r.Key)], used[r.Partition] = r.Partition, true
		})
	}
	if len(of) != len(skus) || len(used) < 2 {
		t.Errorf("the ordering keys are in %v", of)
	}
}

func TestWhatCannotBeTakenBackIsNamed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cluster := kafkatest.Fake(t)
	cluster.ControlKey(kmsg.DeleteTopics.Int16(), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		answer := request.ResponseKind().(*kmsg.DeleteTopicsResponse)
		for _, asked := range request.(*kmsg.DeleteTopicsRequest).Topics {
			refused := kmsg.NewDeleteTopicsResponseTopic()
			refused.Topic, refused.ErrorCode = asked.Topic, kerr.TopicAuthorizationFailed.Code
			answer.Topics = append(answer.Topics, refused)
		}
		return answer, nil, true
	})
	play := func(command ...string) (*Report, error) {
		return Play(t.Context(), Config{Orders: 10, Seed: 1, Broker: kafkatest.FakeURL(cluster), Command: command})
	}
	report, err := play(os.Args[0])
	if err != nil || !report.OK || len(report.Kept) != 1 || !strings.Contains(report.Kept[0], "delete the topic sekali-demo-") {
		t.Errorf("the report is %+v, %v", report, err)
	}
	if _, err := play("/bin/sh", "-c", "echo no beans >&2; exit 3"); !errors.Is(err, kerr.TopicAuthorizationFailed) || !strings.Contains(err.Error(), "no beans") {
		t.Errorf("the error is %v", err)
	}
}

func TestATopicThatIsRefusedIsOneErrorWithItsMend(t *testing.T) {
	cluster := kafkatest.Fake(t)
	cluster.ControlKey(kmsg.CreateTopics.Int16(), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		answer := request.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, asked := range request.(*kmsg.CreateTopicsRequest).Topics {
			refused := kmsg.NewCreateTopicsResponseTopic()
			refused.Topic, refused.ErrorCode = asked.Topic, kerr.TopicAuthorizationFailed.Code
			answer.Topics = append(answer.Topics, refused)
		}
		return answer, nil, true
	})
	_, err := openFeed(t.Context(), kafkatest.FakeURL(cluster), "run", t.TempDir())
	if !errors.Is(err, kerr.TopicAuthorizationFailed) || !strings.Contains(err.Error(), "may the user make topics") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
}

func TestAnInterruptedOpeningLeavesNoTopic(t *testing.T) {
	cluster := kafkatest.Fake(t)
	ctx, cancel := context.WithCancel(t.Context())
	cluster.ControlKey(kmsg.CreateTopics.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		cancel() // the request is under way, and is carried out
		return nil, nil, false
	})
	if _, err := openFeed(ctx, kafkatest.FakeURL(cluster), "run", t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if found := left(t, kafkatest.FakeURL(cluster)); len(found) != 0 {
		t.Errorf("on the server is %v", found)
	}
}
