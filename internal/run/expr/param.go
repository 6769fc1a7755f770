package expr

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/sekali/sekali/internal/dburl"
)

// Literal is a number that stands in the text of a statement, because no
// parameter of the database keeps its digits.
type Literal string

// Param evaluates the expression to a parameter of SQL: int64, float64, bool,
// string, []byte, time.Time in UTC, nil, or on MySQL a Literal. Lists and maps
// are JSON; an optional value that is not there is NULL.
func (x *Expr) Param(in *Input, kind dburl.Kind) (any, error) {
	v, err := x.Eval(in)
	if err != nil {
		return nil, err
	}
	p, err := param(v, kind)
	if err != nil {
		return nil, &Error{x.text, err}
	}
	return p, nil
}

func param(v ref.Val, kind dburl.Kind) (any, error) {
	switch v := v.(type) {
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if v <= math.MaxInt64 {
			return int64(v), nil
		}
		return long(Number(strconv.FormatUint(uint64(v), 10)), kind)
	case types.Double:
		return double(float64(v), kind)
	case types.String:
		return string(v), nil
	case types.Bool:
		return bool(v), nil
	case types.Bytes:
		return []byte(v), nil
	case types.Null:
		return nil, nil
	case types.Timestamp:
		if kind == dburl.SQLite { // it has no times: this is what its functions read
			return v.UTC().Format("2006-01-02 15:04:05.999999999"), nil
		}
		return v.UTC(), nil
	case Number:
		return long(v, kind)
	case *types.Optional:
		if !v.HasValue() {
			return nil, nil
		}
		return param(v.GetValue(), kind)
	case traits.Mapper, traits.Lister:
		text, err := marshal(v)
		return string(text), err
	}
	return nil, fmt.Errorf("it gives %s: %w", typeName(v), errNoSQL)
}

// double refuses what a database has no number for: SQLite would make NULL of it.
func double(f float64, kind dburl.Kind) (any, error) {
	if kind == dburl.MySQL && (math.IsNaN(f) || math.IsInf(f, 0)) || kind == dburl.SQLite && math.IsNaN(f) {
		return nil, fmt.Errorf("the database has no number for %v: find it out with when:, or choose another value", f)
	}
	return f, nil
}

// long is a number with more digits than an int64 or a double holds.
func long(n Number, kind dburl.Kind) (any, error) {
	switch kind {
	case dburl.PostgreSQL:
		return string(n), nil // it travels as text, and is what the column wants
	case dburl.MySQL:
		text, ok := n.plain()
		if !ok {
			return nil, fmt.Errorf("the number %s is too long for the database", n.short())
		}
		if strings.HasPrefix(text, "-") {
			text = "(" + text + ")" // two minus signs would begin a comment
		}
		return Literal(text), nil
	}
	return nil, fmt.Errorf("SQLite has no number with the digits of %s: keep it as text, with string(…)", n.short())
}

// JSON evaluates the expression to a value in JSON.
func (x *Expr) JSON(in *Input) (json.RawMessage, error) {
	v, err := x.Eval(in)
	if err != nil {
		return nil, err
	}
	text, err := marshal(v)
	if err != nil {
		return nil, &Error{x.text, err}
	}
	return text, nil
}

// marshal writes a value as JSON, with the digits that numbers have.
func marshal(v ref.Val) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := write(&b, v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func write(b *bytes.Buffer, v ref.Val) error {
	switch v := v.(type) {
	case types.Null:
		b.WriteString("null")
	case types.Int, types.Uint, types.Bool:
		fmt.Fprint(b, v.Value())
	case Number:
		b.WriteString(string(v))
	case types.Double:
		text, err := json.Marshal(float64(v))
		if err != nil {
			return fmt.Errorf("JSON has no number for %v", v.Value())
		}
		b.Write(text)
	case types.String:
		return quote(b, string(v))
	case types.Bytes:
		text, err := json.Marshal([]byte(v)) // base64
		b.Write(text)
		return err
	case types.Timestamp:
		return quote(b, v.UTC().Format(time.RFC3339Nano))
	case *types.Optional:
		if !v.HasValue() {
			b.WriteString("null")
			return nil
		}
		return write(b, v.GetValue())
	case traits.Mapper:
		return writeMap(b, v)
	case traits.Lister:
		b.WriteByte('[')
		for i := types.Int(0); i < v.Size().(types.Int); i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := write(b, v.Get(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	default:
		return fmt.Errorf("it gives %s, which JSON cannot have: make it a string(…)", typeName(v))
	}
	return nil
}

func writeMap(b *bytes.Buffer, m traits.Mapper) error {
	var names []string
	for it := m.Iterator(); it.HasNext() == types.True; {
		name, ok := it.Next().(types.String)
		if !ok {
			return fmt.Errorf("it gives a map whose keys are not text, which JSON cannot have")
		}
		names = append(names, string(name))
	}
	slices.Sort(names)
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := quote(b, name); err != nil {
			return err
		}
		b.WriteByte(':')
		if err := write(b, m.Get(types.String(name))); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func quote(b *bytes.Buffer, s string) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the end of the line
	return nil
}
