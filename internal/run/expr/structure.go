package expr

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/sekali/sekali/internal/run/config"
)

// Body makes the body of a request or an event.
type Body struct {
	tree any // *Expr, map[string]any, []any
	text *Expr
}

// CompileBody compiles what a body is made of; nil for none.
func (c *Compiler) CompileBody(b config.Body, effects ...string) (*Body, []config.Problem) {
	switch {
	case b.JSON != nil:
		tree, bad := c.structure(b.JSON, effects)
		return &Body{tree: tree}, bad
	case b.Text.Given():
		x, bad := c.Compile(b.Text, Bytes, effects...)
		return &Body{text: x}, bad
	}
	return nil, nil
}

func (c *Compiler) structure(v any, effects []string) (any, []config.Problem) {
	var problems []config.Problem
	switch v := v.(type) {
	case config.Text:
		if !v.Given() {
			return nil, nil // it was said
		}
		return c.Compile(v, Any, effects...)
	case map[string]any:
		all := map[string]any{}
		for name, below := range v {
			x, bad := c.structure(below, effects)
			all[name], problems = x, append(problems, bad...)
		}
		return all, problems
	case []any:
		all := make([]any, len(v))
		for i, below := range v {
			x, bad := c.structure(below, effects)
			all[i], problems = x, append(problems, bad...)
		}
		return all, problems
	}
	return nil, []config.Problem{{Pos: config.Pos{Line: 1}, Cause: fmt.Sprintf("a structure holds a %T", v)}}
}

// Bytes makes the body for a message; nil if there is none.
func (b *Body) Bytes(in *Input) ([]byte, error) {
	switch {
	case b == nil:
		return nil, nil
	case b.text != nil:
		return b.text.Bytes(in)
	}
	var out bytes.Buffer
	err := render(&out, b.tree, in)
	return out.Bytes(), err
}

// IsJSON tells whether the body is JSON.
func (b *Body) IsJSON() bool { return b != nil && b.text == nil }

func render(out *bytes.Buffer, v any, in *Input) error {
	switch v := v.(type) {
	case *Expr:
		text, err := v.JSON(in)
		out.Write(text)
		return err
	case map[string]any:
		out.WriteByte('{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := quote(out, name); err != nil {
				return err
			}
			out.WriteByte(':')
			if err := render(out, v[name], in); err != nil {
				return err
			}
		}
		out.WriteByte('}')
	case []any:
		out.WriteByte('[')
		for i, below := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := render(out, below, in); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	}
	return nil
}
