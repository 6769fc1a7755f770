// Package sqltext builds SQL for databases whose placeholders are question
// marks.
package sqltext

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/sekali/sekali/store"
)

// MaxKeys is how many keys go into one statement. With three parameters each
// they stay below what SQLite (32766) and MySQL (65535) can take.
const MaxKeys = 5000

// Quote returns a table's name in the given quotes, with its schema if there
// is one: a name such as "order" is a table's name, never a key word.
func Quote(t store.Tables, name, quote string) string {
	if t.Schema == "" {
		return quote + name + quote
	}
	return quote + t.Schema + quote + "." + quote + name + quote
}

// Repeat returns n times text with commas between.
func Repeat(text string, n int) string {
	var b strings.Builder
	b.Grow(n * (len(text) + 1))
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(text)
	}
	return b.String()
}

// Querier is what Each needs.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each runs a query and calls f on each of its rows.
func Each(ctx context.Context, q Querier, query string, args []any, f func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

// Unfit is the error of a table that is there but not as it must be.
func Unfit(t store.Tables, sql, format string, args ...any) *store.SchemaError {
	return &store.SchemaError{
		Table: t.In(t.ProcessedMessages), Cause: fmt.Sprintf(format, args...),
		Mend: "run `sekali migrate up`, or alter the table", SQL: sql,
	}
}

// NotThere is the error of a table that does not exist.
func NotThere(t store.Tables, create string) *store.SchemaError {
	return &store.SchemaError{
		Table: t.In(t.ProcessedMessages), Cause: "it does not exist",
		Mend: "run `sekali migrate up`, or create it", SQL: create,
	}
}

// Chunks yields the values in order, at most MaxKeys at once.
func Chunks[T any](values []T) iter.Seq[[]T] { return slices.Chunk(values, MaxKeys) }

// Optional returns NULL for nil: not every driver takes a nil []byte for it.
func Optional(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
