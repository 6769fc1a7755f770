package proctest

import (
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/dbtest"
)

func TestAPoisonMessageOfAMemoryBroker(t *testing.T) {
	b := membroker.New(membroker.Options{AckWait: time.Minute})
	p := place{broker: serve(t, b, "shop"), publisher: b, publishTo: "orders"}
	for _, die := range []string{"exit", "kill"} {
		t.Run(die, func(t *testing.T) { poison(t, newShop(t, dbtest.SQLite(t)), p, die, 1) })
	}
}

func TestRandomKillsWithAMemoryBroker(t *testing.T) {
	b := membroker.New(membroker.Options{AckWait: time.Minute})
	kills(t, newShop(t, dbtest.SQLite(t)), place{broker: serve(t, b, "shop"), publisher: b, publishTo: "orders"}, "", 1)
}

// poison: a message that kills the process becomes a dead letter, its
// neighbours don't, and everything else has its effect once.
func poison(t *testing.T, s *shop, p place, die string, workers int) {
	orders := some(200)
	orders[77].Die = die
	p.publish(t, orders...)
	do := task{Consumer: "shop", Database: s.db.URL, Broker: p.broker, Topic: p.topic, Instance: "one", Workers: workers}
	const letters = `SELECT COUNT(*) FROM dead_letters`
	m, deaths := start(t, do), 0
	s.await(3*time.Minute, 200, `SELECT (SELECT COUNT(*) FROM effects) + (`+letters+`)`, func() {
		select {
		case <-m.ended:
			deaths++
			m = start(t, do)
		default:
		}
	})
	m.stop()
	s.exact(199)
	if got := s.texts(`SELECT message_key || ' ' || reason || ' ' || attempts || ' ' || status FROM dead_letters`); !slices.Equal(got, []string{"order-0077 crashed 3 open"}) {
		t.Errorf("dead letters: %q", got)
	}
	// Once unnoticed, once with its start recorded, and three times alone.
	if deaths != 5 {
		t.Errorf("%d processes died of it, want 5", deaths)
	}
	if got := s.texts(`SELECT message_key FROM message_starts`); !slices.Equal(got, []string{"order-0077"}) {
		t.Errorf("starts that did not end: %q, want that of order-0077 alone", got)
	}
}
