package run

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/internal/run/sqltext"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
)

// Check opens the database and has it look at the tables and at every
// statement. It needs no broker. The error is config.Problems, or ctx's.
func Check(ctx context.Context, p *Plan) error {
	db, err := dburl.Open(ctx, p.databaseURL(), false)
	if err != nil {
		return config.Problems{p.File.Database.Problem(err.Error(), "")}
	}
	defer db.Close()
	return p.checkDatabase(ctx, db)
}

// checkDatabase finds what only the database can tell.
func (p *Plan) checkDatabase(ctx context.Context, db *dburl.DB) error {
	problems := p.checkSource(db)
	bad := func(t config.Text, cause error) {
		// The errors of stores say what mends them.
		cut, _, _ := strings.Cut(cause.Error(), "\n")
		problems = append(problems, t.Problem(cut, ""))
	}
	for _, check := range p.checks(db) {
		if err := check(ctx); err != nil {
			bad(p.File.Database, err)
			break // the others would say the same
		}
	}
	for i := range p.statements {
		if s := &p.statements[i]; s.sql != nil {
			if err := prepareStatement(ctx, db, s.sql); err != nil {
				problems = append(problems, s.refused(err))
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return problems.Err()
}

// checks of the tables that the file needs.
func (p *Plan) checks(db *dburl.DB) (all []func(context.Context) error) {
	if db.Pool != nil {
		return checksOf(p, pgxstore.New(db.Pool))
	}
	return checksOf(p, sqlstore.New(db.SQL, db.Dialect()))
}

func checksOf[Tx any](p *Plan, s store.Store[Tx]) []func(context.Context) error {
	all := []func(context.Context) error{s.Check}
	if keeper, ok := store.As[interface{ Effects() effect.Rows }](s); ok && len(p.effects) > 0 {
		all = append(all, keeper.Effects().Check)
	}
	if keeper, ok := store.As[interface{ Versions() store.Versions[Tx] }](s); ok && p.version != nil {
		all = append(all, keeper.Versions().Check)
	}
	if keeper, ok := store.As[interface{ Outbox() outbox.Adder[Tx] }](s); ok && (len(p.events) > 0 || p.File.Outbox.Relay) {
		all = append(all, keeper.Outbox().Check)
	}
	if keeper, ok := store.As[interface{ DeadLetters() deadletter.Queue }](s); ok && !p.File.DeadLetters.Topic.Given() {
		if c, ok := keeper.DeadLetters().(deadletter.Checker); ok {
			all = append(all, c.Check)
		}
	}
	return append(all, func(context.Context) error { return checkRetention(p, s) })
}

// refused is the problem of a statement that the database does not take.
func (s *statement) refused(err error) config.Problem {
	p := s.from.SQL.Problem("the database refuses the statement: "+err.Error(), "correct it, or make the tables that it needs first")
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		p.Cause = "the database refuses the statement: " + pg.Message + " (" + pg.Code + ")"
		if pg.Hint != "" {
			p.Mend = strings.TrimSuffix(pg.Hint, ".")
		}
		if pg.Position > 0 {
			runes := []rune(s.sql.Text())
			at := len(string(runes[:min(int(pg.Position)-1, len(runes))]))
			p.Pos = s.from.SQL.Offset(s.sql.Origin(at))
		}
	}
	return p
}

// prepareStatement has the database compile a statement, and forget it.
func prepareStatement(ctx context.Context, db *dburl.DB, sql *sqltext.Statement) error {
	text := sql.Text()
	switch db.Kind {
	case dburl.PostgreSQL:
		return db.Pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			_, err := c.Conn().Prepare(ctx, "", text)
			return err
		})
	case dburl.MySQL:
		stmt, err := db.SQL.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		return stmt.Close()
	}
	// The driver compiles a statement when it is run; EXPLAIN compiles it, and
	// runs another program. What is not bound is NULL.
	args := make([]any, len(sql.Args()))
	rows, err := db.SQL.QueryContext(ctx, "EXPLAIN "+text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

// checkSource has the broker's package look at the source, without a
// connection, and the Consumer at its settings.
func (p *Plan) checkSource(db *dburl.DB) (problems config.Problems) {
	s := p.File.Source
	raw := s.URL.Value
	if s.Kind == "embedded" {
		raw = "nats://" + s.Listen
	}
	source, err := p.source(raw)
	if err != nil {
		return config.Problems{s.URL.Problem(err.Error(), "")}
	}
	defer func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = source.Close(ended)
	}()
	if _, err := brokerurl.KindOf(raw); err != nil {
		return config.Problems{s.URL.Problem(err.Error(), "")}
	}
	if err := p.checkConsumer(db, source); err != nil {
		at, mend := p.File.Consumer, ""
		if strings.Contains(err.Error(), "OrderInProcessOnly") {
			if at = p.File.Order; !at.Given() {
				at = p.File.Consumer
			}
			err = errors.New("two instances would break the order, for this source does not keep a lane in one instance's hand")
			mend = "add order_in_process_only: true if order within one process is enough, or use a source that does (Kafka; ordered: true; single_active: true; exclusive: true)"
		}
		problems = append(problems, at.Problem(err.Error(), mend))
	}
	return problems
}

func (p *Plan) checkConsumer(db *dburl.DB, source broker.Source) error {
	if db.Pool != nil {
		return checkSettings(settings(p, source, pgxstore.New(db.Pool)))
	}
	return checkSettings(settings(p, source, sqlstore.New(db.SQL, db.Dialect())))
}

func checkSettings[Tx any](cfg sekali.Config[Tx]) error {
	cfg.Handle = func(context.Context, Tx, *sekali.Message) error { return nil } // it is never called
	if _, err := sekali.NewConsumer(cfg); err != nil {
		return fmt.Errorf("the settings do not fit together: %w", errors.Unwrap(err))
	}
	return nil
}
