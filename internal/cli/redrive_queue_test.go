package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/cli"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store/sqlstore"
)

// queues makes streams ORDERS and DEAD on an embedded server.
func queues(t *testing.T) (url string, js jetstream.JetStream) {
	t.Helper()
	url = natstest.Start(t)
	js, err := jetstream.New(natstest.Connect(t, url).Conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []jetstream.StreamConfig{
		{Name: "ORDERS", Subjects: []string{"orders", "orders.redrive"}},
		{Name: "DEAD", Subjects: []string{"dead"}},
	} {
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return url, js
}

// stored returns "subject key body" of each message of ORDERS.
func stored(t *testing.T, js jetstream.JetStream) (all []string) {
	t.Helper()
	s, err := js.Stream(t.Context(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); n <= info.State.LastSeq; n++ {
		m, err := s.GetMsg(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m.Subject+" "+deadletter.UnescapeHeader(m.Header.Get(deadletter.HeaderKey))+" "+string(m.Data))
	}
	return all
}

func TestLettersOfABrokersQueueAreMovedToTheirConsumer(t *testing.T) {
	url, js := queues(t)
	database := letters(t)
	sink := deadletter.ToPublisher(natsbroker.NewPublisher(js), "dead")
	for _, l := range []deadletter.Letter{
		{Consumer: "stock", Key: "a\n", Reason: deadletter.Exhausted, Error: "no\nstock", Message: broker.Message{ID: "1", Topic: "orders", Body: []byte("A")}},
		{Consumer: "courier", Key: "b", Reason: deadletter.Permanent, Message: broker.Message{Topic: "orders", Body: []byte("B")}},
		{Consumer: "stock", Key: "c", Reason: deadletter.Permanent, Message: broker.Message{Topic: "orders", Body: []byte("C")}},
	} {
		if err := sink.Put(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	redrive := func(args ...string) result {
		return run(t, append([]string{"deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "500ms", "--database", database}, args...)...)
	}
	dry := redrive("--to", "orders.redrive", "--dry-run", "--output", "json")
	var list []struct{ Consumer, Key, Reason, To string }
	if err := json.Unmarshal([]byte(dry.stdout), &list); err != nil || dry.status != 0 || len(list) != 3 || list[1].Consumer != "courier" || list[1].To != "orders.redrive" {
		t.Fatalf("dry run: %d %s%s", dry.status, dry.stdout, dry.stderr)
	}
	if got := stored(t, js); len(got) > 0 {
		t.Fatalf("a dry run sent %q", got)
	}
	if r := redrive("--to", "orders.redrive"); r.status != 2 || !strings.Contains(r.stderr, "--yes") {
		t.Errorf("without --yes: %d %q", r.status, r.stderr)
	}
	some := redrive("--to", "orders.redrive", "--consumer", "stock", "--yes")
	if some.status != 0 || !strings.Contains(some.stderr, "2 dead letters sent") {
		t.Fatalf("moved: %d %s%s", some.status, some.stdout, some.stderr)
	}
	if got := stored(t, js); !slices.Equal(got, []string{"orders.redrive a\n A", "orders.redrive c C"}) {
		t.Errorf("sent: %q", got)
	}
	origin := redrive("--to-origin", "--yes")
	if origin.status != 0 || !strings.Contains(origin.stderr, "other consumers") {
		t.Fatalf("to the origin: %d %s%s", origin.status, origin.stdout, origin.stderr)
	}
	if got := stored(t, js); len(got) != 3 || got[2] != "orders b B" {
		t.Errorf("sent: %q", got)
	}
	if again := redrive("--to-origin", "--yes"); again.status != 0 || !strings.Contains(again.stderr, "0 dead letters sent") {
		t.Errorf("the queue is not empty: %d %s%s", again.status, again.stdout, again.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := js.Publish(ctx, "dead", []byte("no letter")); err != nil {
		t.Fatal(err)
	}
	if r := redrive("--to-origin", "--yes"); r.status != 1 || !strings.Contains(r.stdout, "not a dead letter") {
		t.Errorf("what is no letter: %d %s%s", r.status, r.stdout, r.stderr)
	}
}

func TestALetterOfTheDatabaseIsSentToWhereItCameFrom(t *testing.T) {
	url, js := queues(t)
	database := letters(t) // 1 came from nowhere known, and NATS cannot carry a header of 2
	db, err := dburl.Open(t.Context(), database, false)
	if err != nil {
		t.Fatal(err)
	}
	err = sqlstore.New(db.SQL, db.Dialect()).DeadLetters().Put(t.Context(), deadletter.Letter{
		Consumer: "stock-service", Key: "k\n", Reason: deadletter.Exhausted,
		Message: broker.Message{ID: "7", Topic: "orders", Body: []byte("B")},
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	send := func(args ...string) result {
		return run(t, append([]string{"deadletters", "redrive", "--broker", url, "--to-origin", "--database", database}, args...)...)
	}
	if r := send("4", "--note", "mended"); r.status != 0 || !strings.Contains(r.stdout, "sent") || !strings.Contains(r.stderr, "other consumers") {
		t.Fatalf("%d %s%s", r.status, r.stdout, r.stderr)
	}
	if got := stored(t, js); !slices.Equal(got, []string{"orders k\n B"}) {
		t.Errorf("sent: %q", got)
	}
	if r := run(t, "deadletters", "show", "4", "--database", database); !strings.Contains(r.stdout, "to orders, mended") {
		t.Errorf("the trail: %s", r.stdout)
	}
	// It was the wrong broker.
	if r := send("4", "--force", "--note", "to the other one"); r.status != 0 {
		t.Errorf("sent again: %d %s%s", r.status, r.stdout, r.stderr)
	}
	if got := stored(t, js); !slices.Equal(got, []string{"orders k\n B", "orders k\n B"}) {
		t.Errorf("sent: %q", got)
	}
	if r := run(t, "deadletters", "show", "4", "--database", database); !strings.Contains(r.stdout, "force, to orders, to the other one") {
		t.Errorf("the trail: %s", r.stdout)
	}
	for _, id := range []string{"1", "2", "4"} { // no origin, no way to carry it, sent already
		if r := send(id); r.status != 1 {
			t.Errorf("letter %s: %d %s%s", id, r.status, r.stdout, r.stderr)
		}
	}
	if got := stored(t, js); len(got) != 2 {
		t.Errorf("sent: %q", got)
	}
}

func TestALetterOfAQueueIsLookedAtWithoutAPlaceToSendItTo(t *testing.T) {
	url, js := queues(t)
	if err := deadletter.ToPublisher(natsbroker.NewPublisher(js), "dead").Put(t.Context(), deadletter.Letter{
		Consumer: "stock", Key: "a", Reason: deadletter.Exhausted, Error: "no stock", Message: broker.Message{Topic: "orders", Body: []byte("A")},
	}); err != nil {
		t.Fatal(err)
	}
	r := run(t, "deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "500ms", "--dry-run")
	if r.status != 0 || !strings.Contains(r.stdout, "no stock") || !strings.Contains(r.stderr, "1 dead letters to be sent") {
		t.Errorf("%+v", r)
	}
	r = run(t, "deadletters", "redrive", "--broker", url, "--from-queue", "dead", "--idle", "5s", "--dry-run")
	if r.status != 1 || !strings.Contains(r.stderr, `"dead" is a subject, and its stream is "DEAD"`) {
		t.Errorf("a subject in the place of a stream: %+v", r)
	}
}

func TestAnInterruptionLosesNothingOfWhatWasMoved(t *testing.T) {
	url, js := queues(t)
	database := letters(t)
	sink := deadletter.ToPublisher(natsbroker.NewPublisher(js), "dead")
	const all = 50
	for i := range all {
		l := deadletter.Letter{Consumer: "stock", Key: fmt.Sprint("k", i), Message: broker.Message{Topic: "orders", Body: []byte("A")}}
		if err := sink.Put(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	c, err := js.CreateOrUpdateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.Consume(func(jetstream.Msg) { interrupt() })
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	var stdout, stderr bytes.Buffer
	status := cli.Run(ctx, []string{
		"deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "1m", "--to", "orders.redrive", "--yes", "--output", "json", "--database", database,
	}, strings.NewReader(""), &stdout, &stderr)
	var list []struct{ Key, Error string }
	if err := json.Unmarshal(stdout.Bytes(), &list); err != nil || status != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Fatalf("%d %v %s%s", status, err, stdout.String(), stderr.String())
	}
	sent := stored(t, js)
	if len(list) != len(sent) || len(sent) == 0 {
		t.Errorf("%d were sent, and %d are told", len(sent), len(list))
	}
	for _, l := range list {
		if l.Error != "" {
			t.Errorf("%s: %s", l.Key, l.Error)
		}
	}
	rest := run(t, "deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "1s", "--to", "orders.redrive", "--yes", "--database", database)
	if rest.status != 0 || len(stored(t, js)) != all {
		t.Errorf("the rest: %d of %d sent, %+v", len(stored(t, js)), all, rest)
	}
}

func TestSendingThatCannotBeMeantIsRefused(t *testing.T) {
	database := letters(t)
	for _, args := range [][]string{
		{"1", "--to", "x"},
		{"1", "--broker", "nats://127.0.0.1:1"},
		{"1", "--broker", "smoke://user:secret@hill", "--to", "x"},
		{"1", "--broker", "nats://127.0.0.1:1", "--to", "x", "--to-origin"},
		{"1", "--broker", "nats://127.0.0.1:1", "--to", "x", "--effects"},
		{"--broker", "nats://127.0.0.1:1", "--to", "x", "--from-queue", "Q", "--as-key", "k", "--yes"},
		{"1", "--broker", "nats://127.0.0.1:1", "--to", "x", "--from-queue", "Q", "--yes"},
		{"--broker", "nats://127.0.0.1:1", "--to", "x", "--from-queue", "Q"},
	} {
		r := run(t, append(append([]string{"deadletters", "redrive"}, args...), "--database", database)...)
		if r.status != 2 || strings.Count(r.stderr, "\n") != 1 || strings.Contains(r.stderr, "secret") {
			t.Errorf("%q: %d %q", args, r.status, r.stderr)
		}
	}
}

// A consumer that runs, and fails again, puts letters back into the queue while
// they are moved out of it.
func TestAQueueIntoWhichLettersComeBackIsNotMovedForEver(t *testing.T) {
	url, js := queues(t)
	database := letters(t)
	sink := deadletter.ToPublisher(natsbroker.NewPublisher(js), "dead")
	l := deadletter.Letter{Consumer: "stock", Key: "k", Message: broker.Message{Topic: "orders", Body: []byte("A")}}
	if err := sink.Put(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	c, err := js.CreateOrUpdateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	running, err := c.Consume(func(m jetstream.Msg) {
		_ = m.Ack()
		_ = sink.Put(context.Background(), l)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Stop()
	r := run(t, "deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "500ms", "--to", "orders.redrive", "--yes", "--database", database)
	if r.status != 1 || !strings.Contains(r.stderr, "1 dead letters sent") || !strings.Contains(r.stdout, "failed again") {
		t.Errorf("%d %s%s", r.status, r.stdout, r.stderr)
	}
}

func TestWhatMayHaveBeenProcessedIsSentOnlyIfItIsMeant(t *testing.T) {
	url, js := queues(t)
	database := letters(t)
	sink := deadletter.ToPublisher(natsbroker.NewPublisher(js), "dead")
	for _, l := range []deadletter.Letter{
		{Consumer: "stock", Key: "a", Reason: deadletter.Exhausted, Message: broker.Message{Topic: "orders", Body: []byte("A")}},
		{Consumer: "stock", Key: "b", Reason: deadletter.TooOld, Message: broker.Message{Topic: "orders", Body: []byte("B")}},
	} {
		if err := sink.Put(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	redrive := func(args ...string) result {
		return run(t, append([]string{"deadletters", "redrive", "--broker", url, "--from-queue", "DEAD", "--idle", "500ms", "--to", "orders.redrive", "--database", database}, args...)...)
	}
	for _, how := range []string{"--dry-run", "--yes"} {
		if r := redrive(how); r.status != 1 || !strings.Contains(r.stdout, "--reason too-old") {
			t.Errorf("%s: %d %s%s", how, r.status, r.stdout, r.stderr)
		}
	}
	if got := stored(t, js); !slices.Equal(got, []string{"orders.redrive a A"}) {
		t.Errorf("sent: %q", got)
	}
	if r := redrive("--yes", "--reason", "too-old"); r.status != 0 {
		t.Errorf("by its reason: %d %s%s", r.status, r.stdout, r.stderr)
	}
	if got := stored(t, js); !slices.Equal(got, []string{"orders.redrive a A", "orders.redrive b B"}) {
		t.Errorf("sent: %q", got)
	}
}
