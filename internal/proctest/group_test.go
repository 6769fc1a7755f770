//go:build !fast

package proctest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/dbtest"
)

// howLong is how long members come and go: SEKALI_TEST_CHAOS, or else short
// enough for every run.
func howLong(otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("SEKALI_TEST_CHAOS")); err == nil {
		return d
	}
	return otherwise
}

// A group of three processes shares 12 partitions. About every ten seconds a
// member is killed, or frozen for longer than its session, or stopped in good
// order, and joins again later.
func TestAGroupWhoseMembersDieFreezeAndJoinHasExactEffects(t *testing.T) {
	const partitions, every = 12, 10 * time.Second
	s, p := newShop(t, dbtest.Postgres(t)), onKafka(t, partitions)
	do := task{Consumer: p.topic, Database: s.db.URL, Broker: p.broker, Topic: p.topic, Workers: 4}
	var members []*member
	for range 3 {
		members = append(members, start(t, do))
	}
	for _, m := range members {
		m.works()
	}
	end := time.Now().Add(howLong(45 * time.Second))
	sent, disturb := 0, time.Now().Add(every/2)
	for tick := time.NewTicker(50 * time.Millisecond); time.Now().Before(end); <-tick.C {
		var more []order
		for range 2 * partitions { // each partition always has something to do
			more = append(more, order{ID: fmt.Sprintf("order-%06d", sent), Entity: fmt.Sprint(sent % 97), Seq: sent / 97, Sleep: rand.IntN(5)})
			sent++
		}
		p.publish(t, more...)
		if time.Now().Before(disturb) {
			continue
		}
		disturb = time.Now().Add(every)
		i := rand.IntN(len(members))
		m := members[i]
		switch what := rand.IntN(3); what {
		case 0:
			t.Logf("member %d is killed", i)
			m.kill()
			members[i] = start(t, do)
		case 1:
			t.Logf("member %d is frozen", i)
			m.signal(syscall.SIGSTOP)
			thaw := time.AfterFunc(session+2*time.Second, func() { m.signal(syscall.SIGCONT) })
			defer thaw.Stop()
		default:
			t.Logf("member %d is stopped", i)
			m.stop()
			members[i] = start(t, do)
		}
	}
	s.await(2*time.Minute, sent, `SELECT COUNT(DISTINCT id) FROM effects`, func() {})
	for _, m := range members {
		m.signal(syscall.SIGCONT)
		m.stop()
	}
	s.exact(sent)
	s.inOrder()
	t.Logf("%d messages; longest silences per partition, in seconds: %v", sent, s.texts(silences))
	for _, silence := range s.texts(`SELECT 'partition ' || lane || ' stood still for ' || s || ' s' FROM (` + silent + `) AS x WHERE s > 15`) {
		t.Error(silence)
	}
	if got := s.texts(`SELECT message_key || ' ' || reason FROM dead_letters`); len(got) > 0 {
		t.Errorf("blamed: %q", got)
	}
}

const (
	silent = `SELECT lane, round(max(extract(epoch FROM at - before))::numeric, 1) AS s FROM
		(SELECT lane, at, lag(at) OVER (PARTITION BY lane ORDER BY at) AS before FROM effects) AS y GROUP BY lane`
	silences = `SELECT s::text FROM (` + silent + `) AS x ORDER BY lane`
)

// 1,000 entities with 50 events each, in 12 partitions, and a handler that
// fails now and then: the events of one entity wait for each other, those of
// others go on.
func TestEventsOfAnEntityTakeEffectInOrder(t *testing.T) {
	const entities, events = 1000, 50
	s, p := newShop(t, dbtest.Postgres(t)), onKafka(t, 12)
	var all []order
	for seq := range events {
		for e := range entities {
			all = append(all, order{ID: fmt.Sprintf("%d-%d", e, seq), Entity: fmt.Sprint(e), Seq: seq, Fail: 0.02})
		}
	}
	p.publish(t, all...)
	do := task{Consumer: p.topic, Database: s.db.URL, Broker: p.broker, Topic: p.topic, Workers: 8}
	first, second := start(t, do), start(t, do)
	s.await(10*time.Second, 1, `SELECT COUNT(DISTINCT id) FROM effects`, func() {})
	s.await(4*time.Minute, len(all), `SELECT COUNT(DISTINCT id) FROM effects`, func() {})
	first.stop()
	second.stop()
	s.exact(len(all))
	s.inOrder()
}

// inOrder fails the test unless the effects of each entity came in order.
func (s *shop) inOrder() {
	s.t.Helper()
	const disorder = `SELECT entity, seq, prior FROM
		(SELECT entity, seq, lag(seq) OVER (PARTITION BY entity ORDER BY n) AS prior FROM effects) AS x
		WHERE prior IS NOT NULL AND seq <> prior + 1`
	wrong := s.texts(`SELECT ` + s.words("entity", "prior", "seq") + ` FROM (` + disorder + `) AS y LIMIT 5`)
	if len(wrong) == 0 {
		return
	}
	s.t.Errorf("%d effects out of order, such as (entity, one, the next) %q", s.number(`SELECT COUNT(*) FROM (`+disorder+`) AS y`), wrong)
	for _, line := range s.texts(`SELECT ` + s.words("entity", "seq", "lane", "n", "at") + ` FROM effects
		WHERE entity = (SELECT min(entity) FROM (` + disorder + `) AS y) ORDER BY n LIMIT 10`) {
		s.t.Logf("entity, seq, lane, n, at: %s", line)
	}
}
