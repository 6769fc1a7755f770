package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/outbox"
)

func TestRelayOnSQLite(t *testing.T) {
	relayTests(t, func(t *testing.T) *dbtest.DB { return dbtest.SQLite(t) })
}

// relayTests are those of a Relay, on a database.
func relayTests(t *testing.T, open func(*testing.T) *dbtest.DB) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, *shop)
	}{
		{"events are published in order, recorded, and bear their ids", published},
		{"an event that the broker refuses stops its key alone", refusedKey},
		{"an event without a key that is refused is tried again", refusedSingle},
		{"an event that is refused for ever is parked, and others pass it", parkedPass},
		{"an event that is refused for ever is parked, and its key held until somebody decides", parkedHold},
		{"an event that cannot be read is parked at once", unreadable},
		{"a broker that is away is waited for and blames nobody", brokerAway},
		{"what could not be recorded goes out again under the same id", notRecorded},
		{"a relay that loses its lanes while it publishes changes nothing and overtakes nothing", lateRelay},
		{"a relay that stops gives its lanes to others at once", stopGives},
		{"relays share their work, and a key's events stay in order", shared},
		{"a commit by the store wakes the relay", woken},
		{"an event comes when its time has come", notBefore},
		{"a publisher that is closed ends the relay", publisherClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.f(t, newShop(t, open(t)))
		})
	}
}

func published(t *testing.T, s *shop) {
	p, w := newScript(), newWatch()
	s.add("a/1", "b/1", "a/2", "x", "a/3", "b/2")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe})
	p.wait(t, "a/1", "b/1", "a/2", "x", "a/3", "b/2")
	s.add("a/4")
	p.wait(t, "a/4")
	if got := firsts(p.ids(), "a"); got != "a/1 a/2 a/3 a/4" {
		t.Errorf("the order was %s", got)
	}
	w.wait(t, 2, outbox.Sent)
	if n := len(p.ids()); n != 7 {
		t.Errorf("%d were published", n)
	}
	m := p.got[0]
	id, _ := m.Headers.Get(outbox.IDHeader)
	key, _ := m.Headers.Get(outbox.OrderingKeyHeader)
	if m.ID != "a/1" || string(id) != "a/1" || string(key) != "a" || m.Topic != "orders" || string(m.OrderingKey) != "a" || string(m.Body) != "a/1" {
		t.Errorf("the first came as %+v", m)
	}
	for _, id := range []string{"a/1", "x", "a/4"} {
		if r := s.row(id); r.Status != outbox.Published || r.PublishedAt.IsZero() {
			t.Errorf("%s is %s", id, r.Status)
		}
	}
}

// refuses has a Publisher refuse events whose ids begin so, while on.
func refuses(p *script, prefix string, on *atomic.Bool) {
	p.refuse = func(m broker.Message) error {
		if on.Load() && strings.HasPrefix(m.ID, prefix) {
			return broker.Refuse(errors.New("no queue takes it"))
		}
		return nil
	}
}

func refusedKey(t *testing.T, s *shop) {
	p, w, on := newScript(), newWatch(), &atomic.Bool{}
	on.Store(true)
	refuses(p, "a/1", on)
	s.add("a/1", "a/2", "b/1", "a/3")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, MaxAttempts: 1_000_000, RetryMax: 100 * time.Millisecond})
	p.wait(t, "b/1")
	w.wait(t, 3, outbox.Retried)
	s.add("b/2", "a/4")
	p.wait(t, "b/2")
	if got := firsts(p.ids(), "a"); got != "" {
		t.Errorf("%s overtook", got)
	}
	if r := s.row("a/1"); r.Attempts < 2 || r.Status != outbox.Pending || r.Error == "" {
		t.Errorf("it is %+v", r)
	}
	on.Store(false)
	p.wait(t, "a/4")
	if got := firsts(p.ids(), "a"); got != "a/1 a/2 a/3 a/4" {
		t.Errorf("the order was %s", got)
	}
}

func refusedSingle(t *testing.T, s *shop) {
	p, w, on := newScript(), newWatch(), &atomic.Bool{}
	on.Store(true)
	refuses(p, "x", on)
	s.add("x", "y")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, MaxAttempts: 1_000_000, RetryMax: 100 * time.Millisecond})
	p.wait(t, "y")
	w.wait(t, 2, outbox.Retried)
	on.Store(false)
	p.wait(t, "x")
}

func parkedPass(t *testing.T, s *shop) {
	p, w, on := newScript(), newWatch(), &atomic.Bool{}
	on.Store(true)
	refuses(p, "a/1", on)
	s.add("a/1", "a/2", "b/1")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, MaxAttempts: 3, RetryMax: 100 * time.Millisecond})
	w.wait(t, 1, outbox.GivenUp)
	p.wait(t, "a/2", "b/1")
	if r := s.row("a/1"); r.Status != outbox.Parked || r.Attempts != 3 || !strings.Contains(r.Error, "no queue takes it") {
		t.Errorf("it is %+v", r)
	}
	on.Store(false)
	if err := s.desk().Retry(s.ctx, s.row("a/1").ID, outbox.Decision{By: "Ayu"}); err != nil {
		t.Fatal(err)
	}
	p.wait(t, "a/1")
}

func parkedHold(t *testing.T, s *shop) {
	p, w, on := newScript(), newWatch(), &atomic.Bool{}
	on.Store(true)
	refuses(p, "a/1", on)
	s.add("a/1", "a/2", "b/1")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, MaxAttempts: 2, RetryMax: 100 * time.Millisecond, OnParked: outbox.HoldKey})
	w.wait(t, 1, outbox.GivenUp)
	s.add("a/3", "b/2")
	p.wait(t, "b/1", "b/2")
	if got := firsts(p.ids(), "a"); got != "" {
		t.Errorf("%s were not held", got)
	}
	on.Store(false)
	if err := s.desk().Retry(s.ctx, s.row("a/1").ID, outbox.Decision{By: "Ayu"}); err != nil {
		t.Fatal(err)
	}
	p.wait(t, "a/3")
	if got := firsts(p.ids(), "a"); got != "a/1 a/2 a/3" {
		t.Errorf("the order was %s", got)
	}
}

func unreadable(t *testing.T, s *shop) {
	p, w := newScript(), newWatch()
	s.add("a/1", "a/2", "b/1")
	if _, err := s.db.Exec(`UPDATE outbox_messages SET headers = '["no object"]' WHERE message_id = 'a/1'`); err != nil {
		t.Fatal(err)
	}
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe})
	w.wait(t, 1, outbox.GivenUp)
	p.wait(t, "a/2", "b/1")
	if r := s.row("a/1"); r.Status != outbox.Parked || !strings.Contains(r.Error, "JSON object") {
		t.Errorf("it is %+v", r)
	}
}

func brokerAway(t *testing.T, s *shop) {
	p, w := newScript(), newWatch()
	away := errors.New("connection refused")
	p.whole = func([]broker.Message) error { return away }
	s.add("a/1", "b/1", "x", "a/2")
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, MaxAttempts: 1})
	w.wait(t, 2, outbox.Interrupted)
	p.say(func() { // each message fails, and none was refused: that is as good as away
		p.whole = nil
		p.refuse = func(broker.Message) error { return away }
	})
	w.wait(t, 4, outbox.Interrupted)
	p.say(func() { p.refuse = nil })
	p.wait(t, "a/1", "b/1", "x", "a/2")
	w.wait(t, 1, outbox.Sent)
	for _, id := range []string{"a/1", "b/1", "x", "a/2"} {
		if r := s.row(id); r.Attempts != 0 {
			t.Errorf("%s is blamed: %+v", id, r)
		}
	}
}

// unwritable are rows of which nothing can be recorded for a while.
type unwritable struct {
	outbox.Rows
	left *atomic.Int32
}

func (u unwritable) Done(ctx context.Context, relay string, published []int64, failed []outbox.Failure) error {
	if u.left.Add(-1) >= 0 {
		return errors.New("the database is away")
	}
	return u.Rows.Done(ctx, relay, published, failed)
}

func notRecorded(t *testing.T, s *shop) {
	p, left := newScript(), &atomic.Int32{}
	left.Store(2)
	s.add("a/1", "a/2", "b/1")
	s.runOn(unwritable{s.store.Outbox(), left}, outbox.RelayConfig{Publisher: p})
	p.wait(t, "a/1", "a/2", "b/1")
	s.until("all are recorded", func() bool { return s.row("a/2").Status == outbox.Published })
	// Others of the same id may have gone out, none under another.
	if got := firsts(p.ids(), "a"); got != "a/1 a/2" {
		t.Errorf("the order was %s", got)
	}
}

// runOn runs a Relay of rows until the test ends, or the returned function is
// called.
func (s *shop) runOn(rows outbox.Rows, cfg outbox.RelayConfig) (stop func()) {
	s.t.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = time.Second
	}
	r, err := outbox.NewRelay(rows, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			s.t.Errorf("the relay: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return stop
}

// until waits for something in the database, which tells nobody.
func (s *shop) until(what string, is func() bool) {
	s.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); !is(); <-again.C {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// frozen are rows of a relay that stands still: its lease is not renewed while
// it does.
type frozen struct {
	outbox.Rows
	still *atomic.Bool
}

func (f frozen) Tend(ctx context.Context, relay string, lease time.Duration, leave []int) ([]int, int, error) {
	if f.still.Load() {
		return nil, 0, errors.New("nothing is heard of it")
	}
	return f.Rows.Tend(ctx, relay, lease, leave)
}

func lateRelay(t *testing.T, s *shop) {
	p, still, entered, release := newScript(), &atomic.Bool{}, make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	late := newScript()
	late.whole = func([]broker.Message) error {
		if once.CompareAndSwap(false, true) {
			still.Store(true)
			close(entered)
			<-release
		}
		return nil
	}
	s.add("a/1", "a/2", "b/1", "a/3")
	stop := s.runOn(frozen{s.store.Outbox(), still}, outbox.RelayConfig{Publisher: late})
	<-entered
	s.relay(outbox.RelayConfig{Publisher: p})
	p.wait(t, "a/1", "a/2", "b/1", "a/3")
	s.until("all are recorded", func() bool { return s.row("a/3").Status == outbox.Published })
	recorded := s.row("a/1").PublishedAt
	close(release)
	s.add("a/4")
	p.wait(t, "a/4")
	stop()
	if got := late.ids(); len(got) != 2 { // the round that was under way
		t.Errorf("the late one published %q", got)
	}
	if again := s.row("a/1").PublishedAt; !again.Equal(recorded) {
		t.Errorf("the late one recorded: %v, was %v", again, recorded)
	}
	if got := firsts(p.ids(), "a"); got != "a/1 a/2 a/3 a/4" {
		t.Errorf("the order was %s", got)
	}
}

func stopGives(t *testing.T, s *shop) {
	first, second := newScript(), newScript()
	stop := s.relay(outbox.RelayConfig{Publisher: first, Lease: time.Hour})
	s.add("a/1")
	first.wait(t, "a/1")
	stop()
	s.add("a/2")
	s.relay(outbox.RelayConfig{Publisher: second, Lease: time.Hour})
	second.wait(t, "a/2")
}

func shared(t *testing.T, s *shop) {
	p := newScript()
	var each [3]atomic.Int32
	for i := range each {
		s.relay(outbox.RelayConfig{Publisher: counting{p, &each[i]}, Batch: 20})
	}
	var want []string
	// SQLite's lanes are coarse: all of these keys may fall to two of the three.
	alone := func() bool {
		publish := 0
		for i := range each {
			publish += int(min(each[i].Load(), 1))
		}
		return publish < 2
	}
	rounds := 0
	for end := time.Now().Add(patience); rounds < 40 || alone(); rounds++ {
		if time.Now().After(end) {
			t.Fatalf("after %d rounds one publishes everything", rounds)
		}
		var some []string
		for key := range 20 {
			some = append(some, fmt.Sprintf("k%d/%d", key, rounds))
		}
		s.add(some...)
		want = append(want, some...)
		if rounds >= 40 {
			p.wait(t, some...)
		}
	}
	p.wait(t, want...)
	for key := range 20 {
		var in []string
		for i := range rounds {
			in = append(in, fmt.Sprintf("k%d/%d", key, i))
		}
		if got := firsts(p.ids(), fmt.Sprintf("k%d", key)); got != strings.Join(in, " ") {
			t.Errorf("key %d: %s", key, got)
		}
	}
	if len(p.ids()) != len(want) {
		t.Errorf("%d were published, want %d: nothing was late, lost or cut", len(p.ids()), len(want))
	}
}

// counting counts what one relay of several publishes.
type counting struct {
	*script
	n *atomic.Int32
}

func (c counting) Publish(ctx context.Context, m ...broker.Message) error {
	c.n.Add(int32(len(m)))
	return c.script.Publish(ctx, m...)
}

func woken(t *testing.T, s *shop) {
	p, w := newScript(), newWatch()
	s.relay(outbox.RelayConfig{Publisher: p, Observer: w.observe, PollEvery: time.Hour})
	s.add("a/1")
	w.wait(t, 1, outbox.Sent)
	inbox := sekali.NewInbox(s.store, "shop")
	outcome, err := inbox.Process(s.ctx, "order-1", func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.box.Add(ctx, tx, outbox.Message{ID: "a/2", Topic: "orders", OrderingKey: []byte("a")})
		return err
	})
	if err != nil || outcome != sekali.Processed {
		t.Fatal(outcome, err)
	}
	p.wait(t, "a/2")
}

func notBefore(t *testing.T, s *shop) {
	p := newScript()
	tx, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(1500 * time.Millisecond)
	for _, m := range []outbox.Message{
		{ID: "a/1", Topic: "orders", OrderingKey: []byte("a"), NotBefore: due},
		{ID: "a/2", Topic: "orders", OrderingKey: []byte("a")},
	} {
		if _, err := s.box.Add(s.ctx, tx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.relay(outbox.RelayConfig{Publisher: p})
	p.wait(t, "a/1")
	if early := time.Until(due); early > 50*time.Millisecond {
		t.Errorf("it came %v too early", early)
	}
	if got := firsts(p.ids(), "a"); got != "a/2 a/1" {
		t.Errorf("the order was %s", got)
	}
}

func publisherClosed(t *testing.T, s *shop) {
	p := newScript()
	p.whole = func([]broker.Message) error { return fmt.Errorf("publish: %w", broker.ErrClosed) }
	s.add("a/1")
	r, err := s.box.NewRelay(outbox.RelayConfig{Publisher: p})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(s.ctx); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
	if err := r.Run(s.ctx); err == nil {
		t.Error("it ran twice")
	}
}

func TestARelayWithoutItsTablesSaysSo(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t, dbtest.Empty()))
	r, err := s.box.NewRelay(outbox.RelayConfig{Publisher: newScript()})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(s.ctx); err == nil || !strings.Contains(err.Error(), "sekali migrate up") {
		t.Errorf("it ended with %v", err)
	}
}

func TestARelayThatCannotWorkIsRefused(t *testing.T) {
	for want, cfg := range map[string]outbox.RelayConfig{
		"no Publisher is set":       {},
		"Batch is negative":         {Publisher: newScript(), Batch: -1},
		"MaxAttempts is negative":   {Publisher: newScript(), MaxAttempts: -1},
		"PollEvery is negative":     {Publisher: newScript(), PollEvery: -1},
		"Lease is 10ms":             {Publisher: newScript(), Lease: 10 * time.Millisecond},
		"is less than RetryInitial": {Publisher: newScript(), RetryInitial: time.Second, RetryMax: time.Millisecond},
	} {
		if _, err := outbox.NewRelay(nil, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	if !slices.Equal(outbox.Statuses(), []outbox.Status{"pending", "published", "parked", "discarded"}) {
		t.Error("a status is missing")
	}
}
