//go:build !fast

package pgxstore_test

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

const patience = 30 * time.Second

func newNotifier(t *testing.T, url string) *pgxstore.Notifier {
	t.Helper()
	n, err := pgxstore.NewNotifier(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// mailbox is a Publisher that tells of what it gets.
type mailbox chan string

func (m mailbox) Publish(_ context.Context, messages ...broker.Message) error {
	for _, x := range messages {
		m <- x.ID
	}
	return nil
}

func (m mailbox) Close(context.Context) error { return nil }

func (m mailbox) wait(t *testing.T, id string) {
	t.Helper()
	select {
	case got := <-m:
		if got != id {
			t.Fatalf("event %q was published, not %q", got, id)
		}
	case <-time.After(patience):
		t.Fatalf("event %q was not published", id)
	}
}

// listening is a process that relays, and another that adds.
type listening struct {
	t    *testing.T
	s    *pgxstore.Store
	box  *outbox.Box[pgx.Tx]
	sent mailbox
}

// newListening starts a Relay that never looks by itself: only the Notifier
// wakes it.
func newListening(t *testing.T, db *dbtest.DB, adds, relays *pgxstore.Notifier) *listening {
	t.Helper()
	s := pgxstore.New(db.Pool(nil))
	l := &listening{t, s, outbox.New(s, outbox.WithNotifier(adds)), make(mailbox, 100)}
	relay, err := outbox.New(s, outbox.WithNotifier(relays)).NewRelay(outbox.RelayConfig{Publisher: l.sent, PollEvery: time.Hour, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := relay.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return l
}

func (l *listening) add(id string) {
	l.t.Helper()
	ctx := l.t.Context()
	tx, _, err := l.s.Begin(ctx, store.Claim{Consumer: "shop", Keys: []store.Key{{Raw: id}}})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.box.Add(ctx, tx, outbox.Message{ID: id, Topic: "orders"}); err != nil {
		l.t.Fatal(err)
	}
	if err := l.s.Commit(ctx, tx); err != nil {
		l.t.Fatal(err)
	}
}

func TestARelayOfAnotherProcessIsWokenByACommit(t *testing.T) {
	db := dbtest.Postgres(t)
	l := newListening(t, db, newNotifier(t, db.URL), newNotifier(t, db.URL))
	for _, id := range []string{"1", "2", "3"} {
		l.add(id)
		l.sent.wait(t, id)
	}
}

// proxied returns a proxy in front of the server, and the URL through it.
func proxied(t *testing.T, raw string) (*faulty.Proxy, string) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faulty.NewProxy(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	u.Host = proxy.Addr()
	return proxy, u.String()
}

func TestAConnectionThatListensAndBreaksIsMadeAnewAndNothingIsMissed(t *testing.T) {
	db := dbtest.Postgres(t)
	proxy, through := proxied(t, db.URL)
	l := newListening(t, db, newNotifier(t, db.URL), newNotifier(t, through))
	l.add("1")
	l.sent.wait(t, "1")
	proxy.Refuse()
	proxy.Cut()
	l.add("2") // nobody hears of it
	proxy.Accept()
	l.sent.wait(t, "2")
	l.add("3")
	l.sent.wait(t, "3")
}

func TestAConnectionThatListensAndIsDeadWithoutAWordIsFound(t *testing.T) {
	db := dbtest.Postgres(t)
	proxy, through := proxied(t, db.URL)
	relays := newNotifier(t, through)
	relays.Watch(50*time.Millisecond, 200*time.Millisecond)
	l := newListening(t, db, newNotifier(t, db.URL), relays)
	l.add("1")
	l.sent.wait(t, "1")
	proxy.Forget()
	l.add("2")
	l.sent.wait(t, "2")
}

func TestNotificationsAreCoalescedAndSentFromAConnectionOfTheirOwn(t *testing.T) {
	db := dbtest.Postgres(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "LISTEN "+pgxstore.Channel); err != nil {
		t.Fatal(err)
	}
	n := newNotifier(t, db.URL)
	began := time.Now()
	for range 50 {
		for range 1000 {
			n.Notify()
		}
		time.Sleep(time.Millisecond)
	}
	n.Close() // what is under way is sent
	most := int(time.Since(began)/(10*time.Millisecond)) + 2
	if _, err := db.Pool(nil).Exec(t.Context(), "SELECT pg_notify($1, 'the end')", pgxstore.Channel); err != nil {
		t.Fatal(err)
	}
	from := map[uint32]int{} // by the connection: others may use the channel too
	for {
		told, err := conn.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if told.Payload == "the end" {
			break
		}
		from[told.PID]++
	}
	if len(from) == 0 {
		t.Error("nothing was sent")
	}
	for pid, count := range from {
		if count > most {
			t.Errorf("connection %d sent %d notifications, at most %d were due", pid, count, most)
		}
	}
	n.Notify() // after Close it does nothing
	n.Close()
}

func TestANotifierNeedsAURL(t *testing.T) {
	if _, err := pgxstore.NewNotifier("postgres://h:port/d"); err == nil {
		t.Error("no error")
	}
}
