package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/store"
)

// consumer is the name that claims of the suite bear.
const consumer = "stock-service"

// stockAtStart is how much of each sku there is.
const stockAtStart = 1_000_000

// The skus in the table stock.
const (
	coffee = "KOPI-250"
	tea    = "TEH-100"
)

// bench is a test's database with helpers that fail the test.
type bench[Tx any] struct {
	t      *testing.T
	h      Harness[Tx]
	ctx    context.Context
	cancel context.CancelFunc // frees whoever still waits when a test fails
	Env[Tx]
	// One and Two are stores on pools of their own, as two processes have.
	One, Two Client[Tx]
}

func open[Tx any](t *testing.T, h Harness[Tx], empty bool) *bench[Tx] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	t.Cleanup(cancel)
	b := &bench[Tx]{t: t, h: h, ctx: ctx, cancel: cancel, Env: h.Open(t, empty)}
	b.One, b.Two = b.Client(t, nil), b.Client(t, nil)
	b.run("CREATE TABLE stock (sku VARCHAR(50) PRIMARY KEY, quantity INT NOT NULL)" + b.engine())
	b.run("CREATE TABLE sales (n INT PRIMARY KEY)" + b.engine())
	b.run(fmt.Sprintf("INSERT INTO stock VALUES ('%s', %d), ('%s', %d)", coffee, stockAtStart, tea, stockAtStart))
	return b
}

func (b *bench[Tx]) engine() string {
	if b.h.Database == MySQL {
		return " ENGINE=InnoDB"
	}
	return ""
}

// with returns a client whose sessions have the given settings.
func (b *bench[Tx]) with(settings map[string]string) Client[Tx] {
	b.t.Helper()
	return b.Client(b.t, settings)
}

// run runs statements from outside.
func (b *bench[Tx]) run(statements ...string) {
	b.t.Helper()
	for _, s := range statements {
		if _, err := b.DB.ExecContext(b.ctx, s); err != nil {
			b.t.Fatalf("%s: %v", s, err)
		}
	}
}

// number asks for one number from outside.
func (b *bench[Tx]) number(query string) int {
	b.t.Helper()
	var n int
	if err := b.DB.QueryRowContext(b.ctx, query).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func claimOf(raw ...string) store.Claim {
	c := store.Claim{Consumer: consumer}
	for _, r := range raw {
		c.Keys = append(c.Keys, store.Key{Raw: r})
	}
	return c
}

// begin claims and returns the transaction; want are the states.
func (b *bench[Tx]) begin(c Client[Tx], claim store.Claim, want ...store.State) Tx {
	b.t.Helper()
	tx, got, err := c.Store.Begin(b.ctx, claim)
	if err != nil {
		b.t.Fatalf("begin: %v", err)
	}
	b.endWithTest(c, tx)
	if !slices.Equal(got, want) {
		b.t.Fatalf("states are %v, want %v", got, want)
	}
	return tx
}

// endWithTest rolls back what a failed test leaves open: pools may wait for it.
func (b *bench[Tx]) endWithTest(c Client[Tx], tx Tx) {
	b.t.Cleanup(func() { _ = c.Store.Rollback(context.Background(), tx) })
}

func (b *bench[Tx]) commit(c Client[Tx], tx Tx) {
	b.t.Helper()
	if err := c.Store.Commit(b.ctx, tx); err != nil {
		b.t.Fatalf("commit: %v", err)
	}
}

func (b *bench[Tx]) rollback(c Client[Tx], tx Tx) {
	b.t.Helper()
	if err := c.Store.Rollback(b.ctx, tx); err != nil {
		b.t.Fatalf("roll back: %v", err)
	}
}

// exec runs a statement as a handler does.
func (b *bench[Tx]) exec(tx Tx, statement string) {
	b.t.Helper()
	if _, err := b.h.Exec(b.ctx, tx, statement); err != nil {
		b.t.Fatalf("%s: %v", statement, err)
	}
}

// swallow runs a statement that must fail, and returns its error.
func (b *bench[Tx]) swallow(tx Tx, statement string) error {
	b.t.Helper()
	_, err := b.h.Exec(b.ctx, tx, statement)
	if err == nil {
		b.t.Fatalf("%s: did not fail", statement)
	}
	return err
}

func sell(sku string) string {
	return "UPDATE stock SET quantity = quantity - 1 WHERE sku = '" + sku + "'"
}

// wantKeys fails unless the key is recorded (1) or not (0), or however many
// keys there are in the table if none is named.
func (b *bench[Tx]) wantRows(want int) {
	b.t.Helper()
	if got := b.number("SELECT count(*) FROM processed_messages"); got != want {
		b.t.Errorf("%d keys are recorded, want %d", got, want)
	}
}

func (b *bench[Tx]) wantSold(sku string, want int) {
	b.t.Helper()
	if got := stockAtStart - b.number("SELECT quantity FROM stock WHERE sku = '"+sku+"'"); got != want {
		b.t.Errorf("%d of %s were sold, want %d", got, sku, want)
	}
}

// wantIdle fails unless every connection was given back.
func (b *bench[Tx]) wantIdle(clients ...Client[Tx]) {
	b.t.Helper()
	for _, c := range append(clients, b.One, b.Two) {
		// Some drivers give a broken connection back in the background.
		if !within(idleAfter, func() bool { return c.InUse() == 0 }) {
			b.t.Errorf("%d connections were not given back", c.InUse())
		}
	}
}

// wantState fails unless a new claim finds the key so. It leaves the table as
// it is.
func (b *bench[Tx]) wantState(raw string, want store.State) {
	b.t.Helper()
	b.rollback(b.Two, b.begin(b.Two, claimOf(raw), want))
}

// wantError fails unless err is all of want, and none of not.
func (b *bench[Tx]) wantError(err error, want []error, not ...error) {
	b.t.Helper()
	if err == nil {
		b.t.Errorf("there is no error, want %v", want)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			b.t.Errorf("the error is %v, want one that is %q", err, w)
		}
	}
	for _, n := range not {
		if errors.Is(err, n) {
			b.t.Errorf("the error is %v, which must not be %q", err, n)
		}
	}
}

func (b *bench[Tx]) wantClass(c Client[Tx], err error, want store.Class) {
	b.t.Helper()
	if got := c.Store.Classify(err); err == nil || got != want {
		b.t.Errorf("the error %v is of class %v, want %v", err, got, want)
	}
}

// process is what a consumer does with a message: claim, work, commit, and all
// of it again after a conflict. It returns the state of the key.
func (b *bench[Tx]) process(c Client[Tx], claim store.Claim, work func(tx Tx) error) (store.State, error) {
	for {
		state, err := b.attempt(c, claim, work)
		if err == nil || b.ctx.Err() != nil || c.Store.Classify(err) != store.ClassConflict {
			return state, err
		}
	}
}

func (b *bench[Tx]) attempt(c Client[Tx], claim store.Claim, work func(tx Tx) error) (store.State, error) {
	tx, states, err := c.Store.Begin(b.ctx, claim)
	if err != nil {
		return 0, err
	}
	if states[0] != store.Fresh {
		return states[0], c.Store.Rollback(b.ctx, tx)
	}
	if err := work(tx); err != nil {
		return 0, errors.Join(err, c.Store.Rollback(b.ctx, tx))
	}
	return store.Fresh, c.Store.Commit(b.ctx, tx)
}

// sellOne is the work of a handler that sells one coffee.
func (b *bench[Tx]) sellOne(tx Tx) error {
	_, err := b.h.Exec(b.ctx, tx, sell(coffee))
	return err
}

// poll is how often the suite looks for what must happen.
const poll = 5 * time.Millisecond

// idleAfter is how long drivers may take to give a connection back.
const idleAfter = 5 * time.Second

// eventually waits until f holds, at most Patience.
func (b *bench[Tx]) eventually(f func() bool) bool { return within(Patience, f) }

func within(limit time.Duration, f func() bool) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}

// settled is how long SQLite, which cannot tell who waits, is given to return
// from what should wait.
const settled = 150 * time.Millisecond

// wantWaiting waits until n sessions wait for another one's lock, and fails if
// one of what they do (done) ends instead.
func (b *bench[Tx]) wantWaiting(n int, done <-chan struct{}) {
	b.t.Helper()
	query := map[Database]string{
		Postgres: "SELECT count(*) FROM pg_stat_activity a WHERE datname = current_database()" +
			" AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted)" +
			" AND EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation" +
			" WHERE l.pid = a.pid AND c.relnamespace = current_schema()::regnamespace)",
		// MariaDB's innodb_trx does not change while it is read often; a statement
		// that takes so long waits. MySQL 8 tells outright.
		MySQL: "SELECT count(*) FROM /*M! information_schema.processlist WHERE db = DATABASE()" +
			" AND command IN ('Query', 'Execute') AND id <> CONNECTION_ID() AND time_ms > 80 */" +
			"/*!80017 performance_schema.data_locks WHERE object_schema = DATABASE() AND lock_status = 'WAITING' */",
	}[b.h.Database]
	waiting := func() bool { return b.number(query) >= n }
	if query == "" {
		start := time.Now()
		waiting = func() bool { return time.Since(start) > settled }
	}
	ended := false
	ok := b.eventually(func() bool {
		select {
		case <-done:
			ended = true
			return true
		default:
		}
		return waiting()
	})
	if ended || !ok {
		b.t.Fatalf("nobody waits for the other's lock (it went on: %v)", ended)
	}
}

// outcome is what a claim in the background came to.
type outcome[Tx any] struct {
	tx     Tx
	states []store.State
	err    error
}

// beginLater claims in the background. done is closed when Begin returned.
func (b *bench[Tx]) beginLater(ctx context.Context, c Client[Tx], claim store.Claim) (*outcome[Tx], <-chan struct{}) {
	o := &outcome[Tx]{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.tx, o.states, o.err = c.Store.Begin(ctx, claim)
	}()
	b.t.Cleanup(func() {
		b.cancel()
		if <-done; o.err == nil {
			_ = c.Store.Rollback(context.Background(), o.tx)
		}
	})
	return o, done
}

// wait waits until done is closed.
func (b *bench[Tx]) wait(done <-chan struct{}) {
	b.t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		b.t.Fatal("it goes on waiting")
	}
}
