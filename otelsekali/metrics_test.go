package otelsekali_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/otelsekali"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/retention"
)

// publisher is not there at first, and refuses a topic.
type publisher struct {
	broker.Publisher
	calls atomic.Int32
}

func (p *publisher) Publish(ctx context.Context, all ...broker.Message) error {
	if p.calls.Add(1) == 1 {
		return errors.New("the broker is not there")
	}
	failed := &broker.PublishError{Errs: make([]error, len(all))}
	any := false
	for i, m := range all {
		if m.Topic == "refused" {
			failed.Errs[i], any = broker.Refuse(errors.New("no such topic")), true
		} else if err := p.Publisher.Publish(ctx, m); err != nil {
			failed.Errs[i], any = err, true
		}
	}
	if any {
		return failed
	}
	return nil
}

// consumes has a consumer meet all that a consumer can meet.
func consumes(s *shop) {
	s.source.Fail(faulty.Receive, 1, errors.New("the broker is not there"))
	stop := s.start(s.config())
	s.publish("order-1", "body-1", "")
	s.await(1, "sekali.messages", "outcome", "processed")
	s.await(1, "sekali.settled", "", "")
	s.publish("order-1", "body-1", "")
	s.publish("order-1", "body-2", "")
	s.publish("order-2", "body-1", "", "fails", "once")
	s.publish("order-3", "body-1", "ordered", "fails", "for good")
	s.await(1, "sekali.dead_letters", "reason", "permanent")
	s.publish("order-4", "body-1", "ordered")
	s.publish("order-5", "body-1", "", "version", "2")
	s.await(3, "sekali.messages", "outcome", "processed")
	s.publish("order-6", "body-1", "", "version", "1")
	for _, outcome := range []string{"duplicate", "stale", "conflict"} {
		s.await(1, "sekali.messages", "outcome", outcome)
	}
	s.await(1, "sekali.held", "", "")
	// What is not acknowledged comes again, to the next one.
	s.source.Fail(faulty.Settle, 1, errors.New("the broker went away"))
	s.publish("order-7", "body-1", "")
	s.await(1, "sekali.troubles", "kind", "settle failed")
	stop()
	s.source = faulty.NewSource(s.broker.NewSource("stock-service"))
	stop = s.start(s.config())
	s.await(1, "sekali.duplicates", "cause", "redelivery")
	stop()
}

// relays has a relay publish, be refused, and find nobody there.
func relays(s *shop) {
	box := outbox.New(s.store)
	tx, err := s.db.BeginTx(s.t.Context(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, topic := range []string{"sent", "refused"} {
		if _, err := box.Add(s.t.Context(), tx, outbox.Message{Topic: topic, Body: []byte("body-1")}); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		s.t.Fatal(err)
	}
	relay, err := box.NewRelay(outbox.RelayConfig{
		Publisher: &publisher{Publisher: s.broker}, MaxAttempts: 2, RetryInitial: time.Millisecond, RetryMax: time.Millisecond, Observer: s.telemetry.Relay,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	stop := s.beside(relay.Run)
	s.await(1, "sekali.outbox.published", "", "")
	s.await(1, "sekali.outbox.given_up", "", "")
	stop()
}

// prunes has a pruner remove a key, and another be refused.
func prunes(s *shop) {
	if _, err := s.db.Exec(`UPDATE processed_messages SET processed_at = '2020-01-02 03:04:05' WHERE message_key = 'order-2'`); err != nil {
		s.t.Fatal(err)
	}
	const day = 24 * time.Hour
	for _, keep := range []time.Duration{30 * day, 2 * day} {
		pruner, err := retention.New(s.store, retention.Config{Policy: retention.Policy{Keys: keep, MaxDuplicateAge: 10 * day}})
		if err != nil {
			s.t.Fatal(err)
		}
		s.telemetry.Pruned(pruner.Run(s.t.Context()))
	}
}

// parks has an effect whose outcome nobody knows.
func parks(s *shop) {
	ledger := effect.New(s.store.Effects(), "stock-service", effect.Config{})
	for range 2 { // it is unknown, and then parked
		_, err := effect.Do(s.t.Context(), ledger, "order-8", "label", func(context.Context, effect.Call) (int, error) {
			return 0, errors.New("no answer")
		})
		if err == nil {
			s.t.Fatal("an effect that fails did not")
		}
	}
}

// everything is the scenario in which every metric is made.
func everything(t *testing.T) *shop {
	s := newShop(t)
	consumes(s)
	relays(s)
	prunes(s)
	parks(s)
	stop, err := s.telemetry.Watch(s.store.Admin().Health, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheTableHasEveryMetricAndEveryMetricOfItIsMade(t *testing.T) {
	found := everything(t).collected()
	for _, m := range otelsekali.Metrics() {
		if len(found[m.Name]) == 0 {
			t.Errorf("%s is in the table and never made", m.Name)
		}
		for _, p := range found[m.Name] {
			var names []string
			for _, a := range p.attributes.ToSlice() {
				names = append(names, string(a.Key))
				if v := a.Value.String(); strings.Contains(v, "order-") || strings.Contains(v, "body-") {
					t.Errorf("%s has an attribute %s: %q: there is no end of those", m.Name, a.Key, v)
				}
			}
			if !slices.Equal(names, slices.Sorted(slices.Values(m.Attributes))) {
				t.Errorf("%s has attributes %q, and the table says %q", m.Name, names, m.Attributes)
			}
		}
		delete(found, m.Name)
	}
	for name := range found {
		t.Errorf("%s is not in the table", name)
	}
}

func TestMetricsTellWhatHappened(t *testing.T) {
	found := everything(t).collected()
	for _, c := range []struct {
		name, attribute, value string
		want                   float64
	}{
		{"sekali.messages", "outcome", "processed", 4},
		{"sekali.messages", "outcome", "stale", 1},
		{"sekali.messages", "outcome", "conflict", 1},
		{"sekali.duplicates", "cause", "repeat", 1},
		{"sekali.handler.duration", "", "", 4},
		{"sekali.retries", "cause", "attempt failed", 1},
		{"sekali.dead_letters", "reason", "conflict", 1},
		{"sekali.dead_letters", "reason", "permanent", 1},
		{"sekali.held", "", "", 1},
		{"sekali.troubles", "kind", "receive failed", 1},
		{"sekali.troubles", "kind", "settle failed", 1},
		{"sekali.consumers", "", "", 0},
		{"sekali.outbox.published", "", "", 1},
		{"sekali.outbox.given_up", "", "", 1},
		{"sekali.outbox.retries", "", "", 1},
		{"sekali.outbox.interruptions", "", "", 1},
		{"sekali.pruned", "rows", "keys", 1},
		{"sekali.prune.runs", "result", "done", 1},
		{"sekali.prune.runs", "result", "failed", 1},
		{"sekali.dead_letters.waiting", "status", "open", 2},
		{"sekali.dead_letters.waiting", "status", "held", 1},
		{"sekali.effects.waiting", "state", "parked", 1},
		{"sekali.effects.waiting", "state", "unknown", 0},
		{"sekali.outbox.depth", "status", "pending", 0},
		{"sekali.outbox.depth", "status", "parked", 1},
		{"sekali.database.up", "", "", 1},
	} {
		if got := value(found, c.name, c.attribute, c.value); got != c.want {
			t.Errorf("%s with %s %q is %v, want %v", c.name, c.attribute, c.value, got, c.want)
		}
	}
	if ages, all := value(found, "sekali.duplicate.age", "", ""), value(found, "sekali.duplicates", "", ""); ages != all {
		t.Errorf("%v duplicates, and the ages of %v", all, ages)
	}
	if n, settled := value(found, "sekali.messages", "", ""), value(found, "sekali.settled", "", ""); settled == 0 || settled > n+2 {
		t.Errorf("%v messages, and %v settled", n, settled)
	}
}

// The docs' table is the code's: `go test ./otelsekali -run Docs -v` prints it.
func TestTheDocsHaveTheSameTable(t *testing.T) {
	text, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var docs []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `sekali.") {
			docs = append(docs, strings.TrimSpace(line))
		}
	}
	var code []string
	for _, m := range otelsekali.Metrics() {
		code = append(code, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", m.Name, m.Kind, m.Unit, strings.Join(m.Attributes, ", "), m.Help))
	}
	if !slices.Equal(docs, code) {
		t.Errorf("docs/telemetry.md has\n%s\nand the code\n%s", strings.Join(docs, "\n"), strings.Join(code, "\n"))
	}
}

func TestEachMetricIsNamedOnce(t *testing.T) {
	names := map[string]bool{}
	for _, m := range otelsekali.Metrics() {
		if names[m.Name] || m.Help == "" {
			t.Errorf("%s is there twice, or has no help", m.Name)
		}
		names[m.Name] = true
	}
}

func TestALetterWhoseReasonIsUnknownIsCounted(t *testing.T) {
	s := newShop(t)
	for _, r := range append(deadletter.Reasons(), "new", "newer") {
		s.telemetry.Observe(sekali.Event{Kind: sekali.DeadLettered, Consumer: "c", Reason: r})
	}
	found := s.collected()
	if n := len(found["sekali.dead_letters"]); n != len(deadletter.Reasons())+1 || value(found, "sekali.dead_letters", "reason", "other") != 2 {
		t.Errorf("%v", found)
	}
}

func TestAnInterruptionBesideAMessageIsNoRetryAndOneOfABatchIsSeveral(t *testing.T) {
	s := newShop(t)
	s.telemetry.Observe(sekali.Event{Kind: sekali.Interrupted, Consumer: "c"})
	s.telemetry.Observe(sekali.Event{Kind: sekali.Interrupted, Consumer: "c", Pause: 1, Count: 3})
	s.telemetry.Observe(sekali.Event{Kind: sekali.Conflicted, Consumer: "c", Pause: 1})
	found := s.collected()
	if value(found, "sekali.retries", "cause", "interrupted") != 3 || value(found, "sekali.retries", "cause", "conflicted") != 1 {
		t.Errorf("%v", found["sekali.retries"])
	}
}

func TestEveryEventIsTakenOfAConsumerThatIsNew(t *testing.T) {
	s := newShop(t)
	for kind := range sekali.EventKind(40) {
		s.telemetry.Observe(sekali.Event{Kind: kind, Consumer: fmt.Sprint("c", kind), Outcome: sekali.Outcome(kind), Cause: sekali.Cause(kind)})
	}
	if len(slices.Collect(maps.Keys(s.collected()))) < 10 {
		t.Error("hardly anything was counted")
	}
}

// backlog is a database that answers as it is told.
type backlog struct {
	asked atomic.Int32
	err   error
	age   time.Duration
}

func (b *backlog) Backlog(ctx context.Context) (admin.Overview, error) {
	b.asked.Add(1)
	if _, bounded := ctx.Deadline(); !bounded {
		return admin.Overview{}, errors.New("nothing bounds the question")
	}
	return admin.Overview{Outbox: outbox.Stats{Pending: 3, Lag: b.age}}, b.err
}

func TestTheDatabaseIsAskedOnceInATimeHoweverManyCollect(t *testing.T) {
	s, b := newShop(t), &backlog{age: time.Minute}
	stop, err := s.telemetry.Watch(b, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := value(s.collected(), "sekali.outbox.lag", "", ""); got != 60 {
			t.Errorf("the lag is %v s", got)
		}
	}
	if n := b.asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, there := s.collected()["sekali.outbox.lag"]; there {
		t.Error("it is told after its end")
	}
	if _, err := s.telemetry.Watch(b, -1); err == nil {
		t.Error("a negative time was taken")
	}
}

func TestWhatADatabaseDoesNotTellIsNotTold(t *testing.T) {
	s, b := newShop(t), &backlog{err: sql.ErrConnDone}
	stop, err := s.telemetry.Watch(b, time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	found := s.collected()
	if _, there := found["sekali.outbox.lag"]; there || len(found["sekali.database.up"]) != 1 || value(found, "sekali.database.up", "", "") != 0 {
		t.Errorf("%v", found)
	}
	b.err = nil
	if found = s.collected(); value(found, "sekali.database.up", "", "") != 1 || value(found, "sekali.outbox.depth", "status", "pending") != 3 {
		t.Errorf("it is back, and what is told is %v", found)
	}
}
