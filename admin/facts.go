package admin

import (
	"time"
)

// Facts are what a database says of itself, for Diagnose. A field that a
// database has nothing to say about is empty.
type Facts struct {
	// Database names the server and its version, such as "PostgreSQL 17.2".
	Database string
	// ReadOnly says why nothing can be written through this connection.
	ReadOnly string
	// Unfit are tables that are missing or not as they must be.
	Unfit []Unfit
	// Isolation of transactions unless they ask for another one, in lower case:
	// "read committed"; empty where the database has only one.
	Isolation string
	// Volatile says which setting lets a commit be lost in a crash of the
	// server, such as "fsync = off"; SomewhatVolatile which one may lose the
	// last moments before it.
	Volatile, SomewhatVolatile string
	// ClockAhead is how far the database's clock is ahead of this process's,
	// give or take ClockWithin, which is what the question took.
	ClockAhead, ClockWithin time.Duration
	// SharedSession tells that two connections, open at once, were served by
	// one session of the server: a pooler stands between, in transaction mode.
	SharedSession bool
	// Confused tells that a statement was prepared in one session and expected
	// in another: what comes after the sessions in Facts is not known.
	Confused bool
	// Prepares tells that the connection prepares statements in the session
	// and expects them to be there later.
	Prepares bool
	// Pool is how many connections this process's pool has at most; 0: no
	// limit.
	Pool int
	// Connections is how many the server takes for ordinary users, InUse how
	// many are open; 0: it has no limit, or does not tell.
	Connections, InUse int
	// Wastes are tables in which more room is empty than should be.
	Wastes []Waste
	// NoIndex are indexes that sekali migrate makes and that are not there.
	NoIndex []string
	// Overview as Health returns it.
	Overview Overview
}

// Unfit is a table that is missing or not as it must be.
type Unfit struct {
	Table string
	// Main tells that it is processed_messages, without which nothing works.
	Main bool
	// Cause says what is wrong, Mend what to do, SQL how, if that can be said,
	// Without what does not work until then.
	Cause, Mend, SQL, Without string
}

// Waste is room in a table that holds nothing.
type Waste struct {
	Table string
	// Share of the table that is empty or dead, 0 to 1.
	Share float64
	// Rows are dead rows, Bytes is empty room; whichever the database counts.
	Rows, Bytes int64
	// Mend is the statement that gives the room back.
	Mend string
}
