package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
	"github.com/sekali/sekali/store/sqlstore"
)

var _ sqlstore.Inspector = dialect{}

// Session implements sqlstore.Inspector.
func (dialect) Session() string { return "SELECT pg_backend_pid()" }

// SharesSession implements sqlstore.Inspector: a prepared statement that is not
// there, or is there already.
func (dialect) SharesSession(err error) bool {
	state := pgsql.State(err)
	return state == "26000" || state == "42P05"
}

// settings are what the server and the session are set to.
const settings = `SELECT current_setting('server_version'), current_setting('default_transaction_isolation'),
	CASE WHEN pg_is_in_recovery() THEN 'the server is a read replica'
		WHEN current_setting('default_transaction_read_only') = 'on' THEN 'default_transaction_read_only is on' ELSE '' END,
	CASE WHEN current_setting('fsync') = 'off' THEN 'fsync = off'
		WHEN current_setting('full_page_writes') = 'off' THEN 'full_page_writes = off' ELSE '' END,
	CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit = off' ELSE '' END,
	CAST(current_setting('max_connections') AS int) - CAST(current_setting('superuser_reserved_connections') AS int),
	(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')`

// Inspect implements sqlstore.Inspector.
func (d dialect) Inspect(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error {
	var version string
	err := conn.QueryRowContext(ctx, settings).
		Scan(&version, &f.Isolation, &f.ReadOnly, &f.Volatile, &f.SomewhatVolatile, &f.Connections, &f.InUse)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	if f.Isolation == "read uncommitted" {
		f.Isolation = "read committed" // which it is
	}
	version, _, _ = strings.Cut(version, " ")
	f.Database = "PostgreSQL " + version
	f.Prepares = prepares(conn)
	var indexed bool
	table := pgsql.Quote(t, t.ProcessedMessages)
	err = conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
		WHERE i.indrelid = to_regclass(`+literal(table)+`) AND i.indisvalid AND i.indpred IS NULL AND a.attname = 'processed_at')`).Scan(&indexed)
	if err != nil {
		return fmt.Errorf("look for indexes: %w", err)
	}
	if !indexed {
		f.NoIndex = append(f.NoIndex, "processed_at")
	}
	return wastes(ctx, conn, t, f)
}

// prepares tells whether the driver is pgx and prepares statements in the
// session.
func prepares(conn *sql.Conn) (is bool) {
	_ = conn.Raw(func(driverConn any) error { // f returns no error, and an open connection gives none
		if c, ok := driverConn.(interface{ Conn() *pgx.Conn }); ok {
			mode := c.Conn().Config().DefaultQueryExecMode
			is = mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeCacheDescribe
		}
		return nil
	})
	return is
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// Fewer dead rows than this, or than live ones, are no waste: autovacuum comes.
const muchDead = 10_000

// wastes looks for tables that autovacuum does not keep up with.
func wastes(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error {
	for _, name := range []string{t.ProcessedMessages, t.OutboxMessages, t.DeadLetters, t.ExternalEffects} {
		table := pgsql.Quote(t, name)
		var live, dead int64
		err := conn.QueryRowContext(ctx, "SELECT coalesce(max(n_live_tup), 0), coalesce(max(n_dead_tup), 0) FROM pg_stat_all_tables"+
			" WHERE relid = to_regclass("+literal(table)+")").Scan(&live, &dead)
		if err != nil {
			return fmt.Errorf("read the statistics of table %s: %w", t.In(name), err)
		}
		if dead > muchDead && dead > live {
			f.Wastes = append(f.Wastes, admin.Waste{
				Table: t.In(name), Share: float64(dead) / float64(live+dead), Rows: dead, Mend: "VACUUM " + t.In(name) + ";",
			})
		}
	}
	return nil
}
