package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/store"
)

// Inspector is what a Dialect has that can tell about its server.
type Inspector interface {
	// Inspect fills in what the server says of itself and of the tables: all
	// fields of Facts but those about the clock, the pool, sessions, Unfit and
	// Overview.
	Inspect(ctx context.Context, conn *sql.Conn, t store.Tables, f *admin.Facts) error
	// Session is a query for the number of the server's session that serves a
	// connection; empty where there are none.
	Session() string
	// SharesSession tells whether an error says that another session has what
	// this one prepared.
	SharesSession(err error) bool
}

// Facts implements admin.Health.
func (h health) Facts(ctx context.Context) (f admin.Facts, err error) {
	const doing = "look at the database"
	if h.s.invalid != nil {
		return f, fmt.Errorf("%s: %w", doing, h.s.invalid)
	}
	inspector, ok := h.s.dialect.(Inspector)
	if !ok {
		return f, fmt.Errorf("%s: %w: the dialect has no method Inspect", doing, errors.ErrUnsupported)
	}
	f.Pool = h.s.db.Stats().MaxOpenConnections
	err = h.s.onConn(ctx, doing, func(conn *sql.Conn) error {
		if f.Pool != 1 && inspector.Session() != "" {
			if f.SharedSession, err = h.sharesSession(ctx, conn, inspector); err != nil {
				return err
			}
		}
		if err := h.clock(ctx, conn, &f); err != nil {
			return err
		}
		return inspector.Inspect(ctx, conn, h.s.tables, &f)
	})
	if err == nil {
		err = h.tables(ctx, &f)
	}
	if err == nil {
		f.Overview, err = h.Overview(ctx)
	}
	if err != nil && inspector.SharesSession(err) {
		f.SharedSession, f.Confused, err = true, true, nil
	}
	return f, err
}

// sharesSession asks two connections in turn which session serves them. Two
// that are open at once have two, unless a pooler lends one to both.
func (h health) sharesSession(ctx context.Context, conn *sql.Conn, inspector Inspector) (bool, error) {
	other, err := h.s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer other.Close()
	served := map[*sql.Conn]map[int64]bool{conn: {}, other: {}}
	for range 3 {
		for c, sessions := range served {
			var session int64
			if err := c.QueryRowContext(ctx, inspector.Session()).Scan(&session); err != nil {
				return false, err
			}
			sessions[session] = true
		}
	}
	for session := range served[conn] {
		if served[other][session] {
			return true, nil
		}
	}
	return len(served[conn]) > 1 || len(served[other]) > 1, nil
}

// clock compares the database's clock with ours: the quickest of a few answers
// tells most.
func (h health) clock(ctx context.Context, conn *sql.Conn, f *admin.Facts) error {
	for try := range 3 {
		before := time.Now()
		var millis int64
		if err := conn.QueryRowContext(ctx, "SELECT "+h.s.texts.Millis).Scan(&millis); err != nil {
			return err
		}
		within := time.Since(before) / 2
		if try == 0 || within < f.ClockWithin {
			f.ClockAhead, f.ClockWithin = time.UnixMilli(millis).Sub(before.Add(within)), within
		}
	}
	return nil
}

// tables asks each table whether it is as it must be.
func (h health) tables(ctx context.Context, f *admin.Facts) error {
	for _, t := range []struct {
		name    string
		check   func(context.Context) error
		without string
	}{
		{h.s.tables.ProcessedMessages, h.s.Check, "consumers do not start: different keys could be taken for one, or none be kept"},
		{h.s.tables.DeadLetters, h.letters.Check, "consumers do not start, unless they keep dead letters elsewhere"},
		{h.s.tables.ConsumerStats, stats(h).Check, "what consumers do is not counted"},
		{h.s.tables.ExternalEffects, effects(h).Check, "effects outside the database cannot be made"},
		{h.s.tables.OutboxMessages, events(h).Check, "events cannot be added or published"},
		{h.s.tables.MessageStarts, starts{h.s}.Check, "a message whose handler kills the process is not found out"},
		{h.s.tables.EntityVersions, versions(h).Check, "consumers that go by versions do not start"},
		{h.s.tables.AuditTrail, func(ctx context.Context) error { _, err := h.Trail(ctx, 0, 1); return err }, "nobody can decide about dead letters, effects, events and keys"},
	} {
		if err := t.check(ctx); err != nil {
			unfit, is := h.unfit(err, t.name)
			if !is {
				return err
			}
			unfit.Main, unfit.Without = t.name == h.s.tables.ProcessedMessages, t.without
			f.Unfit = append(f.Unfit, unfit)
		}
	}
	return nil
}
