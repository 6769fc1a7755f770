package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// shop is a database with an outbox.
type shop struct {
	t     *testing.T
	ctx   context.Context
	db    *sql.DB
	store *sqlstore.Store
	box   *outbox.Box[*sql.Tx]
	topic string

	dialect string // as dbtest calls it
}

func newShop(t *testing.T, d *dbtest.DB, opts ...outbox.Option) *shop {
	t.Helper()
	dialect := map[string]sqlstore.Dialect{"postgres": postgres.Dialect, "mysql": mysql.Dialect, "sqlite": sqlite.Dialect}[string(d.Dialect)]
	s := sqlstore.New(d.SQL, dialect)
	return &shop{t, t.Context(), d.SQL, s, outbox.New(s, opts...), "orders", string(d.Dialect)}
}

// add adds events in a transaction of their own: "key/name", or "name" without
// an ordering key.
func (s *shop) add(names ...string) {
	s.t.Helper()
	tx, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.addIn(tx, names...)
	if err := tx.Commit(); err != nil {
		s.t.Fatal(err)
	}
	s.box.Wake()
}

// addIn is add in a transaction of the caller's.
func (s *shop) addIn(tx *sql.Tx, names ...string) {
	s.t.Helper()
	for _, name := range names {
		m := outbox.Message{Topic: s.topic, Body: []byte(name), ID: name}
		if key, _, keyed := strings.Cut(name, "/"); keyed {
			m.OrderingKey = []byte(key)
		}
		if _, err := s.box.Add(s.ctx, tx, m); err != nil {
			s.t.Fatal(err)
		}
	}
}

// status of an event.
func (s *shop) row(id string) outbox.Row {
	s.t.Helper()
	rows, err := s.store.Outbox().(outbox.Desk).List(s.ctx, outbox.Filter{MessageID: id})
	if err != nil || len(rows) != 1 {
		s.t.Fatalf("event %s: %d rows, %v", id, len(rows), err)
	}
	return rows[0]
}

func (s *shop) desk() outbox.Desk { return s.store.Outbox().(outbox.Desk) }

// relay runs a Relay until the test ends, or stop is called. Its Lease outlasts
// what a busy machine stands still: after one that ran out, events come twice,
// and rightly.
func (s *shop) relay(cfg outbox.RelayConfig) (stop func()) {
	s.t.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = 20 * time.Second
	}
	r, err := s.box.NewRelay(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			s.t.Errorf("the relay: %v", err)
		}
	})
	stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(stop)
	return stop
}

// script is a Publisher that does what a test says.
type script struct {
	mu   sync.Mutex
	got  []broker.Message
	more chan struct{}
	// refuse says what becomes of a message; nil: it is confirmed.
	refuse func(m broker.Message) error
	// whole says what becomes of a call.
	whole func(m []broker.Message) error
}

func newScript() *script { return &script{more: make(chan struct{})} }

func (p *script) Publish(ctx context.Context, m ...broker.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.whole != nil {
		if err := p.whole(m); err != nil {
			return err
		}
	}
	failed := &broker.PublishError{Errs: make([]error, len(m))}
	for i := range m {
		if p.refuse != nil {
			failed.Errs[i] = p.refuse(m[i])
		}
		if failed.Errs[i] == nil {
			p.got = append(p.got, m[i].Clone())
		}
	}
	close(p.more)
	p.more = make(chan struct{})
	if errors.Join(failed.Errs...) != nil {
		return failed
	}
	return nil
}

func (p *script) Close(context.Context) error { return nil }

// say changes what it does.
func (p *script) say(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *script) ids() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.got {
		ids = append(ids, m.ID)
	}
	return ids
}

// wait waits until all of these were published, and fails the test if it was
// in another order, key by key.
func (p *script) wait(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		more := p.more
		p.mu.Unlock()
		got := p.ids()
		missing := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(got, id) })
		if len(missing) == 0 {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q were not published; %q were", missing, got)
		}
	}
}

// firsts returns the ids of a key in the order of their first copies.
func firsts(ids []string, key string) string {
	var all []string
	for _, id := range ids {
		if strings.HasPrefix(id, key+"/") && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return strings.Join(all, " ")
}

// watch is an Observer for which a test can wait.
type watch struct {
	mu   sync.Mutex
	all  []outbox.Event
	more chan struct{}
}

func newWatch() *watch { return &watch{more: make(chan struct{})} }

func (w *watch) observe(e outbox.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, e)
	close(w.more)
	w.more = make(chan struct{})
}

func (w *watch) wait(t *testing.T, n int, kind outbox.EventKind) {
	t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		count, more := 0, w.more
		for _, e := range w.all {
			if e.Kind == kind {
				count++
			}
		}
		all := fmt.Sprintf("%+v", w.all)
		w.mu.Unlock()
		if count >= n {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%d events of kind %d, want %d: %s", count, kind, n, all)
		}
	}
}
