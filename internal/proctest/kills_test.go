package proctest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// howMany is how often the test kills: SEKALI_TEST_KILLS, or else few enough
// for every run.
func howMany(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("SEKALI_TEST_KILLS")); err == nil {
		return n
	}
	return otherwise
}

// kills: a process that is killed again and again, at random, blames nobody.
func kills(t *testing.T, s *shop, p place, instance string, workers int) {
	n := howMany(200)
	do := task{Consumer: "shop", Database: s.db.URL, Broker: p.broker, Topic: p.topic, Instance: instance, Workers: workers}
	total := 0
	more := func() {
		orders := some(total + 100)[total:]
		p.publish(t, orders...)
		total += len(orders)
	}
	more()
	for i := range n {
		if total-s.number(`SELECT COUNT(*) FROM effects`) < 100 {
			more()
		}
		m := start(t, do)
		m.works()
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
		m.kill()
		if got := s.texts(`SELECT message_key || ' ' || reason || ': ' || error FROM dead_letters`); len(got) > 0 {
			t.Fatalf("after %d kills these were blamed: %q", i+1, got)
		}
	}
	m := start(t, do)
	s.await(2*time.Minute, total, `SELECT COUNT(DISTINCT id) FROM effects`, func() {})
	m.stop()
	s.exact(total)
	t.Logf("%d kills, %d messages, %d lone starts by the last process", n, total, m.count("suspected"))
	if got := s.texts(`SELECT message_key || ' ' || reason FROM dead_letters`); len(got) > 0 {
		t.Errorf("blamed: %q", got)
	}
}
