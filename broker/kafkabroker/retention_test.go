package kafkabroker_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sekali/sekali/broker/kafkabroker"
)

// told: a segment goes as a whole, when its last record is old enough.
func told(t *testing.T, k kafka) {
	week, other := k.topic(t, 1), k.topic(t, 1)
	want := func(age time.Duration, topics ...string) {
		t.Helper()
		s := k.source(t, name("group"), week, func(c *kafkabroker.SourceConfig) { c.Topics = topics })
		got, limited, err := s.Retention(t.Context())
		if err != nil || got != age || limited != (age > 0) {
			t.Errorf("told %v, %v, %v; want %v", got, limited, err, age)
		}
	}
	set := func(topic, setting, value string) {
		t.Helper()
		a := k.admin(t)
		defer a.Close()
		changed, err := a.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: setting, Value: &value}}, topic)
		if err == nil && len(changed) == 1 {
			err = changed[0].Err
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(week, "retention.ms", "3600000")
	set(week, "segment.ms", "1800000")
	want(90*time.Minute, week)
	set(other, "retention.ms", "7200000")
	set(other, "segment.ms", "60000")
	want(121*time.Minute, week, other)
	want(121*time.Minute, other, week)
	set(other, "cleanup.policy", "compact")
	want(0, other, week)
	want(0, week, other)
	set(other, "cleanup.policy", "compact,delete")
	want(121*time.Minute, week, other)
	set(other, "retention.ms", "-1")
	want(0, week, other)
	s := k.source(t, name("group"), week, func(c *kafkabroker.SourceConfig) { c.Topics = []string{name("nowhere")} })
	if _, _, err := s.Retention(t.Context()); err == nil {
		t.Error("the retention of a topic that is not there was told")
	}
}
