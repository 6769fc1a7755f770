package storetest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/storetest"
)

// plain is the plainest store that passes the suite's tests of transactions,
// one statement for each key. It shows that the suite can be passed, and a
// mutant of it that the suite notices.
type plain struct {
	db     *sql.DB
	kind   storetest.Database
	mutant string // what it does wrong; empty: nothing

	mu   sync.Mutex
	open map[*sql.Tx]*plainTx
}

type plainTx struct {
	conn   *sql.Conn
	tx     *sql.Tx
	cancel context.CancelFunc
	claim  store.Claim
	fresh  []string // stored keys
	mark   string   // when the first of them was written
}

func newPlain(db *sql.DB, kind storetest.Database, mutant string) *plain {
	return &plain{db: db, kind: kind, mutant: mutant, open: map[*sql.Tx]*plainTx{}}
}

type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// q replaces question marks where the database wants numbers.
func (p *plain) q(query string) string {
	if p.kind != storetest.Postgres {
		return query
	}
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

func (p *plain) validate(c store.Claim) error {
	if p.mutant == "blank keys" && len(c.Keys) > 0 {
		return nil
	}
	return c.Validate()
}

func (p *plain) stored(raw string) string {
	switch p.mutant {
	case "folded keys":
		raw = strings.ToLower(raw)
	case "trimmed keys":
		raw = strings.TrimRight(raw, " ")
	case "cut keys":
		return raw[:min(len(raw), store.MaxStoredKey)]
	}
	return store.StoredKey(raw)
}

func (p *plain) Begin(ctx context.Context, c store.Claim) (*sql.Tx, []store.State, error) {
	if err := p.validate(c); err != nil {
		return nil, nil, err
	}
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return nil, nil, p.wrap(ctx, err)
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if p.mutant == "BEGIN under the caller's context" {
		own = ctx
	}
	t := &plainTx{conn: conn, cancel: cancel, claim: c}
	if t.tx, err = conn.BeginTx(own, nil); err != nil {
		cancel()
		_ = conn.Close()
		return nil, nil, p.wrap(ctx, err)
	}
	states, err := p.claim(ctx, t.tx, c, t)
	if err == nil {
		_, err = t.tx.ExecContext(ctx, "SAVEPOINT sekali")
	}
	if err != nil {
		if p.mutant != "leak" {
			_ = t.tx.Rollback()
			_ = conn.Close()
		}
		cancel()
		return nil, nil, p.wrap(ctx, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[t.tx] = t
	return t.tx, states, nil
}

func (p *plain) wrap(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if p.code(err) == "" && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}

func (p *plain) Claim(ctx context.Context, tx *sql.Tx, c store.Claim) ([]store.State, error) {
	if err := p.validate(c); err != nil {
		return nil, err
	}
	states, err := p.claim(ctx, tx, c, &plainTx{})
	if err != nil {
		return nil, p.wrap(ctx, err)
	}
	return states, nil
}

func (p *plain) claim(ctx context.Context, q querier, c store.Claim, t *plainTx) ([]store.State, error) {
	states := make([]store.State, len(c.Keys))
	order := make([]int, len(c.Keys))
	for i := range order {
		order[i] = i
	}
	if p.mutant != "caller's lock order" {
		slices.SortFunc(order, func(a, b int) int {
			return strings.Compare(p.stored(c.Keys[a].Raw), p.stored(c.Keys[b].Raw))
		})
	}
	for n, i := range order {
		state, err := p.claimOne(ctx, q, c.Consumer, c.Keys[i])
		if err != nil {
			return nil, err
		}
		if state == store.Fresh {
			t.fresh = append(t.fresh, p.stored(c.Keys[i].Raw))
		}
		if p.mutant == "states in lock order" {
			i = n
		}
		states[i] = state
	}
	if len(t.fresh) > 0 {
		at := "SELECT " + p.text() + " FROM processed_messages WHERE consumer_name = ? AND message_key = ?"
		return states, q.QueryRowContext(ctx, p.q(at), c.Consumer, t.fresh[0]).Scan(&t.mark)
	}
	return states, nil
}

// text is processed_at and, where there is one, the writer's transaction.
func (p *plain) text() string {
	switch p.kind {
	case storetest.Postgres:
		return "xmin::text"
	case storetest.MySQL:
		return "CAST(processed_at AS CHAR)"
	}
	return "''"
}

func (p *plain) claimOne(ctx context.Context, q querier, consumer string, k store.Key) (store.State, error) {
	now, err := p.now(ctx, q)
	if err != nil {
		return 0, err
	}
	insert := "INSERT INTO processed_messages (consumer_name, message_key, processed_at, fingerprint) VALUES (?, ?, " + now + ", ?)"
	var fingerprint any
	if k.Fingerprint != nil {
		fingerprint = k.Fingerprint
	}
	if k.Fingerprint == nil {
		insert = strings.Replace(strings.Replace(insert, ", fingerprint", "", 1), ", ?)", ")", 1)
	}
	if p.kind != storetest.MySQL {
		insert += " ON CONFLICT (consumer_name, message_key) DO NOTHING"
	}
	args := []any{consumer, p.stored(k.Raw)}
	if fingerprint != nil {
		args = append(args, fingerprint)
	}
	result, err := q.ExecContext(ctx, p.q(insert), args...)
	if err != nil && p.code(err) != "1062" {
		if p.mutant == "any error is a duplicate" {
			return store.Duplicate, nil
		}
		return 0, err
	}
	if err == nil {
		if n, err := result.RowsAffected(); err != nil || n == 1 || p.mutant == "no look at what was inserted" {
			return store.Fresh, err
		}
	}
	if k.Fingerprint == nil || p.mutant == "no conflicts" {
		return store.Duplicate, nil
	}
	lock := " FOR SHARE"
	switch {
	case p.kind == storetest.SQLite || p.mutant == "fingerprints without a lock":
		lock = ""
	case p.kind == storetest.MySQL:
		lock = " LOCK IN SHARE MODE"
	}
	return p.look(ctx, q, consumer, k, lock)
}

func (p *plain) now(ctx context.Context, q querier) (string, error) {
	switch p.kind {
	case storetest.Postgres:
		var kind string
		err := q.QueryRowContext(ctx, "SELECT atttypid::regtype::text FROM pg_attribute"+
			" WHERE attrelid = 'processed_messages'::regclass AND attname = 'processed_at'").Scan(&kind)
		if kind == "timestamp without time zone" && p.mutant != "local time" {
			return "clock_timestamp() AT TIME ZONE 'UTC'", err
		}
		return "clock_timestamp()", err
	case storetest.MySQL:
		var kind string
		err := q.QueryRowContext(ctx, "SELECT data_type FROM information_schema.columns WHERE table_schema = DATABASE()"+
			" AND table_name = 'processed_messages' AND column_name = 'processed_at'").Scan(&kind)
		if kind == "datetime" && p.mutant != "local time" {
			return "UTC_TIMESTAMP(6)", err
		}
		return "CURRENT_TIMESTAMP(6)", err
	}
	if p.mutant == "local time" {
		return "datetime('now', '+7 hours')", nil
	}
	return "strftime('%Y-%m-%d %H:%M:%f', 'now')", nil
}

func (p *plain) look(ctx context.Context, q querier, consumer string, k store.Key, lock string) (store.State, error) {
	column := "fingerprint"
	if k.Fingerprint == nil {
		column = "NULL"
	}
	var found []byte
	err := q.QueryRowContext(ctx, p.q("SELECT "+column+" FROM processed_messages WHERE consumer_name = ? AND message_key = ?"+lock),
		consumer, p.stored(k.Raw)).Scan(&found)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return store.Fresh, nil
	case err != nil:
		return 0, err
	case found != nil && k.Fingerprint != nil && string(found) != string(k.Fingerprint):
		return store.Conflict, nil
	case found == nil && k.Fingerprint != nil && p.mutant == "unknown is a conflict":
		return store.Conflict, nil
	}
	return store.Duplicate, nil
}

func (p *plain) Seen(ctx context.Context, c store.Claim) ([]store.State, error) {
	if err := p.validate(c); err != nil {
		return nil, err
	}
	states := make([]store.State, len(c.Keys))
	for i, k := range c.Keys {
		var err error
		if states[i], err = p.look(ctx, p.db, c.Consumer, k, ""); err != nil {
			return nil, p.wrap(ctx, err)
		}
	}
	return states, nil
}

func (p *plain) take(tx *sql.Tx) (*plainTx, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.open[tx]
	delete(p.open, tx)
	return t, ok
}

func (p *plain) Commit(ctx context.Context, tx *sql.Tx) error {
	t, ok := p.take(tx)
	if !ok {
		return sql.ErrTxDone
	}
	defer t.cancel()
	defer t.conn.Close()
	if p.mutant == "COMMIT under the caller's context" && ctx.Err() != nil {
		_ = tx.Rollback()
		return ctx.Err()
	}
	if p.mutant != "no guard" {
		if err := p.guard(t); err != nil {
			_ = tx.Rollback()
			return p.survived(t, err)
		}
	}
	if err := tx.Commit(); err != nil {
		_, _ = t.conn.ExecContext(context.Background(), "ROLLBACK") // SQLite leaves it open
		if p.code(err) == "" {
			return fmt.Errorf("%w: %w", store.ErrCommitUnknown, err)
		}
		return err
	}
	return nil
}

func (p *plain) guard(t *plainTx) error {
	_, err := t.tx.ExecContext(context.Background(), "RELEASE SAVEPOINT sekali")
	if err == nil {
		return nil
	}
	if code := p.code(err); code == "" || code == "57P01" {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", store.ErrTransactionLost, err)
}

func (p *plain) Rollback(_ context.Context, tx *sql.Tx) error {
	t, ok := p.take(tx)
	if !ok {
		return nil
	}
	defer t.cancel()
	defer t.conn.Close()
	if p.mutant == "rollback that commits" {
		return tx.Commit()
	}
	err := p.guard(t)
	_ = tx.Rollback()
	_, _ = t.conn.ExecContext(context.Background(), "ROLLBACK")
	if err == nil {
		return nil
	}
	if err = p.survived(t, err); errors.Is(err, store.ErrKeySurvived) {
		return err
	}
	return nil
}

// survived looks whether the claim is there although err said that its
// transaction was lost.
func (p *plain) survived(t *plainTx, err error) error {
	if p.mutant == "no survivors" || len(t.fresh) == 0 {
		return err
	}
	_, _ = t.conn.ExecContext(context.Background(), "ROLLBACK")
	var n int
	query := "SELECT count(*) FROM processed_messages WHERE consumer_name = ? AND message_key = ?"
	args := []any{t.claim.Consumer, t.fresh[0]}
	if p.mutant != "a rival's survivor" {
		query, args = query+" AND "+p.text()+" = ?", append(args, t.mark)
	}
	if p.db.QueryRowContext(context.Background(), p.q(query), args...).Scan(&n) == nil && n > 0 {
		return fmt.Errorf("%w: %w", err, store.ErrKeySurvived)
	}
	return err
}

// code is the server's code for an error, empty if it is not the server's.
func (p *plain) code(err error) string {
	var m *mysql.MySQLError
	if errors.As(err, &m) {
		return fmt.Sprint(m.Number)
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	var lite interface{ Code() int }
	if errors.As(err, &lite) {
		return fmt.Sprint(lite.Code() & 0xff)
	}
	return ""
}

func (p *plain) Classify(err error) store.Class {
	var schema *store.SchemaError
	switch {
	case errors.As(err, &schema):
		return store.ClassMisconfigured
	case errors.Is(err, store.ErrUnavailable):
		return store.ClassUnavailable
	case p.mutant == "no classes":
		return store.ClassFailed
	}
	switch p.code(err) {
	case "1205", "1213", "1020", "40001", "40P01", "55P03", "5", "6":
		return store.ClassConflict
	case "57P01":
		return store.ClassUnavailable
	}
	return store.ClassFailed
}

func (p *plain) Check(ctx context.Context) error { return p.db.PingContext(ctx) }
