//go:build !fast

package proctest

import (
	"context"
	"crypto/rand"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/kafkatest"
	"github.com/sekali/sekali/internal/natstest"
)

// onNATS makes a stream of the test's own on the real server.
func onNATS(t *testing.T) place {
	t.Helper()
	url := natstest.RealURL(t)
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	name := "PROC_" + rand.Text()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = js.DeleteStream(context.Background(), name) })
	return place{url, name, natsbroker.NewPublisher(js), name}
}

// onKafka makes a topic of the test's own on the real server.
func onKafka(t *testing.T, partitions int) place {
	t.Helper()
	topic := kafkatest.Topic(t, partitions)
	p, err := kafkabroker.NewPublisher(kgo.SeedBrokers(kafkatest.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return place{kafkatest.URL(t), topic, p, topic}
}

func TestAPoisonMessageOfJetStream(t *testing.T) {
	t.Run("exit", func(t *testing.T) { poison(t, newShop(t, dbtest.Postgres(t)), onNATS(t), "exit", 4) })
	t.Run("kill", func(t *testing.T) { poison(t, newShop(t, dbtest.Postgres(t)), onNATS(t), "kill", 4) })
}

func TestAPoisonMessageOfKafka(t *testing.T) {
	t.Run("exit", func(t *testing.T) { poison(t, newShop(t, dbtest.Postgres(t)), onKafka(t, 3), "exit", 4) })
	t.Run("kill", func(t *testing.T) { poison(t, newShop(t, dbtest.Postgres(t)), onKafka(t, 3), "kill", 4) })
}

func TestRandomKillsWithJetStream(t *testing.T) {
	kills(t, newShop(t, dbtest.Postgres(t)), onNATS(t), "", 4)
}

func TestRandomKillsWithKafka(t *testing.T) {
	// A static member, which is back in its group at once.
	kills(t, newShop(t, dbtest.Postgres(t)), onKafka(t, 3), "one", 4)
}

// Members of a JetStream consumer that freeze for longer than their deliveries
// last: others get those meanwhile, and the frozen ones, when they wake up, do
// nothing twice.
func TestConsumersThatFreezeForLongerThanTheirDeliveriesLastHaveExactEffects(t *testing.T) {
	s, p := newShop(t, dbtest.Postgres(t)), onNATS(t)
	do := task{Consumer: "shop", Database: s.db.URL, Broker: p.broker, Topic: p.topic, Workers: 4}
	members := []*member{start(t, do), start(t, do)}
	for _, m := range members {
		m.works()
	}
	const n = 1500
	p.publish(t, some(n)...)
	for i := range 4 {
		m := members[i%2]
		s.await(time.Minute, (i+1)*100, `SELECT COUNT(*) FROM effects`, func() {})
		m.signal(syscall.SIGSTOP)
		time.Sleep(2 * ackWait)
		m.signal(syscall.SIGCONT)
	}
	s.await(2*time.Minute, n, `SELECT COUNT(DISTINCT id) FROM effects`, func() {})
	for _, m := range members {
		m.stop()
	}
	s.exact(n)
	if got := s.texts(`SELECT message_key || ' ' || reason FROM dead_letters`); len(got) > 0 {
		t.Errorf("dead letters: %q", got)
	}
}

func TestRedrivesWhileProcessesAreKilledOnPostgreSQL(t *testing.T) {
	redrives(t, newShop(t, dbtest.Postgres(t)), onNATS(t), 4)
}

func TestRedrivesWhileProcessesAreKilledOnMariaDB(t *testing.T) {
	redrives(t, newShop(t, dbtest.MySQL(t)), onNATS(t), 4)
}

func TestDeathAtEveryBoundaryOfAnEffectOnPostgreSQL(t *testing.T) {
	t.Parallel()
	deaths(t, newShop(t, dbtest.Postgres(t)), onNATS(t), 4)
}

func TestDeathAtEveryBoundaryOfAnEffectOnMariaDB(t *testing.T) {
	t.Parallel()
	deaths(t, newShop(t, dbtest.MySQL(t)), onNATS(t), 4)
}

// One process freezes in the middle of a call, for longer than its lease.
// Another one goes on; the first, when it wakes up, changes nothing.
func TestAProcessThatFreezesPastItsLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	s, at := newShop(t, dbtest.Postgres(t)), onNATS(t)
	seller := newProvider(t, true)
	gate := make(chan struct{})
	seller.hold["order-0000"] = gate
	do := task{
		Consumer: "shop", Database: s.db.URL, Broker: at.broker, Topic: at.topic, Workers: 2,
		Recovery: "repeat", Provider: seller.URL, Marks: t.TempDir(),
	}
	frozen := start(t, do)
	frozen.works()
	at.publish(t, some(1)...)
	if id := <-seller.asked; id != "order-0000" {
		t.Fatalf("asked for %s", id)
	}
	frozen.signal(syscall.SIGSTOP)
	other := start(t, do)
	<-seller.asked // the other repeats the call, when lease and delivery are over
	close(gate)
	s.await(time.Minute, 1, `SELECT COUNT(*) FROM effects`, func() {})
	const row = `SELECT state || ' ' || token || ' ' || attempt FROM external_effects`
	before := s.texts(row)
	frozen.signal(syscall.SIGCONT)
	frozen.stop()
	other.stop()
	s.exact(1)
	if after := s.texts(row); !slices.Equal(after, before) || !slices.Equal(after, []string{"succeeded 2 2"}) {
		t.Errorf("the ledger says %q, and said %q before the frozen one woke up", after, before)
	}
	if lines := seller.wrong(some(1), 1); len(lines) > 0 {
		t.Errorf("labels: %q", lines)
	}
}

func TestRelaysAreKilledWhileTheyPublishToKafkaFromPostgreSQL(t *testing.T) {
	relays(t, newShop(t, dbtest.Postgres(t)), onKafka(t, 12))
}

func TestRelaysAreKilledWhileTheyPublishToJetStreamFromMariaDB(t *testing.T) {
	relays(t, newShop(t, dbtest.MySQL(t)), onNATS(t))
}
