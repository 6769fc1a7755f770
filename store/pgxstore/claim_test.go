//go:build !fast

package pgxstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

var modes = map[string]pgx.QueryExecMode{
	"cache statement": pgx.QueryExecModeCacheStatement,
	"cache describe":  pgx.QueryExecModeCacheDescribe,
	"describe exec":   pgx.QueryExecModeDescribeExec,
	"exec":            pgx.QueryExecModeExec,
	"simple protocol": pgx.QueryExecModeSimpleProtocol,
}

func fingerprinted(c store.Claim, b byte) store.Claim {
	for i := range c.Keys {
		c.Keys[i].Fingerprint = bytes.Repeat([]byte{b}, 32)
	}
	return c
}

func TestClaimsWorkInEveryQueryMode(t *testing.T) {
	odd := []string{
		"order-42:paid", "Order-42:paid", "order-42:paid ", `quote"back\slash`, "{a,b}", "NULL", "it's",
		"é", "e\u0301", "☕", "nul\x00", "\xff\xfe", strings.Repeat("x", 4096), "sha256:abc",
	}
	for name, m := range modes {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, schemaTable+withFingerprint, mode(m), param("bytea_output", "escape"))
			s := pgxstore.New(pool)
			fresh := make([]store.State, len(odd))
			for _, k := range odd { // alone, so that none is taken for another
				tx := begin(t, s, fingerprinted(claimOf(k), 1), store.Fresh)
				commit(t, s, tx)
			}
			for i, state := range []store.State{store.Duplicate, store.Conflict} {
				want := append(make([]store.State, 0, len(odd)), fresh...)
				for j := range want {
					want[j] = state
				}
				c := fingerprinted(claimOf(odd...), byte(1+i))
				rollBack(t, s, begin(t, s, c, want...))
				seen, err := s.Seen(context.Background(), c)
				if err != nil {
					t.Fatal(err)
				}
				wantStates(t, seen, want...)
			}
			tx := begin(t, s, claimOf("z", odd[0], "a"), store.Fresh, store.Duplicate, store.Fresh)
			mustExec(t, tx, sell)
			commit(t, s, tx)
			wantFound(t, pool, len(odd)+2, 1)
		})
	}
}

func TestTheTimeIsUTCWhateverTheColumnAndTheZone(t *testing.T) {
	for _, column := range []string{"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP(0)"} {
		for _, zone := range []string{"Asia/Jakarta", "Etc/GMT+8", "UTC"} {
			t.Run(column+" "+zone, func(t *testing.T) {
				pool := newPool(t, schemaTable+"ALTER TABLE processed_messages ALTER processed_at TYPE "+column,
					param("TimeZone", zone))
				s := pgxstore.New(pool)
				commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
				off := value[float64](t, pool, `SELECT abs(extract(epoch FROM processed_at)
					- extract(epoch FROM clock_timestamp()))::float8 FROM processed_messages`)
				if off > 60 {
					t.Errorf("processed_at is off by %v s", off)
				}
			})
		}
	}
}

func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	pool := newPool(t, schemaTable, func(c *pgxpool.Config) { c.MaxConns = 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	states, err := pgxstore.New(pool).Claim(ctx, tx, claimOf("k"))
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, states, store.Fresh)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	s := pgxstore.New(pool)
	rollBack(t, s, begin(t, s, claimOf("k", "l"), store.Duplicate, store.Fresh))
	if _, err := s.Seen(ctx, claimOf("k")); err != nil {
		t.Fatal(err)
	}
	wantFound(t, pool, 1, 0)
}

func TestAKeyThatVanishesWhileItsFingerprintIsReadIsClaimed(t *testing.T) {
	var w wire
	pool := newPool(t, schemaTable+withFingerprint, w.tap, mode(pgx.QueryExecModeExec))
	other := newConn(t, pool)
	s := pgxstore.New(pool)
	for _, k := range []string{"gone", "stays"} {
		commit(t, s, begin(t, s, fingerprinted(claimOf(k), 1), store.Fresh))
	}
	w.on("FOR SHARE", func() {
		mustExec(t, other, "DELETE FROM processed_messages WHERE message_key = 'gone'")
	}, nil)
	tx := begin(t, s, fingerprinted(claimOf("stays", "gone", "new"), 2), store.Conflict, store.Fresh, store.Fresh)
	commit(t, s, tx)
	wantFound(t, pool, 3, 0)
}

func TestAKeyThatVanishesAgainAndAgainIsAConflictOfTransactions(t *testing.T) {
	var w wire
	pool := newPool(t, schemaTable+withFingerprint, w.tap, mode(pgx.QueryExecModeExec))
	other := newConn(t, pool)
	s := pgxstore.New(pool)
	commit(t, s, begin(t, s, fingerprinted(claimOf("k"), 1), store.Fresh))
	calls := 0
	w.on("processed_messages", func() { // before claim, read, claim, read, …
		mustExec(t, other, "DELETE FROM processed_messages")
		if calls++; calls%2 == 1 {
			mustExec(t, other, "INSERT INTO processed_messages VALUES ('stock-service', 'k')")
		}
	}, nil)
	_, _, err := s.Begin(context.Background(), fingerprinted(claimOf("k"), 2))
	w.on("", nil, nil)
	if err == nil || s.Classify(err) != store.ClassConflict {
		t.Fatalf("the error is %v", err)
	}
	wantFound(t, pool, 0, 0)
}

// newConn returns a connection in the schema of pool, that no tap sees.
func newConn(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(testURL(t))
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = pool.Config().ConnConfig.RuntimeParams["search_path"]
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// race begins a claim that waits for a rival which has the key, commits the
// rival and returns what the claim got.
func race(t *testing.T, pool *pgxpool.Pool, s *pgxstore.Store) (pgx.Tx, []store.State, error) {
	t.Helper()
	rival := begin(t, s, claimOf("k"), store.Fresh)
	mustExec(t, rival, sell)
	type result struct {
		tx     pgx.Tx
		states []store.State
		err    error
	}
	done := make(chan result)
	go func() {
		tx, states, err := s.Begin(context.Background(), claimOf("k"))
		done <- result{tx, states, err}
	}()
	waitUntil(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))",
		rival.Conn().PgConn().PID())
	commit(t, s, rival)
	r := <-done
	return r.tx, r.states, r.err
}

func TestARivalIsWaitedForAndIsADuplicateInTheEnd(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			pool := newPool(t, schemaTable, param("default_transaction_isolation", level))
			s := pgxstore.New(pool)
			tx, states, err := race(t, pool, s)
			if level == "read committed" {
				if err != nil {
					t.Fatal(err)
				}
				wantStates(t, states, store.Duplicate)
				rollBack(t, s, tx)
			} else if err == nil || s.Classify(err) != store.ClassConflict {
				t.Fatalf("got %v and the error %v, want one of ClassConflict", states, err)
			}
			rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
			wantFound(t, pool, 1, 1)
		})
	}
}

func TestAClaimThatTimesOutGivesItsConnectionBack(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	commit(t, s, begin(t, s, claimOf("warm"), store.Fresh))
	rival := begin(t, s, claimOf("k"), store.Fresh)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, _, err := s.Begin(ctx, claimOf("k"))
	wantError(t, err, context.DeadlineExceeded)
	wantNotError(t, err, store.ErrUnavailable)

	short := newPoolBeside(t, pool, param("statement_timeout", "30"))
	_, _, err = pgxstore.New(short).Begin(context.Background(), claimOf("k"))
	if err == nil || s.Classify(err) != store.ClassFailed {
		t.Fatalf("the error is %v", err)
	}
	wantIdle(t, short)
	locked := newPoolBeside(t, pool, param("lock_timeout", "30"))
	_, _, err = pgxstore.New(locked).Begin(context.Background(), claimOf("k"))
	if err == nil || s.Classify(err) != store.ClassConflict {
		t.Fatalf("the error is %v", err)
	}
	rollBack(t, s, rival)
	wantFound(t, pool, 1, 0)
}

// newPoolBeside returns another pool in the schema of pool.
func newPoolBeside(t *testing.T, pool *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	change(config)
	beside, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	return beside
}

func TestClaimsCancelledAtAnyMomentLeaveNothingBehind(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	random := rand.New(rand.NewPCG(1, 2))
	processed := 0
	for i := range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(3000))*time.Microsecond)
		tx, _, err := s.Begin(ctx, claimOf(fmt.Sprint("k", i)))
		if err == nil {
			if _, err = tx.Exec(ctx, sell); err == nil {
				err = s.Commit(ctx, tx)
			}
			// It may be called in any case.
			if undone := s.Rollback(ctx, tx); undone != nil && !errors.Is(undone, store.ErrUnavailable) {
				t.Fatal(undone)
			}
		}
		if err == nil {
			processed++
		} else if ctx.Err() == nil {
			t.Fatal(err)
		}
		cancel()
	}
	t.Logf("%d of 300 were processed", processed)
	wantFound(t, pool, processed, processed)
}

func TestAServerThatCannotBeReachedIsUnavailable(t *testing.T) {
	pool := newPool(t, schemaTable, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("no route")
		}
	})
	s := pgxstore.New(pool)
	_, _, err := s.Begin(context.Background(), claimOf("k"))
	wantError(t, err, store.ErrUnavailable)
	_, err = s.Seen(context.Background(), claimOf("k"))
	wantError(t, err, store.ErrUnavailable)
	wantError(t, s.Check(context.Background()), store.ErrUnavailable)
	if err := pool.Ping(context.Background()); s.Classify(err) != store.ClassUnavailable {
		t.Errorf("the class of %v is %v", err, s.Classify(err))
	}
}

func TestAClaimThatNoStoreTakesCostsNoConnection(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	_, _, err := s.Begin(context.Background(), claimOf(" "))
	wantError(t, err, store.ErrNoKey)
	_, err = s.Seen(context.Background(), claimOf(""))
	wantError(t, err, store.ErrNoKey)
	_, err = s.Claim(context.Background(), nil, claimOf(""))
	wantError(t, err, store.ErrNoKey)
	if n := pool.Stat().AcquireCount(); n != 0 {
		t.Errorf("%d connections were acquired", n)
	}
}
