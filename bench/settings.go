package bench

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/sekali/sekali/internal/dburl"
)

// newTarget makes the table of stock.
func newTarget(ctx context.Context, d *dburl.DB, url string) (target, error) {
	if _, err := d.SQL.ExecContext(ctx, `CREATE TABLE stock (sku VARCHAR(20) PRIMARY KEY, quantity BIGINT NOT NULL)`); err != nil {
		return nil, fmt.Errorf("make the table of stock: %w", err)
	}
	if d.Pool != nil {
		return newPG(d.Pool, url), nil
	}
	d.SQL.SetMaxIdleConns(40) // like pgx's pool, which keeps what it has
	return newDB(d, url), nil
}

// withConnections lets a pool have a connection for each worker.
func withConnections(kind dburl.Kind, raw string) string {
	u, err := url.Parse(raw)
	if err != nil || kind != dburl.PostgreSQL {
		return raw
	}
	q := u.Query()
	if !q.Has("pool_max_conns") {
		q.Set("pool_max_conns", "40")
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// temporary is a file of the benchmark's own, beside the one that a URL names,
// so that it lies on the same disk.
func temporary(raw string) (string, func(context.Context) error, error) {
	path, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(raw, "sqlite:"), "//"), "?")
	folder, err := os.MkdirTemp(filepath.Dir(path), "sekali-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the benchmark's file: %w", err)
	}
	return "sqlite:" + filepath.Join(folder, "bench.db"), func(context.Context) error { return os.RemoveAll(folder) }, nil
}

// setting is one that decides whether a commit survives a loss of power.
type setting struct {
	name, query string
	want        []string // none: shown alone
}

// durable returns the settings on which the figures depend, or an error that
// names the one by which commits may be lost.
func durable(ctx context.Context, d *dburl.DB) (map[string]string, error) {
	var settings []setting
	switch d.Kind {
	case dburl.PostgreSQL:
		settings = []setting{
			{"version", "SHOW server_version", nil},
			{"fsync", "SHOW fsync", []string{"on"}},
			{"synchronous_commit", "SHOW synchronous_commit", []string{"on", "remote_apply", "remote_write", "local"}},
			{"full_page_writes", "SHOW full_page_writes", nil},
			{"shared_buffers", "SHOW shared_buffers", nil},
			{"max_wal_size", "SHOW max_wal_size", nil},
		}
	case dburl.MySQL:
		settings = []setting{
			{"version", "SELECT VERSION()", nil},
			{"innodb_flush_log_at_trx_commit", "SELECT @@innodb_flush_log_at_trx_commit", []string{"1"}},
			{"log_bin", "SELECT @@log_bin", nil},
			{"innodb_buffer_pool_size", "SELECT @@innodb_buffer_pool_size", nil},
		}
	default:
		settings = []setting{
			{"version", "SELECT sqlite_version()", nil},
			{"synchronous", "PRAGMA synchronous", []string{"2", "3"}},
			{"journal_mode", "PRAGMA journal_mode", nil},
		}
	}
	found := map[string]string{}
	for _, s := range settings {
		var value string
		if err := d.SQL.QueryRowContext(ctx, s.query).Scan(&value); err != nil {
			return nil, fmt.Errorf("read the setting %s: %w", s.name, err)
		}
		found[s.name] = value
		ok := len(s.want) == 0
		for _, w := range s.want {
			ok = ok || w == value
		}
		if !ok {
			return nil, fmt.Errorf("its setting %s is %s: %w: set it to %s", s.name, value, errNotDurable, s.want[0])
		}
	}
	return found, nil
}
