package demo

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
)

// task is what the parent tells a child, as the first line of its input (not
// as arguments: those are for everybody to see, and URLs hold passwords).
type task struct {
	Service    string `json:"service"`
	Database   string `json:"database"`
	Broker     string `json:"broker"`
	Topic      string `json:"topic"`
	Courier    string `json:"courier"`     // where its labels come from
	CrashAfter int    `json:"crash_after"` // 0: never
	RandomKeys bool   `json:"random_keys"` // for tests: a consumer that is broken
}

// What a child tells its parent: a letter a line, written at once, so that a
// kill loses nothing that was counted.
const (
	saidDelivered = 'd'
	saidProcessed = 'p'
	saidDuplicate = 'u'
	saidCrash     = 'c' // "kill me now"; then it does nothing more
	saidTrouble   = 'e' // with a text
)

// teller writes what a child says, and counts down to its crash.
type teller struct {
	mu    sync.Mutex
	out   io.Writer
	crash int
}

func (t *teller) say(what byte, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(what, text)
}

func (t *teller) write(what byte, text string) {
	fmt.Fprintf(t.out, "%c%s\n", what, strings.ReplaceAll(text, "\n", "; "))
}

// processed is called between a commit and its acknowledgement: the moment at
// which a crash brings a message back that has had its effect.
func (t *teller) processed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(saidProcessed, "")
	if t.crash--; t.crash == 0 {
		t.write(saidCrash, "")
		select {} // with the lock: nobody else acknowledges either
	}
}

// Observe makes a teller a Consumer's observer.
func (t *teller) Observe(e sekali.Event) {
	switch e.Kind {
	case sekali.Received:
		t.say(saidDelivered, "")
	case sekali.Finished:
		if e.Outcome == sekali.Processed {
			t.processed()
		} else {
			t.say(saidDuplicate, "")
		}
	case sekali.Interrupted, sekali.CheckFailed, sekali.ReceiveFailed, sekali.DeadLetterFailed, sekali.AttemptFailed, sekali.DeadLettered:
		t.say(saidTrouble, e.Err.Error())
	}
}

// Child is the life of a consumer process: it does the task that stands in the
// first line of stdin, until stdin says "stop". If stdin ends without that,
// the parent is gone, and the process ends at once.
func Child(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	// Ctrl-C reaches all processes of a terminal; the parent decides.
	signal.Ignore(os.Interrupt)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	input := bufio.NewScanner(stdin)
	input.Scan()
	var t task
	if err := json.Unmarshal(input.Bytes(), &t); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	go func() {
		if input.Scan() && input.Text() == "stop" {
			stop()
			return
		}
		os.Exit(1)
	}()
	tell := &teller{out: stdout, crash: t.CrashAfter}
	db, err := dburl.Open(ctx, t.Database, false)
	if err != nil {
		return err
	}
	defer db.Close()
	k, err := kindOf(t.Broker)
	if err != nil {
		return err
	}
	source, err := k.source(t)
	if err != nil {
		return err
	}
	switch {
	case t.Service == naiveStockService:
		return naive(ctx, source, tell, func(ctx context.Context, o order) error { return sellNaively(ctx, db, o) })
	case t.Service == naiveCourierService:
		return naive(ctx, source, tell, func(ctx context.Context, o order) error {
			_, err := buyLabel(ctx, naively, t.Courier, o.ID)
			return err
		})
	case db.Pool != nil:
		return consume(ctx, t, db.Kind, source, pgxstore.New(db.Pool), tell,
			func(ctx context.Context, tx pgx.Tx, query string, args ...any) (int64, error) {
				tag, err := tx.Exec(ctx, query, args...)
				return tag.RowsAffected(), err
			})
	}
	return consume(ctx, t, db.Kind, source, sqlstore.New(db.SQL, db.Dialect()), tell,
		func(ctx context.Context, tx *sql.Tx, query string, args ...any) (int64, error) {
			result, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return 0, err
			}
			return result.RowsAffected()
		})
}

// consume is the idempotent consumer, whatever the transaction's type.
func consume[Tx any](ctx context.Context, t task, kind dburl.Kind, source broker.Source, s store.Store[Tx], tell *teller,
	exec func(ctx context.Context, tx Tx, query string, args ...any) (int64, error),
) error {
	key := sekali.Header(outbox.IDHeader)
	if t.RandomKeys {
		//sekalivet:allow the demo shows what keys by chance do
		key = func(*sekali.Message) (string, error) { return fmt.Sprint(rand.Uint64()), nil }
	}
	workers := 4
	if kind == dburl.SQLite {
		workers = 1 // one writer at a time is all that SQLite has
	}
	change := func(ctx context.Context, tx Tx, query string, args ...any) error {
		changed, err := exec(ctx, tx, kind.Placeholders(query), args...)
		if err == nil && changed != 1 {
			err = sekali.Permanent(fmt.Errorf("%d rows changed instead of 1", changed))
		}
		return err
	}
	cfg := sekali.Config[Tx]{
		Name: t.Service, Source: source, Store: s, Key: key, Workers: workers, Observer: tell,
		// A crash hides the rest of its batch from the count of what was
		// processed, by which crashes are planned: small ones, so that all of
		// them happen.
		Batch: sekali.Batch{Size: 10},
	}
	if t.Service == courierService {
		transport, err := newCourierTransport()
		if err != nil {
			return err
		}
		cfg.Prepare = buyAndShip(t, s, transport, change)
	} else {
		cfg.Handle = func(ctx context.Context, tx Tx, m *sekali.Message) error {
			o, err := orderOf(m)
			if err != nil {
				return err
			}
			return change(ctx, tx, takeStock, o.Quantity, o.SKU)
		}
	}
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

func orderOf(m *sekali.Message) (o order, err error) {
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return o, sekali.Permanent(err)
	}
	return o, nil
}

// buyAndShip buys a label from the courier, outside any transaction, and notes
// it in the message's. A label whose purchase got no answer is asked for again
// under the same key.
func buyAndShip[Tx any](t task, s store.Store[Tx], transport *httpeffect.Transport,
	change func(ctx context.Context, tx Tx, query string, args ...any) error,
) sekali.Preparer[Tx] {
	keeper, _ := store.As[interface{ Effects() effect.Rows }](s)
	ledger := effect.New(keeper.Effects(), t.Service, effect.Config{Lease: effectLease, Recovery: effect.Repeat(keyWindow)})
	return func(ctx context.Context, m *sekali.Message) (sekali.Commit[Tx], error) {
		o, err := orderOf(m)
		if err != nil {
			return nil, err
		}
		label, err := effect.Do(ctx, ledger, m.Key(), "buy-label", func(ctx context.Context, _ effect.Call) (int, error) {
			return buyLabel(ctx, transport.Do, t.Courier, o.ID) // the key comes with ctx
		})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, tx Tx) error { return change(ctx, tx, ship, o.ID, label) }, nil
	}
}
