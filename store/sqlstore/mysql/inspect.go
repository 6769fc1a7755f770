package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/internal/sqltext"
)

var _ sqlstore.Inspector = dialect{}

// Session implements sqlstore.Inspector.
func (dialect) Session() string { return "SELECT CONNECTION_ID()" }

// SharesSession implements sqlstore.Inspector: what stands between prepares
// for itself.
func (dialect) SharesSession(error) bool { return false }

// variables are what the session is set to. MariaDB and MySQL have other names
// for some: SHOW returns those that are there.
const variables = "SHOW VARIABLES WHERE Variable_name IN ('version', 'tx_isolation', 'transaction_isolation', 'read_only', 'tx_read_only'," +
	" 'transaction_read_only', 'max_connections', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite')"

// Inspect implements sqlstore.Inspector.
func (d dialect) Inspect(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error {
	set := map[string]string{}
	pair := func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		set[strings.ToLower(name)] = value
		return err
	}
	for _, query := range []string{variables, "SHOW STATUS WHERE Variable_name = 'Threads_connected'"} {
		if err := sqltext.Each(ctx, conn, query, nil, pair); err != nil {
			return fmt.Errorf("read the settings: %w", err)
		}
	}
	interpret(set, f)
	indexed := 0
	err := conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.STATISTICS WHERE SEQ_IN_INDEX = 1 AND LOWER(COLUMN_NAME) = 'processed_at' AND "+
		here(t, "")).Scan(&indexed)
	if err != nil {
		return fmt.Errorf("look for indexes: %w", err)
	}
	if indexed == 0 {
		f.NoIndex = append(f.NoIndex, "processed_at")
	}
	return wastes(ctx, conn, t, f)
}

// interpret reads the settings.
func interpret(set map[string]string, f *admin.Facts) {
	kind := "MySQL "
	if strings.Contains(set["version"], "MariaDB") {
		kind = "MariaDB "
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(set["version"], "5.5.5-"), "-")
	f.Database = kind + version
	for _, name := range []string{"tx_isolation", "transaction_isolation"} {
		if is := set[name]; is != "" {
			f.Isolation = strings.ToLower(strings.ReplaceAll(is, "-", " "))
		}
	}
	for _, name := range []string{"read_only", "tx_read_only", "transaction_read_only"} {
		if is := set[name]; is != "" && is != "OFF" && is != "0" {
			f.ReadOnly = name + " is " + is
		}
	}
	switch flush := set["innodb_flush_log_at_trx_commit"]; flush {
	case "0", "2":
		f.SomewhatVolatile = "innodb_flush_log_at_trx_commit = " + flush
	}
	f.Connections, _ = strconv.Atoi(set["max_connections"]) // 0 says that it is not known
	f.InUse, _ = strconv.Atoi(set["threads_connected"])
}

// Less free room than this, or than what is used, is no waste: it is used again.
const muchFree = 8 << 20

// wastes looks for tables whose files are mostly empty.
func wastes(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error {
	schema := "DATABASE()"
	if t.Schema != "" {
		schema = "'" + t.Schema + "'"
	}
	names := "'" + strings.Join([]string{t.ProcessedMessages, t.OutboxMessages, t.DeadLetters, t.ExternalEffects}, "', '") + "'"
	query := "SELECT TABLE_NAME, COALESCE(DATA_LENGTH + INDEX_LENGTH, 0), COALESCE(DATA_FREE, 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA = " +
		schema + " AND TABLE_NAME IN (" + names + ")"
	return sqltext.Each(ctx, conn, query, nil, func(rows *sql.Rows) error {
		var name string
		var used, free int64
		if err := rows.Scan(&name, &used, &free); err != nil {
			return err
		}
		if free > muchFree && free > used {
			f.Wastes = append(f.Wastes, admin.Waste{
				Table: t.In(name), Share: float64(free) / float64(used+free), Bytes: free, Mend: "OPTIMIZE TABLE " + t.In(name) + ";",
			})
		}
		return nil
	})
}
