package mysql

import (
	"errors"

	driver "github.com/go-sql-driver/mysql"

	"github.com/sekali/sekali/store/sqlstore"
)

// kinds are the servers' error numbers that mean something here.
var kinds = map[uint16]sqlstore.Kind{
	1062: sqlstore.KindDuplicate, // duplicate entry

	1146: sqlstore.KindSchema, // no such table
	1054: sqlstore.KindSchema, // unknown column

	1305: sqlstore.KindLost, // no such savepoint

	1213: sqlstore.KindConflict, // deadlock; Galera's certification too
	1205: sqlstore.KindConflict, // lock wait time-out
	1020: sqlstore.KindConflict, // record has changed since the snapshot
	1412: sqlstore.KindConflict, // table definition has changed since the snapshot
	3572: sqlstore.KindConflict, // lock not available, NOWAIT
	1180: sqlstore.KindConflict, // error during COMMIT: Galera, when it lost

	1047: sqlstore.KindUnavailable, // Galera: the node is not ready
	1053: sqlstore.KindUnavailable, // shutdown in progress
	1077: sqlstore.KindUnavailable, // normal shutdown
	1078: sqlstore.KindUnavailable, // got a signal, aborting
	1079: sqlstore.KindUnavailable, // shutdown complete
	1040: sqlstore.KindUnavailable, // too many connections
	1203: sqlstore.KindUnavailable, // too many of this user's
	1226: sqlstore.KindUnavailable, // a resource limit of this user's
	1290: sqlstore.KindUnavailable, // read-only, as after a demotion
	1792: sqlstore.KindUnavailable, // the transaction is read-only
	1836: sqlstore.KindUnavailable, // read-only mode
	1021: sqlstore.KindUnavailable, // disk full
	1114: sqlstore.KindUnavailable, // table full
	1037: sqlstore.KindUnavailable, // out of memory
	1041: sqlstore.KindUnavailable, // out of memory
	1927: sqlstore.KindUnavailable, // connection was killed
	1158: sqlstore.KindUnavailable, // network: reading
	1159: sqlstore.KindUnavailable, // network: reading took too long
	1160: sqlstore.KindUnavailable, // network: writing
	1161: sqlstore.KindUnavailable, // network: writing took too long
	2006: sqlstore.KindUnavailable, // server has gone away
	2013: sqlstore.KindUnavailable, // connection lost during a query

	// Somebody interrupted the statement: of a COMMIT that says nothing.
	1317: sqlstore.KindNone,
	1969: sqlstore.KindNone, // max_statement_time
	3024: sqlstore.KindNone, // max_execution_time
}

// Kind goes by the server's number, which does not depend on its language.
func (dialect) Kind(err error) sqlstore.Kind {
	if errors.Is(err, driver.ErrInvalidConn) {
		return sqlstore.KindUnavailable
	}
	var e *driver.MySQLError
	if !errors.As(err, &e) {
		return sqlstore.KindNone
	}
	if kind, ok := kinds[e.Number]; ok {
		return kind
	}
	return sqlstore.KindStatement
}
