//go:build !fast

package proctest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
)

// relayKeys and relayEvents: so many ordering keys with so many events each.
// The lanes of each relay that is killed stand still until its lease is over.
const relayKeys, relayEvents, mostKills = 20, 5000, 25

// relays: three processes relay, and die at random, while events of 20 ordering
// keys are added. Each has its effect once, in the order of its key; and every
// copy of an event that the broker has bears the id that it was given when it
// was added.
func relays(t *testing.T, s *shop, p place) {
	do := task{Relay: true, Database: s.db.URL, Broker: p.broker, Topic: p.topic}
	var members []*member
	for range 3 {
		members = append(members, start(t, do))
	}
	consumer := start(t, task{
		Consumer: "shop", Database: s.db.URL, Broker: p.broker, Topic: p.topic, Instance: "one", Workers: 4, Key: outbox.IDHeader, AckWait: time.Minute,
	})
	ids, adding := make(chan map[string]string, 1), make(chan struct{})
	go func() {
		defer close(adding)
		ids <- s.addEvents(t, p.publishTo)
	}()
	kills := 0
	const total = relayKeys * relayEvents
	s.await(5*time.Minute, total, `SELECT COUNT(DISTINCT id) FROM effects`, func() {
		if kills == mostKills {
			return
		}
		time.Sleep(time.Duration(500+rand.IntN(2500)) * time.Millisecond)
		i := rand.IntN(len(members))
		members[i].kill()
		members[i] = start(t, do)
		kills++
	})
	<-adding
	for _, m := range append(members, consumer) {
		m.stop()
	}
	s.exact(total)
	s.inOrder()
	if got := s.texts(`SELECT message_key FROM dead_letters`); len(got) > 0 {
		t.Errorf("dead letters: %q", got)
	}
	if left := s.number(`SELECT COUNT(*) FROM outbox_messages WHERE status <> 'published'`); left > 0 {
		t.Logf("%d events were not recorded as published when the relays ended", left)
	}
	copies := s.copies(t, p, <-ids)
	t.Logf("%d relays were killed; %d events, %d copies at the broker", kills, total, copies)
	if kills < 5 {
		t.Errorf("only %d relays were killed: the test shows little", kills)
	}
}

// addEvents adds the events of each key in their order, in transactions of up
// to 50, and returns their ids by what they are.
func (s *shop) addEvents(t *testing.T, topic string) map[string]string {
	db, err := dburl.Open(t.Context(), s.db.URL, false)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer db.Close()
	box := outbox.New(sqlstore.New(db.SQL, db.Dialect()))
	ids, mu := map[string]string{}, sync.Mutex{}
	add := func(key int) error {
		for seq := 0; seq < relayEvents; {
			var some []outbox.Message
			for range min(1+rand.IntN(50), relayEvents-seq) {
				entity := strconv.Itoa(key)
				body, _ := json.Marshal(order{ID: fmt.Sprintf("%d-%d", key, seq), Entity: entity, Seq: seq})
				some = append(some, outbox.Message{Topic: topic, OrderingKey: []byte(entity), Body: body})
				seq++
			}
			tx, err := db.SQL.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			got, err := box.AddAll(t.Context(), tx, some)
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				_ = tx.Rollback()
				return err
			}
			mu.Lock()
			for i, m := range some {
				ids[string(m.Body)] = got[i]
			}
			mu.Unlock()
		}
		return nil
	}
	var adding sync.WaitGroup
	for key := range relayKeys {
		adding.Go(func() {
			if err := add(key); err != nil {
				t.Errorf("add events of key %d: %v", key, err)
			}
		})
	}
	adding.Wait()
	return ids
}

// copies reads all that the broker has, and fails the test unless each copy
// bears the id of its event.
func (s *shop) copies(t *testing.T, p place, ids map[string]string) (n int) {
	source, err := task{Consumer: p.topic + "-reader", Broker: p.broker, Topic: p.topic, AckWait: time.Minute}.source()
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close(context.Background())
	seen := map[string]bool{}
	for len(seen) < len(ids) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		deliveries, err := source.Receive(ctx, 1000)
		cancel()
		if err != nil {
			t.Fatalf("after %d copies of %d events: %v", n, len(seen), err)
		}
		var settled []broker.Settlement
		for _, d := range deliveries {
			n++
			seen[string(d.Message.Body)] = true
			if id, _ := d.Message.Headers.Get(outbox.IDHeader); string(id) != ids[string(d.Message.Body)] {
				t.Fatalf("a copy of %s has the id %q, which is not %q", d.Message.Body, id, ids[string(d.Message.Body)])
			}
			settled = append(settled, broker.Settlement{Delivery: d, Action: broker.Ack})
		}
		if err := source.Settle(t.Context(), settled); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
