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

// sendCommit sends the guard and COMMIT as one simple query and judges the
// answer. It speaks the protocol itself because pgx drops warnings unless the
// pool was made with a hook for them, and because a cancelled context must not
// interrupt it: it obeys the deadline of ctx alone.
func sendCommit(ctx context.Context, conn *pgx.Conn, sql string) error {
	a, err := exchange(ctx, conn.PgConn(), sql)
	if err == nil {
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

func exchange(ctx context.Context, conn *pgconn.PgConn, sql string) (answer, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.Conn().SetDeadline(deadline); err != nil {
		return answer{}, fmt.Errorf("set the deadline of COMMIT: %w", err)
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: sql})
	if err := conn.Frontend().Flush(); err != nil {
		return answer{}, fmt.Errorf("send COMMIT: %w", err)
	}
	var a answer
	for !a.complete {
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
	tag      string          // of the last command that succeeded
	done     int             // commands that succeeded
	err      *pgconn.PgError // the first error
	doubt    *pgconn.PgError // a warning that the commit is not what was asked for
	complete bool            // the server is ready for more
}

// take notes one message, which is valid until the next is received.
func (a *answer) take(m pgproto3.BackendMessage) {
	switch m := m.(type) {
	case *pgproto3.CommandComplete:
		a.tag = string(m.CommandTag)
		a.done++
	case *pgproto3.ErrorResponse:
		if a.err == nil {
			a.err = pgconn.ErrorResponseToPgError(m)
		}
	case *pgproto3.NoticeResponse:
		if doubtful(m) {
			a.doubt = pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(m))
		}
	case *pgproto3.ReadyForQuery:
		a.complete = true
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
)

func (a answer) judge() error {
	switch {
	case a.err != nil && a.done == 0 && a.err.Code == divisionByZero:
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
