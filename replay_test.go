package sekali_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/retention"
)

// replayed: a whole topic comes again after its keys were pruned. Then a new
// consumer reads the same old topic.
func (s stack[Tx]) replayed(t *testing.T) {
	const n = 60
	s.restock(t)
	for _, table := range []string{"dead_letters", "pruning_marks"} {
		if _, err := s.db.SQL.Exec("DELETE FROM " + table); err != nil {
			t.Fatal(err)
		}
	}
	o := s.orders(t)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("order-", i)
	}
	o.publish(keys...)
	published := func(c *sekali.Config[Tx]) {
		c.PublishedAt = func(*sekali.Message) time.Time { return time.Now().Add(-100 * time.Hour) }
	}
	r := s.consume(t, o, s.sell, published)
	r.events.wait(t, n, kind(sekali.Finished))
	o.waitAcknowledged()
	r.stop()
	s.want(t, n, n)

	older := map[migrate.Dialect]string{
		migrate.Postgres: "processed_at - interval '99 hours'", migrate.MySQL: "processed_at - INTERVAL 99 HOUR",
		migrate.SQLite: "strftime('%Y-%m-%d %H:%M:%f', processed_at, '-99 hours')",
	}[s.db.Dialect]
	if _, err := s.db.SQL.Exec("UPDATE processed_messages SET processed_at = " + older); err != nil {
		t.Fatal(err)
	}
	pruner, err := retention.New(s.store, retention.Config{Policy: retention.Policy{
		Keys: 90 * time.Hour, MaxDuplicateAge: time.Hour, DeadLetters: 91 * time.Hour,
	}})
	if err != nil {
		t.Fatal(err)
	}
	if report, err := pruner.Run(t.Context()); err != nil || report.Removed() != n {
		t.Fatalf("the pruner removed %d rows, %v", report.Removed(), err)
	}

	o.publish(keys...) // once more
	r = s.consume(t, o, s.sell, published)
	r.events.wait(t, n, kind(sekali.DeadLettered))
	o.waitAcknowledged()
	r.stop()
	s.want(t, n, 0)
	if got := s.number(t, `SELECT COUNT(*) FROM dead_letters WHERE reason = 'too-old' AND status = 'open'`); got != n {
		t.Errorf("%d of %d old messages are letters", got, n)
	}

	// Another consumer has forgotten nothing: it has never read the topic.
	var once sync.Map
	r = s.consume(t, o, func(ctx context.Context, tx Tx, m *sekali.Message) error {
		once.Store(m.Key(), true)
		return s.sell(ctx, tx, m)
	}, published, func(c *sekali.Config[Tx]) { c.Name = "audit-service"; c.Source = o.all() })
	r.events.wait(t, 2*n, kind(sekali.Finished)) // half of them are duplicates
	r.stop()
	count := 0
	once.Range(func(any, any) bool { count++; return true })
	if count != n {
		t.Errorf("the new consumer's handler ran for %d messages, want %d", count, n)
	}
	s.want(t, 2*n, n)
}

// all is a source of a new consumer, which reads the stream from its beginning.
func (o orders) all() *natsbroker.Source {
	o.t.Helper()
	source, err := natsbroker.NewSource(o.js, natsbroker.SourceConfig{Stream: o.name, Consumer: "audit-service", AckWait: 5 * time.Second})
	if err != nil {
		o.t.Fatal(err)
	}
	return source
}
