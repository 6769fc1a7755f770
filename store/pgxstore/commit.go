package pgxstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/internal/pgsql"
)

// question is the guard and COMMIT, sent together.
type question struct {
	guard string // SQL, for the simple protocol; empty: it is prepared
	xid   string
}

// guardName is what the guard is prepared as.
const guardName = "sekali_guard"

// commitOf makes the question. Where the client prepares statements anyway the
// guard is prepared too, once for a connection: to parse and plan it each time
// would cost as much as a round trip on a near server.
func commitOf(ctx context.Context, t *transaction) (q question, err error) {
	if t.xid != "" && t.raw.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		if _, err := t.raw.Prepare(ctx, guardName, pgsql.PreparedGuard); err != nil {
			err = fmt.Errorf("prepare the guard of COMMIT: %w", err)
			switch {
			case pgsql.State(err) == idleTooLong:
				err = fmt.Errorf("nothing is committed: the handler was idle in the transaction for too long: %w", err)
			case t.raw.IsClosed():
				err = fmt.Errorf("%w: nothing is committed: %w", store.ErrUnavailable, err)
			}
			return q, err
		}
		return question{xid: t.xid}, nil
	}
	q.guard, err = pgsql.Guard(t.xid)
	return q, err
}

// send sends it, and returns how often the server will be ready for more.
func (q question) send(f *pgproto3.Frontend) (ready int, err error) {
	if q.guard != "" {
		f.SendQuery(&pgproto3.Query{String: q.guard + "; COMMIT"})
		return 1, f.Flush()
	}
	f.SendBind(&pgproto3.Bind{PreparedStatement: guardName, Parameters: [][]byte{[]byte(q.xid)}})
	f.SendExecute(&pgproto3.Execute{})
	f.SendSync(&pgproto3.Sync{})
	// After an error of the guard this is answered with ROLLBACK.
	f.SendQuery(&pgproto3.Query{String: "COMMIT"})
	return 2, f.Flush()
}

// sendCommit sends the guard and COMMIT together and judges the
// answer. It speaks the protocol itself because pgx drops warnings unless the
// pool was made with a hook for them, and because a cancelled context must not
// interrupt it: it obeys the deadline of ctx alone.
func sendCommit(ctx context.Context, conn *pgx.Conn, q question) error {
	a, err := exchange(ctx, conn.PgConn(), q)
	if err == nil {
		if a.err != nil && a.err.Code == noSuchStatement {
			_ = conn.Close(ctx) // the handler deallocated it; the next connection has it
		}
		return a.judge()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(closing) // its state is in doubt
	if pgsql.State(err) == idleTooLong {
		return fmt.Errorf("nothing is committed: the handler was idle in the transaction for too long: %w", err)
	}
	return fmt.Errorf("%w: %w", store.ErrCommitUnknown, err)
}

// idleTooLong is idle_in_transaction_session_timeout. The server closed the
// connection while it waited for the handler, so before it read COMMIT. As an
// unknown outcome it would be run again for ever, uncounted.
const idleTooLong = "25P03"

func exchange(ctx context.Context, conn *pgconn.PgConn, q question) (answer, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.Conn().SetDeadline(deadline); err != nil {
		return answer{}, fmt.Errorf("set the deadline of COMMIT: %w", err)
	}
	ready, err := q.send(conn.Frontend())
	if err != nil {
		return answer{}, fmt.Errorf("send COMMIT: %w", err)
	}
	var a answer
	for a.ready < ready {
		m, err := conn.ReceiveMessage(context.Background()) // the deadline is set
		if err != nil && a.err == nil {
			return answer{}, fmt.Errorf("wait for the answer to COMMIT: %w", err)
		}
		if err != nil {
			break // it had failed before the connection did
		}
		a.take(m)
	}
	// Where this fails, the next use of the connection will.
	_ = conn.Conn().SetDeadline(time.Time{})
	return a, nil
}

// answer is what the server said to the guard and COMMIT.
type answer struct {
	tag    string          // of the last command that succeeded
	done   int             // commands that succeeded
	err    *pgconn.PgError // the first error
	before int             // commands that succeeded before it
	doubt  *pgconn.PgError // a warning that the commit is not what was asked for
	ready  int             // how often the server was ready for more
}

// take notes one message, which is valid until the next is received.
func (a *answer) take(m pgproto3.BackendMessage) {
	switch m := m.(type) {
	case *pgproto3.CommandComplete:
		a.tag = string(m.CommandTag)
		a.done++
	case *pgproto3.ErrorResponse:
		if a.err == nil {
			a.err, a.before = pgconn.ErrorResponseToPgError(m), a.done
		}
	case *pgproto3.NoticeResponse:
		if doubtful(m) {
			a.doubt = pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(m))
		}
	case *pgproto3.ReadyForQuery:
		a.ready++
	}
}

// doubtful tells whether a message that came with COMMIT may be the warning
// "committed locally, but perhaps not on the standby": 01000 when the wait was
// cancelled, 57P01 when the server was told to stop. The text is no help, for
// it comes in the server's language. A deferred trigger's RAISE WARNING has
// the same code; it is told by its origin, and what cannot be told is doubted:
// the run that follows finds the key and does nothing.
func doubtful(m *pgproto3.NoticeResponse) bool {
	if m.SeverityUnlocalized != "WARNING" || m.Code != "01000" && m.Code != "57P01" {
		return false
	}
	return m.Routine != "exec_stmt_raise"
}

// Codes with which the guard fails.
const (
	divisionByZero = "22012" // it is another transaction
	aborted        = "25P02" // it can only roll back

	noSuchStatement = "26000" // the prepared guard is not there
)

func (a answer) judge() error {
	switch {
	case a.err != nil && a.before == 0 && a.err.Code == divisionByZero:
		return fmt.Errorf("%w: the handler ended it by itself and began another", store.ErrTransactionLost)
	case a.err != nil && a.err.Code == aborted:
		return fmt.Errorf("%w: %w", store.ErrTransactionLost, a.err)
	case a.err != nil:
		return a.err
	case a.tag != "COMMIT":
		return fmt.Errorf("%w: the server answered COMMIT with %s", store.ErrTransactionLost, a.tag)
	case a.doubt != nil:
		return fmt.Errorf("%w: it is committed on this server alone: %w", store.ErrCommitUnknown, a.doubt)
	}
	return nil
}
