package sekalitest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// watch counts the statements that are made with a handler's context, and does
// something at one of them.
type watch struct {
	kind   kind // cancelling, erring or throwing
	at     int  // from 1; 0: before the handler
	cancel context.CancelFunc

	mu    sync.Mutex
	n     int
	fired bool
}

type watchKey struct{}

var errStatement = errors.New("sekalitest: the statement fails")

// statement is called before a statement is sent. An error: it is not to be.
// throws tells that it may panic: where database/sql would be left with a lock,
// an error takes the panic's place.
func statement(ctx context.Context, throws bool) error {
	w, ok := ctx.Value(watchKey{}).(*watch)
	if !ok || !w.now() {
		return nil
	}
	err := errStatement
	if w.kind == cancelling {
		w.cancel()
		// A context that a cancellation does not reach is not disturbed by it.
		if err = ctx.Err(); err == nil {
			return nil
		}
	}
	w.mu.Lock()
	w.fired = true
	w.mu.Unlock()
	if w.kind == throwing && throws {
		panic("sekalitest: the handler panics at a statement")
	}
	return err
}

// now counts a statement, and tells whether it is the one.
func (w *watch) now() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	return w.n == w.at
}

// watching returns the context for an attempt at some messages, if something
// is to befall them at every statement: at the first one in the first attempt,
// and so on; a cancellation before the handler at first, and after it at last.
// end tells whether it happened.
func (p *process[Tx]) watching(ctx context.Context, phase string, messages []int) (_ context.Context, end func() bool) {
	kind := p.watches(messages)
	if kind == 0 {
		return ctx, func() bool { return false }
	}
	attempt := fmt.Sprint(phase, messages)
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	w := &watch{kind: kind, at: p.attempts[attempt], cancel: cancel}
	p.mu.Unlock()
	switch {
	case kind != cancelling:
		w.at++
	case w.at == 0:
		w.fired = true
		cancel()
	}
	return context.WithValue(ctx, watchKey{}, w), func() bool {
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		p.w.tell("%s of message %d: %s", phase, messages[0]+1, w.said())
		p.w.mu.Lock()
		p.w.seen += w.n
		p.w.mu.Unlock()
		if w.fired {
			p.mu.Lock()
			p.attempts[attempt]++
			p.mu.Unlock()
		}
		return w.fired
	}
}

// said tells what was done. w.mu is held.
func (w *watch) said() string {
	switch {
	case w.kind == cancelling && !w.fired:
		return "its context is cancelled after it"
	case !w.fired:
		return "it has no more statements"
	case w.at == 0:
		return "its context is cancelled before it"
	case w.kind == cancelling:
		return fmt.Sprintf("its context is cancelled before statement %d", w.at)
	case w.kind == throwing:
		return fmt.Sprintf("it panics at statement %d", w.at)
	}
	return fmt.Sprintf("statement %d fails", w.at)
}

// watches tells what is to befall messages at their statements; 0: nothing.
func (p *process[Tx]) watches(messages []int) kind {
	for _, t := range p.troubles {
		for _, m := range messages {
			if (t.message < 0 || t.message == m) && t.kind.atStatements() {
				return t.kind
			}
		}
	}
	return 0
}

func (k kind) atStatements() bool { return k == cancelling || k == erring || k == throwing }

// OpenDB opens a pool on a connector, as sql.OpenDB does, and closes it at the
// end of the test. Run sees the statements of handlers that go through it, so
// that it can cancel their contexts, fail and panic at each of them. What db.Conn's Raw
// gives is not the driver's own connection.
func OpenDB(t testing.TB, c driver.Connector) *sql.DB {
	t.Helper()
	db := openDB(t, c)
	register(t, aged{db: db})
	return db
}

func openDB(t testing.TB, c driver.Connector) *sql.DB {
	t.Helper()
	db := sql.OpenDB(connector{c})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type connector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	real, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{real}, nil
}

// conn passes everything on, and what the driver lacks back to database/sql.
type conn struct{ driver.Conn }

var (
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.SessionResetter    = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	real, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if err := statement(ctx, true); err != nil {
		return nil, err
	}
	return real.ExecContext(ctx, query, args)
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	real, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if err := statement(ctx, false); err != nil {
		return nil, err
	}
	return real.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := statement(ctx, false); err != nil {
		return nil, err
	}
	var real driver.Stmt
	var err error
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		real, err = p.PrepareContext(ctx, query)
	} else {
		real, err = c.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	return &stmt{real}, nil
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if real, ok := c.Conn.(driver.ConnBeginTx); ok {
		return real.BeginTx(ctx, opts)
	}
	if opts != (driver.TxOptions{}) {
		return nil, errors.New("the driver knows no isolation levels and no read-only transactions")
	}
	return c.Begin()
}

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error {
	if real, ok := c.Conn.(driver.Pinger); ok {
		return real.Ping(ctx)
	}
	return nil
}

// ResetSession implements driver.SessionResetter.
func (c *conn) ResetSession(ctx context.Context) error {
	if real, ok := c.Conn.(driver.SessionResetter); ok {
		return real.ResetSession(ctx)
	}
	return nil
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool {
	real, ok := c.Conn.(driver.Validator)
	return !ok || real.IsValid()
}

// CheckNamedValue implements driver.NamedValueChecker.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if real, ok := c.Conn.(driver.NamedValueChecker); ok {
		return real.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// stmt is a prepared statement.
type stmt struct{ driver.Stmt }

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
)

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := statement(ctx, false); err != nil {
		return nil, err
	}
	if real, ok := s.Stmt.(driver.StmtExecContext); ok {
		return real.ExecContext(ctx, args)
	}
	return s.Exec(values(args))
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := statement(ctx, false); err != nil {
		return nil, err
	}
	if real, ok := s.Stmt.(driver.StmtQueryContext); ok {
		return real.QueryContext(ctx, args)
	}
	return s.Query(values(args))
}

// CheckNamedValue implements driver.NamedValueChecker.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if real, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return real.CheckNamedValue(v)
	}
	//lint:ignore SA1019 it is what old drivers have
	if real, ok := s.Stmt.(driver.ColumnConverter); ok {
		converted, err := real.ColumnConverter(v.Ordinal - 1).ConvertValue(v.Value)
		v.Value = converted
		return err
	}
	return driver.ErrSkip
}

func values(args []driver.NamedValue) []driver.Value {
	list := make([]driver.Value, len(args))
	for i, a := range args {
		list[i] = a.Value
	}
	return list
}
