package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/cli"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
)

// events makes a database with events: 1 and 2 of one ordering key, 3 parked
// and hostile, 4 for a topic that no stream has.
func events(t *testing.T) (url string, box func(...outbox.Message)) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	if r := run(t, "migrate", "up", "--database", url); r.status != 0 {
		t.Fatal(r.stderr)
	}
	db, err := dburl.Open(t.Context(), url, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := sqlstore.New(db.SQL, db.Dialect())
	box = func(events ...outbox.Message) {
		t.Helper()
		tx, err := db.SQL.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := outbox.New(s).AddAll(t.Context(), tx, events); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	box(
		outbox.Message{ID: "paid-1", Topic: "orders.paid", OrderingKey: []byte("order-42"), Body: []byte(`{"n":1}`)},
		outbox.Message{ID: "paid-2", Topic: "orders.paid", OrderingKey: []byte("order-42"), Body: []byte(`{"n":2}`)},
		outbox.Message{ID: "paid-3", Topic: "orders.paid", OrderingKey: []byte{}, Body: []byte("\xff\x1b[2J"), Headers: broker.Headers{{Name: "trace", Value: []byte("\x1b]0;x\a")}}},
		outbox.Message{ID: "lost-4", Topic: "nowhere"},
	)
	relayOf := "relay-of-a-test"
	lanes, _, err := s.Outbox().Tend(t.Context(), relayOf, time.Minute, nil)
	if err != nil || len(lanes) != outbox.Lanes {
		t.Fatal(lanes, err)
	}
	if err := s.Outbox().Done(t.Context(), relayOf, nil, []outbox.Failure{{ID: 3, Error: "too large \x1b[2J", Refused: true, Park: true}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Outbox().Leave(t.Context(), relayOf); err != nil {
		t.Fatal(err)
	}
	return url, box
}

type eventRow struct {
	ID          int    `json:"id"`
	MessageID   string `json:"message_id"`
	OrderingKey any    `json:"ordering_key"`
	Status      string `json:"status"`
	Error       string `json:"error"`
	Headers     any    `json:"headers"`
	Body        any    `json:"body"`
}

func listed(t *testing.T, url string, args ...string) (rows []eventRow) {
	t.Helper()
	r := run(t, append([]string{"outbox", "list", "--output", "json", "--database", url}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil || r.status != 0 {
		t.Fatalf("%q: %v, %+v", args, err, r)
	}
	return rows
}

func TestEventsOfTheOutboxAreListedAndShown(t *testing.T) {
	url, _ := events(t)
	for args, want := range map[string]int{
		"": 4, "--status parked": 1, "--status pending": 3, "--status published": 0, "--status all": 4, "--topic nowhere": 1,
		"--ordering-key order-42": 2, "--ordering-key=": 1, "--message-id paid-2": 1, "--limit 2": 2, "--before 3": 2,
	} {
		rows := listed(t, url, strings.Fields(args)...)
		if len(rows) != want {
			t.Errorf("%q: %d events, want %d", args, len(rows), want)
		}
		for i := 1; i < len(rows); i++ {
			if rows[i].ID >= rows[i-1].ID {
				t.Errorf("%q: not the newest first: %+v", args, rows)
			}
		}
	}
	table := run(t, "outbox", "list", "--database", url)
	if table.status != 0 || strings.ContainsAny(table.stdout, "\x1b\a") || !strings.Contains(table.stdout, "order-42") || !strings.Contains(table.stdout, "(empty)") {
		t.Errorf("%d %q", table.status, table.stdout)
	}
	shown := run(t, "outbox", "show", "3", "--database", url)
	if shown.status != 0 || strings.ContainsAny(shown.stdout, "\x1b\a") || !strings.Contains(shown.stdout, "too large") || !strings.Contains(shown.stdout, "trace: ") {
		t.Errorf("%d %q", shown.status, shown.stdout)
	}
	var row eventRow
	if r := run(t, "outbox", "show", "3", "--output", "json", "--database", url); json.Unmarshal([]byte(r.stdout), &row) != nil || row.Body.(map[string]any)["base64"] != "/xtbMko=" {
		t.Errorf("%+v", r)
	}
	if r := run(t, "outbox", "stats", "--database", url); r.status != 0 || !strings.Contains(r.stdout, "pending  3\nparked   1\nlag") {
		t.Errorf("%+v", r)
	}
	var stats map[string]float64
	if r := run(t, "outbox", "stats", "--output", "json", "--database", url); json.Unmarshal([]byte(r.stdout), &stats) != nil || stats["pending"] != 3 || stats["parked"] != 1 {
		t.Errorf("%+v", r)
	}
}

func TestEventsOfTheOutboxAreRetriedAndDiscarded(t *testing.T) {
	url, _ := events(t)
	do := func(args ...string) result { return run(t, append([]string{"outbox", "--database", url}, args...)...) }
	if r := do("retry", "--topic", "orders.paid"); r.status != 2 || !strings.Contains(r.stderr, "1 parked event would be chosen") {
		t.Errorf("without yes: %+v", r)
	}
	if listed(t, url, "--status", "parked")[0].ID != 3 {
		t.Error("it was done without yes")
	}
	if r := do("retry", "--topic", "orders.paid", "--yes", "--note", "the stream takes more now"); r.status != 0 || !strings.Contains(r.stdout, "pending") {
		t.Errorf("retry: %+v", r)
	}
	if r := do("retry", "3", "1"); r.status != 1 || !strings.Contains(r.stderr, "2 events as before") || !strings.Contains(r.stdout, "it is pending") {
		t.Errorf("retry of what is pending: %+v", r)
	}
	if r := do("discard", "4", "--by", "ayu"); r.status != 0 || listed(t, url, "--status", "discarded")[0].MessageID != "lost-4" {
		t.Errorf("discard: %+v", r)
	}
	if r := do("discard", "4"); r.status != 1 {
		t.Errorf("discard again: %+v", r)
	}
	if r := do("discard", "99"); r.status != 1 || !strings.Contains(r.stderr, "event 99: there is none") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{
		{"list", "--status", "sad"},
		{"list", "--limit", "0"},
		{"list", "--before", "-1"},
		{"show"},
		{"show", "x"},
		{"retry"},
		{"discard", "x"},
		{"retry", "1", "--topic", "t"},
		{"retry", "1", "--by", ""},
		{"relay"},
		{"relay", "--broker", "smtp://h"},
		{"relay", "--broker", "nats://h", "--lease", "1ms"},
		{"relay", "--broker", "nats://h", "--batch", "0"},
		{"relay", "--broker", "nats://h", "--on-parked", "wait"},
		{"relay", "--broker", "nats://h", "--listen", "postgres://h/d"},
	} {
		if r := do(args...); r.status != 2 || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

// buffer is written and read by two goroutines.
type buffer struct {
	ch  chan struct{}
	buf bytes.Buffer
}

func newBuffer() *buffer {
	b := &buffer{ch: make(chan struct{}, 1)}
	b.ch <- struct{}{}
	return b
}

func (b *buffer) Write(p []byte) (int, error) {
	<-b.ch
	defer func() { b.ch <- struct{}{} }()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	<-b.ch
	defer func() { b.ch <- struct{}{} }()
	return b.buf.String()
}

func TestARelayPublishesUntilItIsInterruptedAndParksWhatTheBrokerRefuses(t *testing.T) {
	url, _ := events(t)
	server := natstest.Start(t)
	conn, err := nats.Connect(server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stderr := newBuffer()
	ended := make(chan int)
	go func() {
		ended <- cli.Run(ctx, []string{"outbox", "relay", "--database", url, "--broker", server, "--max-attempts", "2"}, strings.NewReader(""), &bytes.Buffer{}, stderr)
	}()
	for ctx.Err() == nil && (len(listed(t, url, "--status", "published")) < 2 || len(listed(t, url, "--status", "parked")) < 2) {
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	if status := <-ended; status != 0 || !strings.Contains(stderr.String(), "2 events published") || !strings.Contains(stderr.String(), "parked: see sekali outbox show") {
		t.Errorf("%d: %s", status, stderr.String())
	}
	for sequence, id := range []string{1: "paid-1", 2: "paid-2"} {
		if sequence == 0 {
			continue
		}
		stream, err := js.Stream(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetMsg(t.Context(), uint64(sequence))
		if err != nil || m.Header.Get("idempotency-key") != id || m.Header.Get("Nats-Msg-Id") != id {
			t.Errorf("message %d: %+v, %v", sequence, m, err)
		}
	}
}
