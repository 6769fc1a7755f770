//go:build !fast

package sekalitest

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
)

const pgSchema = `
	CREATE TABLE stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
	INSERT INTO stock VALUES ('KOPI-250', 100), ('TEH-100', 100);
	CREATE TABLE moves (order_id TEXT NOT NULL, quantity INTEGER NOT NULL);`

func pgURL() string { return os.Getenv("SEKALI_TEST_POSTGRES_URL") }

// pgCase is the shop on pgx, with a handler of its own.
func pgCase(handle func(pool *pgxpool.Pool) sekali.Handler[pgx.Tx]) func(testing.TB) Case[pgx.Tx] {
	return func(t testing.TB) Case[pgx.Tx] {
		pool := Postgres(t, pgURL(), pgSchema)
		return Case[pgx.Tx]{
			Consumer: func(broker.Source) sekali.Config[pgx.Tx] {
				return sekali.Config[pgx.Tx]{
					Name: "stock", Store: pgxstore.New(pool), Key: sekali.JSON("/order"), Handle: handle(pool),
				}
			},
			Messages: shopMessages,
			Snapshot: Rows(pool, shopQueries...),
			Want:     "KOPI-250 | 94\nTEH-100 | 97\n\n1 | 2\n2 | 3\n3 | 4\n",
		}
	}
}

// pgHandler uses all ways to send statements.
func pgHandler(*pgxpool.Pool) sekali.Handler[pgx.Tx] {
	return func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
		o, err := orderOf(m)
		if err != nil {
			return sekali.Permanent(err)
		}
		var quantity int
		if err := tx.QueryRow(ctx, `SELECT quantity FROM stock WHERE sku = $1 FOR UPDATE`, o.SKU).Scan(&quantity); err != nil {
			return err
		}
		var b pgx.Batch
		b.Queue(`UPDATE stock SET quantity = $1 WHERE sku = $2`, quantity-o.Quantity, o.SKU)
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, `INSERT INTO moves VALUES ($1, $2)`, o.Order, 0); err != nil {
			return err
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"moves"}, []string{"order_id", "quantity"}, pgx.CopyFromRows([][]any{{o.Order, o.Quantity}}))
		return err
	}
}

func TestACorrectConsumerOfPgxPassesEveryDelivery(t *testing.T) {
	Run(t, pgCase(pgHandler))
}

func TestPgxStatementsAreCancelledOneAfterAnother(t *testing.T) {
	s := newSuite(t, pgCase(pgHandler))
	w := s.newWorld(t)
	defer w.scope.close()
	if err := w.play(t.Context(), history{{arrive: []int{0}, troubles: []trouble{{cancelling, 0}}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cancelled before it", "before statement 1", "before statement 2", "before statement 3", "before statement 4", "before statement 5", "cancelled after it"} {
		if !slices.ContainsFunc(w.trace, func(line string) bool { return strings.HasSuffix(line, want) }) {
			t.Errorf("no attempt was %q:\n%s", want, strings.Join(w.trace, "\n"))
		}
	}
}

func TestBrokenConsumersOfPgxAreCaught(t *testing.T) {
	for name, c := range map[string]struct {
		handle func(*pgxpool.Pool) sekali.Handler[pgx.Tx]
		want   []string
	}{
		"written through the pool": {func(pool *pgxpool.Pool) sekali.Handler[pgx.Tx] {
			return func(ctx context.Context, _ pgx.Tx, m *sekali.Message) error {
				o, _ := orderOf(m)
				_, err := pool.Exec(ctx, `INSERT INTO moves VALUES ($1, $2)`, o.Order, o.Quantity)
				if err == nil {
					_, err = pool.Exec(ctx, `UPDATE stock SET quantity = quantity - $1 WHERE sku = $2`, o.Quantity, o.SKU)
				}
				return err
			}
		}, []string{"crash after the handler", "handler error then success", "panic", "cancelled at every statement", "error at every statement", "panic at every statement", "poison neighbour", "redrive"}},
		"an error of the last statement is swallowed": {func(pool *pgxpool.Pool) sekali.Handler[pgx.Tx] {
			return func(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
				o, _ := orderOf(m)
				if _, err := tx.Exec(ctx, `UPDATE stock SET quantity = quantity - $1 WHERE sku = $2`, o.Quantity, o.SKU); err != nil {
					return err
				}
				_, _ = tx.Exec(ctx, `INSERT INTO moves VALUES ($1, $2)`, o.Order, o.Quantity)
				return nil
			}
		}, []string{"cancelled at every statement", "error at every statement"}},
	} {
		t.Run(name, func(t *testing.T) {
			if caught := caughtBy(t, pgCase(c.handle)); !slices.Equal(caught, c.want) {
				t.Errorf("caught by %q, want %q", caught, c.want)
			}
		})
	}
}

func TestACorrectConsumerOnPostgresThroughDatabaseSQLPassesEveryDelivery(t *testing.T) {
	Run(t, func(t testing.TB) Case[*sql.Tx] {
		db := PostgresDB(t, pgURL(), pgSchema)
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) shop {
				cfg := newShop(nil, source)
				cfg.Store = sqlstore.New(db, postgres.Dialect)
				cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
					o, err := orderOf(m)
					if err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, `UPDATE stock SET quantity = quantity - $1 WHERE sku = $2`, o.Quantity, o.SKU); err != nil {
						return err
					}
					insert, err := tx.PrepareContext(ctx, `INSERT INTO moves VALUES ($1, $2)`)
					if err != nil {
						return err
					}
					defer insert.Close()
					_, err = insert.ExecContext(ctx, o.Order, o.Quantity)
					return err
				}
				return cfg
			},
			Messages: shopMessages,
			Snapshot: Rows(db, shopQueries...),
		}
	})
}

// mariaDB opens a schema of its own through OpenDB.
func mariaDB(t testing.TB) *sql.DB {
	t.Helper()
	schema := dbtest.MySQL(t)
	u, err := url.Parse(schema.URL)
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := dburl.MySQLDSN(u)
	if err != nil {
		t.Fatal(err)
	}
	connector, err := driver.MySQLDriver{}.OpenConnector(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return OpenDB(t, connector)
}

func TestTimePassesOnMariaDB(t *testing.T) {
	db := mariaDB(t)
	s := sqlstore.New(db, mysql.Dialect)
	letPass(t, db, Elapse[*sql.DB], s.Effects(), store.Ager(s), claimOn(t, s))
}

func TestADriverOfAnotherDatabaseIsSeenThroughOpenDB(t *testing.T) {
	world := func(t testing.TB) Case[*sql.Tx] {
		db := mariaDB(t)
		execute(t, db, []string{
			"CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity INTEGER NOT NULL)",
			"INSERT INTO stock VALUES ('KOPI-250', 100), ('TEH-100', 100)",
			"CREATE TABLE moves (order_id VARCHAR(20) NOT NULL, quantity INTEGER NOT NULL)",
		})
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) shop {
				cfg := newShop(db, source)
				cfg.Store = sqlstore.New(db, mysql.Dialect)
				return cfg
			},
			Messages: shopMessages[:2],
			Snapshot: Rows(db, shopQueries...),
			Want:     "KOPI-250 | 98\nTEH-100 | 97\n\n1 | 2\n2 | 3\n",
		}
	}
	s := newSuite(t, world)
	for _, d := range s.deliveries() {
		switch d.name {
		case "once", "at once, 2 consumers", "crash after the handler", "cancelled at every statement", "error at every statement", "panic at every statement":
			if f := s.prove(t, d); f != nil {
				t.Error(f.report(t.Name(), d))
			}
		}
	}
}

func TestTimePassesOnPostgres(t *testing.T) {
	pool := Postgres(t, pgURL())
	s := pgxstore.New(pool)
	letPass(t, pool, Elapse[*pgxpool.Pool], s.Effects(), store.Ager(s), claimOn(t, s))
}
