package proctest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store/sqlstore"
)

func TestRedrivesWhileProcessesAreKilledOnSQLite(t *testing.T) {
	b := membroker.New(membroker.Options{AckWait: time.Minute})
	redrives(t, newShop(t, dbtest.SQLite(t)), place{broker: serve(t, b, "shop"), publisher: b, publishTo: "orders"}, 1)
}

// desk is where letters are decided about, from outside of the children.
func (s *shop) desk(t *testing.T) deadletter.Desk {
	t.Helper()
	db, err := dburl.Open(t.Context(), s.db.URL, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return sqlstore.New(db.SQL, db.Dialect()).DeadLetters().(deadletter.Desk)
}

// redrives: letters are redriven, some of them forced and again, others
// discarded, while processes die at random. Each has its effect once, or is
// still open.
func redrives(t *testing.T, s *shop, p place, workers int) {
	t.Parallel() // mostly it waits for leases of the dead to end
	const n = 200
	orders := some(n)
	for i := range orders {
		orders[i].Dead, orders[i].Sleep = true, 3
	}
	p.publish(t, orders...)
	do := task{Consumer: "shop", Database: s.db.URL, Broker: p.broker, Topic: p.topic, Instance: "one", Workers: workers}
	m := start(t, do)
	s.await(time.Minute, n, `SELECT COUNT(*) FROM dead_letters`, func() {})
	desk := s.desk(t)
	letters, err := desk.List(t.Context(), deadletter.Filter{Limit: n})
	if err != nil {
		t.Fatal(err)
	}
	discarded := 0
	for i, l := range letters {
		if err := desk.Redrive(t.Context(), l.ID, deadletter.Decision{By: "test"}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 { // a copy comes live, and fails
			p.publish(t, orders[i])
		}
	}
	for i := range 12 {
		m.works()
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		// A decision in the middle of it all.
		err := desk.Discard(t.Context(), letters[i].ID, deadletter.Decision{By: "test"})
		if err == nil {
			discarded++
		} else if !errors.Is(err, deadletter.ErrResolved) {
			t.Logf("discard: %v", err)
		}
		m.kill()
		m = start(t, do)
	}
	s.await(3*time.Minute, 0, `SELECT -COUNT(*) FROM dead_letters WHERE status NOT IN ('processed', 'duplicate', 'discarded')`, func() {})
	m.stop()
	if got := s.texts(`SELECT ` + s.words("status", "reason") + ` FROM dead_letters WHERE status = 'duplicate' OR reason <> 'permanent'`); len(got) > 0 {
		t.Errorf("letters: %q", got)
	}
	s.exact(n - discarded)
	if got := s.number(`SELECT COUNT(*) FROM processed_messages`); got != n {
		t.Errorf("%d keys are recorded, want %d", got, n)
	}
	trail, err := desk.Trail(context.Background(), 0, 10*n)
	if err != nil || len(trail) != n+discarded {
		t.Errorf("the audit trail has %d entries, %v: want %d", len(trail), err, n+discarded)
	}
	if slices.ContainsFunc(trail, func(a deadletter.Audit) bool { return a.By != "test" || a.Letter == 0 }) {
		t.Errorf("the audit trail: %+v", trail)
	}
}
