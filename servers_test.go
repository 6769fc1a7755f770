//go:build !fast

package sekali_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/natstest"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

func execPgx(ctx context.Context, tx pgx.Tx, statement string) error {
	_, err := tx.Exec(ctx, statement)
	return err
}

func TestPostgreSQLWithPgx(t *testing.T) {
	db := dbtest.Postgres(t)
	whole(t, stack[pgx.Tx]{kind: "pgx", db: db, store: pgxstore.New(db.Pool(nil)), exec: execPgx, nats: natstest.RealURL(t)})
}

func TestPostgreSQLWithDatabaseSQL(t *testing.T) {
	db := dbtest.Postgres(t)
	whole(t, stack[*sql.Tx]{kind: "postgres", db: db, store: sqlstore.New(db.SQL, postgres.Dialect), exec: execSQL, nats: natstest.RealURL(t)})
}

func TestMariaDB(t *testing.T) {
	db := dbtest.MySQL(t)
	whole(t, stack[*sql.Tx]{kind: "mysql", db: db, store: sqlstore.New(db.SQL, mysql.Dialect), exec: execSQL, nats: natstest.RealURL(t)})
}

func serverRacer(kind, url string) error {
	if kind == "pgx" {
		pool, err := pgxpool.New(context.Background(), url)
		if err != nil {
			return err
		}
		defer pool.Close()
		return runRacer(pgxstore.New(pool), execPgx)
	}
	db, err := dburl.Open(context.Background(), url, false)
	if err != nil {
		return fmt.Errorf("racer: %w", err)
	}
	defer db.Close()
	return runRacer(sqlstore.New(db.SQL, db.Dialect()), execSQL)
}

// throughProxy returns a proxy before a database's server, and the URL that
// leads through it.
func throughProxy(t *testing.T, db *dbtest.DB) (*faulty.Proxy, string) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faulty.NewProxy(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	u.Host = proxy.Addr()
	return proxy, u.String()
}

// overProxies runs a test for each store whose database is behind a proxy.
// commit is what its COMMIT looks like on the wire.
func overProxies(t *testing.T, pgxTest func(*testing.T, wired[pgx.Tx]), sqlTest func(*testing.T, wired[*sql.Tx])) {
	t.Run("PostgreSQL with pgx", func(t *testing.T) {
		db := dbtest.Postgres(t)
		proxy, through := throughProxy(t, db)
		pool, err := pgxpool.New(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		pgxTest(t, wired[pgx.Tx]{stack[pgx.Tx]{db: db, store: pgxstore.New(pool), exec: execPgx, nats: natstest.RealURL(t)}, proxy, "COMMIT"})
	})
	for name, c := range map[string]struct {
		open   func(testing.TB, ...dbtest.Option) *dbtest.DB
		commit string
	}{
		"PostgreSQL with database/sql": {dbtest.Postgres, "commit"},
		"MariaDB":                      {dbtest.MySQL, "COMMIT"},
	} {
		t.Run(name, func(t *testing.T) {
			db := c.open(t)
			proxy, through := throughProxy(t, db)
			client, err := dburl.Open(t.Context(), through, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			s := sqlstore.New(client.SQL, client.Dialect())
			sqlTest(t, wired[*sql.Tx]{stack[*sql.Tx]{db: db, store: s, exec: execSQL, nats: natstest.RealURL(t)}, proxy, c.commit})
		})
	}
}

// wired is a stack whose store reaches its database through a proxy.
type wired[Tx any] struct {
	stack[Tx]
	proxy  *faulty.Proxy
	commit string
}

func TestAHundredLostAnswersToCommitLeaveCountersExact(t *testing.T) {
	overProxies(t, lostCommits[pgx.Tx], lostCommits[*sql.Tx])
}

func TestConnectionsThatBreakAtAnyMomentLeaveEffectsExact(t *testing.T) {
	overProxies(t, brokenWires[pgx.Tx], brokenWires[*sql.Tx])
}

// brokenWires: a consumer works on while its connections to the database and
// to the broker are cut, again and again, wherever they are.
func brokenWires[Tx any](t *testing.T, s wired[Tx]) {
	const messages, cuts = 300, 40
	if _, err := s.db.SQL.Exec(`CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.SQL.Exec(`INSERT INTO stock VALUES ('KOPI-250', 100000)`); err != nil {
		t.Fatal(err)
	}
	o := s.orders(t)
	for i := range messages {
		o.publish(fmt.Sprint("order-", i))
	}
	wire := natstest.Connect(t, s.nats)
	js, err := jetstream.New(wire.Conn)
	if err != nil {
		t.Fatal(err)
	}
	r := s.consume(t, orders{t, js, o.name}, s.sell, func(c *sekali.Config[Tx]) { c.MaxAttempts = 2 })
	for i := range cuts {
		// After some more work, in the middle of whatever goes on then.
		r.events.wait(t, min(messages, 1+i*messages/cuts), kind(sekali.Finished))
		s.proxy.Cut()
		if i%4 == 0 {
			wire.Cut()
		}
	}
	r.events.wait(t, messages, kind(sekali.Finished))
	o.waitAcknowledged()
	r.stop()
	s.want(t, messages, messages)
	if n := s.number(t, `SELECT COUNT(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d messages became dead letters for a broken connection", n)
	}
}

// lostCommits: the database commits, and nobody hears of it.
func lostCommits[Tx any](t *testing.T, s wired[Tx]) {
	const lost, all = 100, 150
	for _, statement := range []string{`CREATE TABLE stock (quantity BIGINT NOT NULL)`, `INSERT INTO stock VALUES (0)`} {
		if _, err := s.db.SQL.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	rule := s.proxy.DropAnswer(s.commit, lost)
	inbox := sekali.NewInbox(s.store, "stock-service")
	outcomes := map[sekali.Outcome]int{}
	for i := range all {
		outcome, err := inbox.Process(t.Context(), fmt.Sprint("order-", i), func(ctx context.Context, tx Tx) error {
			return s.exec(ctx, tx, `UPDATE stock SET quantity = quantity + 1`)
		})
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		outcomes[outcome]++
	}
	var sold, keys int
	if err := s.db.SQL.QueryRow(`SELECT (SELECT quantity FROM stock), (SELECT COUNT(*) FROM processed_messages)`).Scan(&sold, &keys); err != nil {
		t.Fatal(err)
	}
	if sold != all || keys != all || rule.Fired() != lost {
		t.Errorf("%d effects and %d keys of %d messages, after %d lost answers", sold, keys, all, rule.Fired())
	}
	// The call did the work, lost the answer, and found its own key.
	if outcomes[sekali.Duplicate] != lost || outcomes[sekali.Processed] != all-lost {
		t.Errorf("the outcomes are %v", outcomes)
	}
}
