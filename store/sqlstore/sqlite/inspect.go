package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
)

var _ sqlstore.Inspector = dialect{}

// Session implements sqlstore.Inspector: there is no server.
func (dialect) Session() string { return "" }

// SharesSession implements sqlstore.Inspector.
func (dialect) SharesSession(error) bool { return false }

// Free pages below this size, or this share of the file, are no waste: they
// are used again.
const (
	muchFree  = 4 << 20
	mostOfAll = 0.5
)

// Inspect implements sqlstore.Inspector.
func (dialect) Inspect(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error {
	schema := t.Schema
	if schema == "" {
		schema = "main"
	}
	var version string
	var synchronous, queryOnly, uncommitted, pages, free, size, indexed int64
	for query, into := range map[string]any{
		"SELECT sqlite_version()":              &version,
		"PRAGMA " + schema + ".synchronous":    &synchronous,
		"PRAGMA query_only":                    &queryOnly,
		"PRAGMA read_uncommitted":              &uncommitted,
		"PRAGMA " + schema + ".page_count":     &pages,
		"PRAGMA " + schema + ".freelist_count": &free,
		"PRAGMA " + schema + ".page_size":      &size,
		"SELECT COUNT(*) FROM pragma_index_list" + of(t, t.ProcessedMessages) + " AS l WHERE (SELECT lower(name) FROM pragma_index_info(l.name)" +
			" WHERE seqno = 0) = 'processed_at'": &indexed,
	} {
		if err := conn.QueryRowContext(ctx, query).Scan(into); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
	}
	f.Database = "SQLite " + version
	if uncommitted == 1 {
		f.Isolation = "read uncommitted"
	}
	if queryOnly == 1 {
		f.ReadOnly = "query_only is on"
	}
	switch synchronous {
	case 0:
		f.Volatile = "synchronous = OFF"
	case 1:
		f.SomewhatVolatile = "synchronous = NORMAL"
	}
	if indexed == 0 {
		f.NoIndex = append(f.NoIndex, "processed_at")
	}
	if share := float64(free) / float64(max(pages, 1)); share > mostOfAll && free*size > muchFree {
		f.Wastes = append(f.Wastes, admin.Waste{Table: "the whole file", Share: share, Bytes: free * size, Mend: "VACUUM;"})
	}
	return nil
}
