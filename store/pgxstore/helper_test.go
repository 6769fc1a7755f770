//go:build !fast

package pgxstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const schemaTable = `
	CREATE TABLE processed_messages (
		consumer_name VARCHAR(100), message_key VARCHAR(200), processed_at TIMESTAMP DEFAULT now(),
		PRIMARY KEY (consumer_name, message_key));
	CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INT NOT NULL);
	INSERT INTO stock VALUES ('KOPI-250', 100);`

const withFingerprint = `; ALTER TABLE processed_messages ADD COLUMN fingerprint BYTEA;`

// testURL is the URL of a server for tests.
func testURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("SEKALI_TEST_POSTGRES_URL")
	if url == "" {
		t.Fatal("SEKALI_TEST_POSTGRES_URL is not set: run `make test`, or " +
			"`scripts/services up && eval \"$(scripts/services env)\"`, or set it to a server of yours")
	}
	return url
}

// newPool returns a pool in a schema of its own, in which ddl was run.
func newPool(t testing.TB, ddl string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return poolOn(t, testURL(t), ddl, change...)
}

func poolOn(t testing.TB, url, ddl string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	var random [6]byte
	_, _ = rand.Read(random[:])
	schema := "t_" + hex.EncodeToString(random[:])
	plain := config.ConnConfig.Copy()
	admin := func(sql string) { // a connection each, for a test may restart the server
		conn, err := pgx.ConnectConfig(ctx, plain)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		mustExec(t, conn, "SET synchronous_commit = local; "+sql)
	}
	admin("CREATE SCHEMA " + schema + "; SET search_path = " + schema + "; " + ddl)
	t.Cleanup(func() { admin("DROP SCHEMA " + schema + " CASCADE") })

	config.ConnConfig.RuntimeParams["search_path"] = schema
	config.MaxConns = 8
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func param(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

func mode(m pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
}

func mustExec(t testing.TB, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, sql string,
) {
	t.Helper()
	rows, err := db.Query(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func claimOf(keys ...string) store.Claim {
	c := store.Claim{Consumer: "stock-service"}
	for _, k := range keys {
		c.Keys = append(c.Keys, store.Key{Raw: k})
	}
	return c
}

const sell = "UPDATE stock SET quantity = quantity - 1 WHERE sku = 'KOPI-250'"

// wantFound fails unless so many keys are recorded and so many were sold.
func wantFound(t testing.TB, pool *pgxpool.Pool, keys, sold int) {
	t.Helper()
	wantKeys(t, pool, keys)
	if got := 100 - value[int](t, pool, "SELECT quantity FROM stock"); got != sold {
		t.Errorf("%d were sold, want %d", got, sold)
	}
	wantIdle(t, pool)
}

// wantIdle fails unless all connections are given back soon: the pool closes
// broken ones beside its callers.
func wantIdle(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	patience := time.After(20 * time.Second)
	for pool.Stat().AcquiredConns() != 0 {
		select {
		case <-look.C:
		case <-patience:
			t.Fatalf("%d connections were not given back", pool.Stat().AcquiredConns())
		}
	}
}

func wantKeys(t testing.TB, pool *pgxpool.Pool, want int) {
	t.Helper()
	if got := value[int](t, pool, "SELECT count(*) FROM processed_messages"); got != want {
		t.Errorf("%d keys are recorded, want %d", got, want)
	}
}

func begin(t testing.TB, s *pgxstore.Store, c store.Claim, want ...store.State) pgx.Tx {
	t.Helper()
	tx, states, err := s.Begin(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Rollback(context.Background(), tx) }) // the pool waits for it
	wantStates(t, states, want...)
	return tx
}

func wantStates(t testing.TB, got []store.State, want ...store.State) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("states are %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("states are %v, want %v", got, want)
		}
	}
}

func commit(t testing.TB, s *pgxstore.Store, tx pgx.Tx) {
	t.Helper()
	if err := s.Commit(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
}

func rollBack(t testing.TB, s *pgxstore.Store, tx pgx.Tx) {
	t.Helper()
	if err := s.Rollback(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("the error is %v, want one that is %q", err, w)
		}
	}
}

func wantNotError(t testing.TB, err, not error) {
	t.Helper()
	if errors.Is(err, not) {
		t.Fatalf("the error is %v, which must not be %q", err, not)
	}
}

// waitUntil waits until a condition in the database holds.
func waitUntil(t testing.TB, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, sql string, args ...any,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for done := false; !done; {
		err := db.QueryRow(ctx, "SELECT COALESCE(("+sql+"), false), pg_sleep(0.005)::text", args...).Scan(&done, new(string))
		if err != nil {
			t.Fatalf("wait until %s: %v", sql, err)
		}
	}
}

// wire sees what a client sends.
type wire struct {
	mu     sync.Mutex
	writes int
	// before is called before a message that holds trigger is sent, after once
	// it was. Both are optional.
	trigger       []byte
	before, after func()
	// deaf connections hear nothing any more, and then that they are closed.
	deaf atomic.Bool
}

func (w *wire) tap(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return tapped{conn, w}, nil
	}
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

func (w *wire) on(trigger string, before, after func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trigger, w.before, w.after = []byte(trigger), before, after
}

type tapped struct {
	net.Conn
	w *wire
}

func (c tapped) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	c.w.writes++
	before, after := c.w.before, c.w.after
	if len(c.w.trigger) == 0 || !bytes.Contains(b, c.w.trigger) {
		before, after = nil, nil
	}
	c.w.mu.Unlock()
	if before != nil {
		before()
	}
	n, err := c.Conn.Write(b)
	if after != nil {
		after()
	}
	return n, err
}

func (c tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.w.deaf.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
