package proctest

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/kafkabroker"
	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
)

const childEnv = "SEKALI_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// task is what a child is to do, on its standard input.
type task struct {
	Consumer string
	Database string // URL
	Broker   string // URL: nats://, kafka://, or unix:// for a memory broker in the parent
	Topic    string // a stream with NATS
	Instance string // of a static member of a Kafka group; empty: dynamic
	Workers  int
	Key      string        // the header with the message key; empty: "key"
	AckWait  time.Duration // of JetStream; 0: ackWait
	Relay    bool          // it relays the database's outbox to the broker, and consumes nothing

	// With effects: messages are prepared.
	Recovery string // "repeat", "lookup" or "park"
	Provider string // URL
	Marks    string // a folder in which it is noted who has died already
}

const (
	session = 6 * time.Second // of members of Kafka's groups
	ackWait = time.Second     // of JetStream
)

// order is a message's body, and what its handler does.
type order struct {
	ID     string
	Entity string
	Seq    int
	Die    string  // "exit" or "kill": the process dies of it
	Dead   bool    // it fails for good unless it is redriven
	DieAt  string  // a boundary of its effect at which the process dies, once
	Sleep  int     // milliseconds
	Fail   float64 // how likely an attempt fails
}

// child is a consumer until its standard input ends. On its standard output it
// says "started" once it works, and then what it did.
func child() error {
	var t task
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &t); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = in.ReadByte()
		stop()
	}()
	if t.Relay {
		return relay(ctx, t)
	}
	source, err := t.source()
	if err != nil {
		return err
	}
	if strings.HasPrefix(t.Database, "postgres:") {
		pool, err := pgxpool.New(ctx, t.Database)
		if err != nil {
			return err
		}
		defer pool.Close()
		return run(ctx, t, source, pgxstore.New(pool), func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
			_, err := tx.Exec(ctx, dburl.PostgreSQL.Placeholders(query), args...)
			return err
		})
	}
	db, err := dburl.Open(ctx, t.Database, false)
	if err != nil {
		return err
	}
	defer db.Close()
	return run(ctx, t, source, sqlstore.New(db.SQL, db.Dialect()), func(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, db.Kind.Placeholders(query), args...)
		return err
	})
}

func (t task) source() (broker.Source, error) {
	u, err := url.Parse(t.Broker)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "nats":
		return natsbroker.OpenSource(t.Broker, natsbroker.SourceConfig{Stream: t.Topic, Consumer: t.Consumer, AckWait: cmp.Or(t.AckWait, ackWait), OrderingKeyHeader: outbox.OrderingKeyHeader})
	case "kafka":
		cfg := kafkabroker.SourceConfig{URL: t.Broker, Group: t.Consumer, Topics: []string{t.Topic}, SessionTimeout: session}
		if t.Instance != "" {
			cfg.Options = append(cfg.Options, kgo.InstanceID(t.Instance))
		}
		return kafkabroker.NewSource(cfg)
	case "unix":
		return dialRemote(u.Path)
	}
	return nil, fmt.Errorf("no broker for %s", t.Broker)
}

// relay publishes the outbox of the database until ctx ends.
func relay(ctx context.Context, t task) error {
	db, err := dburl.Open(ctx, t.Database, false)
	if err != nil {
		return err
	}
	defer db.Close()
	publisher, err := brokerurl.OpenPublisher(t.Broker)
	if err != nil {
		return err
	}
	tell := &teller{}
	r, err := outbox.New(sqlstore.New(db.SQL, db.Dialect())).NewRelay(outbox.RelayConfig{
		Publisher: publisher, Lease: 2 * time.Second, PollEvery: 20 * time.Millisecond, Observer: func(e outbox.Event) {
			if e.Err != nil {
				tell.say("trouble %v: %v", e.Kind, e.Err)
			}
		},
	})
	if err != nil {
		return err
	}
	tell.say("started")
	return r.Run(ctx)
}

// teller writes lines that a kill cannot tear.
type teller struct{ mu sync.Mutex }

func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}

// Observe makes it an observer.
func (t *teller) Observe(e sekali.Event) {
	switch e.Kind {
	case sekali.Started:
		t.say("started")
	case sekali.Finished:
		t.say("%s %s", e.Outcome, e.Message.Key())
	case sekali.Suspected:
		t.say("suspected %s", e.Message.Key())
	case sekali.DeadLettered:
		t.say("dead-lettered %s", e.Message.Key())
	case sekali.AttemptFailed:
		if !errors.Is(e.Err, errWeather) {
			t.say("trouble %v: %v", e.Kind, e.Err)
		}
	case sekali.Interrupted, sekali.ReceiveFailed, sekali.SettleFailed, sekali.CheckFailed, sekali.DeadLetterFailed:
		t.say("trouble %v: %v", e.Kind, strings.ReplaceAll(e.Err.Error(), "\n", "; "))
	}
}

func run[Tx any](ctx context.Context, t task, source broker.Source, s store.Store[Tx],
	exec func(ctx context.Context, tx Tx, query string, args ...any) error,
) error {
	tell := &teller{}
	cfg := sekali.Config[Tx]{
		Name: t.Consumer, Source: source, Store: s, Key: sekali.Header(cmp.Or(t.Key, "key")), Workers: t.Workers, Observer: tell,
		Backoff: sekali.Backoff{Initial: 5 * time.Millisecond, Max: 50 * time.Millisecond}, MaxAttempts: 1000,
		Handle: func(ctx context.Context, tx Tx, m *sekali.Message) error {
			var o order
			if err := json.Unmarshal(m.Body, &o); err != nil {
				return sekali.Permanent(err)
			}
			err := exec(ctx, tx, `INSERT INTO effects (lane, entity, seq, id) VALUES (?, ?, ?, ?)`, lane(m), o.Entity, o.Seq, o.ID)
			if err != nil {
				return err
			}
			if o.Dead && m.Letter() == 0 {
				return sekali.Permanent(errWeather)
			}
			time.Sleep(time.Duration(o.Sleep) * time.Millisecond)
			switch o.Die {
			case "exit":
				os.Exit(7)
			case "kill": // as the kernel does when memory is short
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			if rand.Float64() < o.Fail {
				return errWeather
			}
			return nil
		},
	}
	if t.Recovery != "" {
		buyer := buyer{t}
		cfg.Handle, cfg.Prepare, cfg.RedriveEvery = nil, prepare(buyer, s, exec), 100*time.Millisecond
		cfg.Observer = dying{buyer, tell}
	}
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// errWeather is why an attempt of a good message fails now and then.
var errWeather = errors.New("the weather is bad")

// lane is the partition of a message that came from Kafka.
func lane(m *sekali.Message) int {
	parts := strings.Split(m.ID, "/")
	if len(parts) != 3 {
		return 0
	}
	n, _ := strconv.Atoi(parts[1])
	return n
}
