package migrate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3/lock"
)

// sessionLock lets one process at a time migrate. goose's own lock asks every
// five seconds; the servers' locks wake up whoever waits.
type sessionLock struct{ names }

var _ lock.SessionLocker = sessionLock{}

// maxWait is how many seconds MySQL waits for another process to finish.
const maxWait = 300

// lockKey is an expression for what is locked: the migrations of one schema.
func (n names) lockKey() string {
	if n.dialect == MySQL {
		return "CONCAT('sekali_migrate_', MD5(CONCAT(" + n.SchemaValue() + ", '." + n.versionTable() + "')))"
	}
	return "hashtextextended('sekali_migrate ' || " + n.SchemaValue() + " || '." + n.versionTable() + "', 0)"
}

// SessionLock implements lock.SessionLocker.
func (l sessionLock) SessionLock(ctx context.Context, c *sql.Conn) error {
	if l.dialect == Postgres {
		_, err := c.ExecContext(ctx, "SELECT pg_advisory_lock("+l.lockKey()+")")
		return l.wrap(c, "lock", err)
	}
	var got sql.NullInt64
	err := c.QueryRowContext(ctx, fmt.Sprintf("SELECT GET_LOCK(%s, %d)", l.lockKey(), maxWait)).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = fmt.Errorf("another process has held it for %d seconds: wait until that has migrated, or end it", maxWait)
	}
	return l.wrap(c, "lock", err)
}

// SessionUnlock implements lock.SessionLocker.
func (l sessionLock) SessionUnlock(ctx context.Context, c *sql.Conn) error {
	unlock := "SELECT pg_advisory_unlock(" + l.lockKey() + ")"
	if l.dialect == MySQL {
		unlock = "DO RELEASE_LOCK(" + l.lockKey() + ")"
	}
	_, err := c.ExecContext(ctx, unlock)
	return l.wrap(c, "unlock", err)
}

// wrap closes the connection after an error, and with it what it may hold.
func (l sessionLock) wrap(c *sql.Conn, doing string, err error) error {
	if err == nil {
		return nil
	}
	if closing := c.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(closing, driver.ErrBadConn) {
		err = errors.Join(err, closing)
	}
	return fmt.Errorf("%s the migrations in %s: %w", doing, l.tables.In(l.versionTable()), err)
}
