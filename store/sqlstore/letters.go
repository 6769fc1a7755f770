package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// letters is the table dead_letters, the same code for every database.
type letters struct{ s *Store }

var (
	_ deadletter.Queue  = letters{}
	_ deadletter.Holder = letters{}
)

// query builds a statement with its parameters.
type query struct {
	texts Texts
	sql   strings.Builder
	args  []any
}

// add appends text, in which each ? stands for the next of args.
func (q *query) add(text string, args ...any) {
	for _, arg := range args {
		before, after, _ := strings.Cut(text, "?")
		q.args = append(q.args, arg)
		q.sql.WriteString(before + q.texts.Placeholder(len(q.args)))
		text = after
	}
	q.sql.WriteString(text)
}

// Put implements deadletter.Sink.
func (l letters) Put(ctx context.Context, letter deadletter.Letter) error {
	doing := fmt.Sprintf("write a dead letter of consumer %q", letter.Consumer)
	if letter.Status != deadletter.Waiting {
		letter.Status = deadletter.Open
	}
	return l.write(ctx, doing, letter, "status", "reason", "error", "attempts", "last_at")
}

// Hold implements deadletter.Holder. A copy of what is open or held changes
// nothing but the count: it keeps its status and its place, which is its id.
func (l letters) Hold(ctx context.Context, letter deadletter.Letter) error {
	letter.Status = deadletter.Held
	return l.write(ctx, fmt.Sprintf("hold a message of consumer %q", letter.Consumer), letter, "last_at")
}

// Blocked implements deadletter.Holder.
func (l letters) Blocked(ctx context.Context, consumer, orderingKey string) (bool, error) {
	doing := fmt.Sprintf("look for dead letters of an ordering key of consumer %q", consumer)
	if l.s.invalid != nil {
		return false, fmt.Errorf("%s: %w", doing, l.s.invalid)
	}
	q := query{texts: l.s.texts}
	q.add("SELECT id FROM "+q.texts.DeadLetters+" WHERE consumer_name = ? AND ordering_key = ? AND status IN ("+unresolved+") LIMIT 1",
		consumer, store.StoredKey(orderingKey))
	var id int64
	err := l.s.db.QueryRowContext(ctx, q.sql.String(), q.args...).Scan(&id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, l.failed(ctx, doing, err)
	}
	return true, nil
}

// write inserts a letter, or updates columns of the one of which it is a copy.
func (l letters) write(ctx context.Context, doing string, letter deadletter.Letter, onCopy ...string) error {
	if l.s.invalid != nil {
		return fmt.Errorf("%s: %w", doing, l.s.invalid)
	}
	envelope, err := deadletter.MarshalEnvelope(letter.Message)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	identity := letter.Identity()
	key, raw := storedAndRaw(letter.Key)
	order, rawOrder := storedAndRaw(letter.OrderingKey)
	var body any // a nil []byte is not NULL to every driver
	if letter.Message.Body != nil {
		body = letter.Message.Body
	}
	q := query{texts: l.s.texts}
	q.add("INSERT INTO " + q.texts.DeadLetters + " (consumer_name, message_key, raw_key, ordering_key, raw_ordering_key, identity, open_identity," +
		" status, reason, error, attempts, copies, topic, envelope, body, first_at, last_at)")
	q.add(" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, "+q.texts.Now+", "+q.texts.Now+") "+q.texts.OnCopy(onCopy...),
		letter.Consumer, key, raw, order, rawOrder, identity[:], identity[:],
		string(letter.Status), string(letter.Reason), deadletter.CleanError(letter.Error), letter.Attempts,
		deadletter.CleanError(letter.Message.Topic), envelope, body)
	if _, err := l.s.db.ExecContext(ctx, q.sql.String(), q.args...); err != nil {
		return l.failed(ctx, doing, err)
	}
	return nil
}

// storedAndRaw are a key's two columns; none if it is empty.
func storedAndRaw(key string) (stored, raw any) {
	if key == "" {
		return nil, nil
	}
	return store.StoredKey(key), []byte(key)
}

// Check implements deadletter.Checker: the table and its columns are there.
func (l letters) Check(ctx context.Context) error {
	_, err := l.List(ctx, deadletter.Filter{Limit: 1})
	return err
}

// List implements deadletter.Queue. The letters come whole, with their bodies.
func (l letters) List(ctx context.Context, f deadletter.Filter) ([]deadletter.Letter, error) {
	const doing = "list dead letters"
	q := l.selection()
	q.filter(f)
	if f.Limit <= 0 {
		f.Limit = deadletter.DefaultLimit
	}
	q.add(" ORDER BY id DESC LIMIT ?", f.Limit)
	found, err := l.read(ctx, q)
	if err != nil {
		return nil, l.failed(ctx, doing, err)
	}
	return found, nil
}

// unresolved lists the statuses with which something has still to happen.
const unresolved = "'open', 'held', 'requested', 'waiting'"

// filter adds the conditions of f.
func (q *query) filter(f deadletter.Filter) {
	word := " WHERE "
	where := func(condition string, args ...any) {
		q.add(word+condition, args...)
		word = " AND "
	}
	text := func(column, value string) {
		if value != "" {
			where(column+" = ?", value)
		}
	}
	text("consumer_name", f.Consumer)
	if f.Key != "" {
		text("message_key", store.StoredKey(f.Key))
	}
	if f.OrderingKey != "" {
		text("ordering_key", store.StoredKey(f.OrderingKey))
	}
	text("reason", string(f.Reason))
	text("status", string(f.Status))
	text("topic", f.Topic)
	if f.Unresolved {
		where("status IN (" + unresolved + ")")
	}
	if f.Before > 0 {
		where("id < ?", f.Before)
	}
}

// Get implements deadletter.Queue.
func (l letters) Get(ctx context.Context, id int64) (deadletter.Letter, error) {
	doing := fmt.Sprintf("read dead letter %d", id)
	q := l.selection()
	q.add(" WHERE id = ?", id)
	found, err := l.read(ctx, q)
	switch {
	case err != nil:
		return deadletter.Letter{}, l.failed(ctx, doing, err)
	case len(found) == 0:
		return deadletter.Letter{}, fmt.Errorf("%s: %w", doing, deadletter.ErrNotFound)
	}
	return found[0], nil
}

// selection tells an empty body from none by a column of its own: not every
// driver does.
func (l letters) selection() *query {
	q := &query{texts: l.s.texts}
	q.add("SELECT id, consumer_name, raw_key, raw_ordering_key, status, reason, error, attempts, copies, envelope, body," +
		" CASE WHEN body IS NULL THEN 0 ELSE 1 END, " +
		q.texts.TimeText("first_at") + ", " + q.texts.TimeText("last_at") + " FROM " + q.texts.DeadLetters)
	return q
}

func (l letters) read(ctx context.Context, q *query) ([]deadletter.Letter, error) {
	if l.s.invalid != nil {
		return nil, l.s.invalid
	}
	return l.readFrom(ctx, l.s.db, q)
}

// readFrom reads through the pool or a transaction.
func (l letters) readFrom(ctx context.Context, from interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, q *query,
) ([]deadletter.Letter, error) {
	rows, err := from.QueryContext(ctx, q.sql.String(), q.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []deadletter.Letter
	for rows.Next() {
		letter, err := scanLetter(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, letter)
	}
	return found, rows.Err()
}

func scanLetter(rows *sql.Rows) (l deadletter.Letter, err error) {
	var key, order, envelope, body []byte
	var hasBody int
	var first, last string
	err = rows.Scan(&l.ID, &l.Consumer, &key, &order, &l.Status, &l.Reason, &l.Error, &l.Attempts, &l.Copies,
		&envelope, &body, &hasBody, &first, &last)
	if err != nil {
		return l, err
	}
	l.Key, l.OrderingKey = string(key), string(order)
	if hasBody == 0 {
		body = nil
	} else if body == nil {
		body = []byte{}
	}
	if l.Message, err = deadletter.UnmarshalEnvelope(envelope, body); err != nil {
		return l, fmt.Errorf("dead letter %d: %w", l.ID, err)
	}
	if l.FirstAt, err = time.Parse(time.DateTime, first); err != nil {
		return l, fmt.Errorf("dead letter %d: %w", l.ID, err)
	}
	if l.LastAt, err = time.Parse(time.DateTime, last); err != nil {
		return l, fmt.Errorf("dead letter %d: %w", l.ID, err)
	}
	return l, nil
}

func (l letters) failed(ctx context.Context, doing string, err error) error {
	return l.s.failedOn(ctx, l.s.tables.DeadLetters, l.s.texts.DeadLetters, doing, err)
}

// failedOn is failed for another table than processed_messages.
func (s *Store) failedOn(ctx context.Context, table, quoted, doing string, err error) error {
	kind := s.dialect.Kind(err)
	if kind == KindSchema || kind == KindLost && !s.readable(ctx, quoted) {
		return fmt.Errorf("%s: %w", doing, &store.SchemaError{
			Table: s.tables.In(table), Cause: "it is missing or lacks a column", Err: err,
			Mend: "run `sekali migrate up`",
		})
	}
	switch {
	case kind != KindNone:
		return fmt.Errorf("%s: %w", doing, err)
	case ctx.Err() != nil:
		return ended(ctx, doing, err)
	case isTransport(err):
		return fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// readable tells whether a table of ours can be read at all.
func (s *Store) readable(ctx context.Context, quoted string) bool {
	var name string
	err := s.db.QueryRowContext(ctx, "SELECT consumer_name FROM "+quoted+" WHERE consumer_name = ''").Scan(&name)
	return errors.Is(err, sql.ErrNoRows)
}
