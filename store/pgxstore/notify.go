package pgxstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sekali/sekali/outbox"
)

// Channel is the channel of LISTEN and NOTIFY.
const Channel = "sekali_outbox"

const (
	// notifyEvery is how often NOTIFY is sent at most.
	notifyEvery = 10 * time.Millisecond
	// watchEvery is how often a connection that listens is asked whether it
	// lives: one that is dead says nothing, and nothing is what it hears.
	watchEvery = 15 * time.Second
	// answerTime is how long an answer may take.
	answerTime = 5 * time.Second
)

// Notifier tells Relays in other processes through LISTEN and NOTIFY that
// something was committed. Without it they look every RelayConfig.PollEvery,
// which is fine for most: a NOTIFY of its own costs the writer's server a
// commit.
//
// It is sent outside of the business transaction, in which it would make all
// commits wait for each other, at most every 10 ms, however many events there
// are, and from a connection of its own. Losing one does no harm: Relays go on
// polling.
type Notifier struct {
	cfg                    *pgx.ConnConfig
	watchEvery, answerTime time.Duration

	asked   chan struct{} // holds a token while there is something to tell
	running sync.WaitGroup
	stop    context.CancelFunc
	begin   sync.Once
	ctx     context.Context
}

var _ outbox.Notifier = (*Notifier)(nil)

// NewNotifier returns a Notifier with connections of its own to a database, for
// outbox.WithNotifier. The URL must lead to the primary itself: LISTEN does not
// work through PgBouncer in transaction mode. It connects when it is first
// used. Close it at the end.
func NewNotifier(url string) (*Notifier, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("new notifier: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Notifier{cfg: cfg, watchEvery: watchEvery, answerTime: answerTime, asked: make(chan struct{}, 1), ctx: ctx, stop: stop}, nil
}

// Close ends what is under way and disconnects. It may be called twice.
func (n *Notifier) Close() {
	n.begin.Do(func() {}) // nothing begins any more
	n.stop()
	n.running.Wait()
}

// Notify implements outbox.Notifier.
func (n *Notifier) Notify() {
	n.begin.Do(func() { n.running.Go(n.send) })
	select {
	case n.asked <- struct{}{}:
	default: // it is about to be told
	}
}

// send sends what was asked for, until the end. What fails is not sent again:
// Relays poll.
func (n *Notifier) send() {
	var conn *pgx.Conn
	defer func() { hangUp(conn) }()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.asked:
		}
		var err error
		if conn == nil {
			conn, err = n.connect(n.ctx)
		}
		if err == nil {
			ctx, cancel := context.WithTimeout(n.ctx, n.answerTime)
			_, err = conn.Exec(ctx, "NOTIFY "+Channel)
			cancel()
		}
		pause := notifyEvery
		if err != nil {
			hangUp(conn)
			conn, pause = nil, time.Second
		}
		if !rest(n.ctx, pause) {
			return
		}
	}
}

func (n *Notifier) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.answerTime)
	defer cancel()
	return pgx.ConnectConfig(ctx, n.cfg)
}

func hangUp(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}

func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Listen implements outbox.Notifier.
func (n *Notifier) Listen(ctx context.Context, f func()) {
	for pause := 50 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, answerTime) {
		if n.listen(ctx, f) {
			pause = 50 * time.Millisecond
		}
		if !rest(ctx, pause) {
			return
		}
	}
}

// listen listens as long as a connection lives. heard tells that it came to
// listen at all.
func (n *Notifier) listen(ctx context.Context, f func()) (heard bool) {
	conn, err := n.connect(ctx)
	if err != nil {
		return false
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "LISTEN "+Channel); err != nil {
		return false
	}
	f() // what was committed before is not told
	for {
		waiting, cancel := context.WithTimeout(ctx, n.watchEvery)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case ctx.Err() != nil:
			return true
		case err == nil:
			f()
			continue
		case !pgconn.Timeout(err):
			return true
		}
		asking, cancel := context.WithTimeout(ctx, n.answerTime)
		err = conn.Ping(asking)
		cancel()
		if err != nil {
			return true
		}
	}
}
