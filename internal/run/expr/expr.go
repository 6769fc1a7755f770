// Package expr has the expressions of sekali run: CEL, of bounded cost, over one
// message. Numbers keep their digits, whatever their length.
package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"

	"github.com/sekali/sekali/internal/run/config"
)

// maxCost bounds the work of one evaluation: about a million steps, some tens of
// milliseconds.
const maxCost = 1_000_000

// Want is what an expression has to give.
type Want uint8

// What expressions give.
const (
	// Any value that a parameter of SQL can be, or JSON.
	Any Want = iota
	// Bool: true or false.
	Bool
	// Text: a string, or a whole number's.
	Text
	// Whole: a whole number.
	Whole
	// Bytes: a string or bytes.
	Bytes
)

var wanted = map[Want]struct {
	kinds []types.Kind
	says  string
	mend  string
}{
	Bool:  {[]types.Kind{types.BoolKind}, "true or false", "compare something, such as body.type == \"paid\""},
	Text:  {[]types.Kind{types.StringKind, types.IntKind, types.UintKind}, "text", "make it one: string(…)"},
	Whole: {[]types.Kind{types.IntKind, types.UintKind}, "a whole number", "make it one: int(…)"},
	Bytes: {[]types.Kind{types.StringKind, types.BytesKind}, "text or bytes", "make it one: string(…), or use json:"},
}

// Compiler compiles expressions. It is safe for concurrent use.
type Compiler struct {
	plain, withEffects *cel.Env
	// Vars are the names that vars has. nil: they are not known.
	Vars []string
}

// NewCompiler returns one.
func NewCompiler() (*Compiler, error) {
	dyns := cel.MapType(cel.StringType, cel.DynType)
	plain, err := cel.NewEnv(
		cel.CustomTypeAdapter(adapter{}), cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		cel.EagerlyValidateDeclarations(true), ext.Strings(), ext.Encoders(), ext.Math(),
		cel.ExpressionNestingDepthLimit(100), cel.ParserExpressionSizeLimit(10_000),
		cel.Variable("body", cel.DynType), cel.Variable("raw", cel.BytesType), cel.Variable("headers", dyns),
		cel.Variable("key", cel.StringType), cel.Variable("topic", cel.StringType), cel.Variable("id", cel.StringType),
		cel.Variable("ordering_key", cel.DynType), cel.Variable("time", cel.TimestampType),
		cel.Variable("vars", cel.MapType(cel.StringType, cel.StringType)),
		cel.Function("string", cel.Overload("number_to_string", []*cel.Type{numberType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val { return v.ConvertToType(types.StringType) }))),
	)
	if err != nil {
		return nil, fmt.Errorf("make the compiler of expressions: %w", err)
	}
	withEffects, err := plain.Extend(cel.Variable("effects", dyns))
	if err != nil {
		return nil, fmt.Errorf("make the compiler of expressions: %w", err)
	}
	return &Compiler{plain: plain, withEffects: withEffects}, nil
}

// Expr is a compiled expression. It is safe for concurrent use.
type Expr struct {
	text    config.Text
	want    Want
	program cel.Program
}

// Compile compiles an expression, or returns what is wrong with it. effects are
// the names of those whose results it may use.
func (c *Compiler) Compile(t config.Text, want Want, effects ...string) (*Expr, []config.Problem) {
	env := c.plain
	if len(effects) > 0 {
		env = c.withEffects
	}
	compiled, issues := env.Compile(t.Value)
	if issues != nil && issues.Err() != nil {
		return nil, problems(t, issues)
	}
	if unknown := c.unknown(t, compiled, effects); len(unknown) > 0 {
		return nil, unknown
	}
	if w, restricted := wanted[want]; restricted {
		if kind := compiled.OutputType().Kind(); kind != types.DynKind && kind != types.AnyKind && !slices.Contains(w.kinds, kind) {
			return nil, []config.Problem{t.Problem("the expression gives "+compiled.OutputType().String()+", and "+w.says+" is wanted", w.mend)}
		}
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, []config.Problem{t.Problem(err.Error(), "correct the expression")}
	}
	return &Expr{t, want, program}, nil
}

// unknown finds names of vars and effects that the file does not have. To the
// compiler they are maps, in which anything may be.
func (c *Compiler) unknown(t config.Text, compiled *cel.Ast, effects []string) (all []config.Problem) {
	known := map[string][]string{}
	if c.Vars != nil {
		known["vars"] = c.Vars
	}
	if len(effects) > 0 {
		known["effects"] = effects
	}
	native := compiled.NativeRep()
	ast.PreOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind: // within it a variable may have such a name
			delete(known, e.AsComprehension().IterVar())
			delete(known, e.AsComprehension().IterVar2())
		case ast.SelectKind:
			s := e.AsSelect()
			if s.IsTestOnly() || s.Operand().Kind() != ast.IdentKind {
				return
			}
			of := s.Operand().AsIdent()
			names, is := known[of]
			if !is || slices.Contains(names, s.FieldName()) {
				return
			}
			mend := "add it to " + of + ":, or correct the name"
			if of == "effects" {
				mend = "there are " + strings.Join(names, ", ") + ": an effect sees those before it"
			}
			p := t.Problem(fmt.Sprintf("%s has no %s", of, s.FieldName()), mend)
			at := native.SourceInfo().GetStartLocation(s.Operand().ID())
			p.Pos = t.At(max(at.Line(), 1), at.Column()+1)
			all = append(all, p)
		}
	}))
	return all
}

// problems says what the compiler found, each at its place.
func problems(t config.Text, issues *cel.Issues) (all []config.Problem) {
	for _, e := range issues.Errors() {
		p := t.Problem(syntax(e.Message), "correct the expression")
		p.Pos = t.At(max(e.Location.Line(), 1), e.Location.Column()+1)
		switch {
		case strings.Contains(e.Message, "token recognition error at: '= '"), strings.Contains(e.Message, "token recognition error at: '='"):
			p.Mend = "two values are compared with =="
		case strings.Contains(e.Message, "undeclared reference to 'effects'"):
			p.Mend = "results are there for handle:, publish: and later effects alone"
		case strings.Contains(e.Message, "undeclared reference"):
			p.Mend = `there are body, raw, headers, key, topic, id, ordering_key, time, vars and effects; a text needs quotes of its own: '"paid"'`
		}
		all = append(all, p)
		if strings.HasPrefix(e.Message, "Syntax error") {
			break // the others follow from it
		}
	}
	return all
}

// syntax leaves out of an error of the parser what it would have taken.
func syntax(message string) string {
	message = strings.TrimPrefix(message, "Syntax error: ")
	if at := strings.Index(message, " expecting "); at > 0 {
		message = message[:at]
	}
	if strings.HasSuffix(message, "'<EOF>'") {
		return "the expression ends too early"
	}
	return message
}

// Error is that of an expression on a message: no further attempt mends it.
type Error struct {
	Text config.Text
	Err  error
}

// Error tells the field, the line, and what went wrong.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (line %d of the file): %v", e.Text.Field, e.Text.Line, e.Err)
}

// Unwrap returns what went wrong.
func (e *Error) Unwrap() error { return e.Err }

// Permanent tells a Consumer so.
func (e *Error) Permanent() bool { return true }

func (x *Expr) fail(format string, args ...any) error {
	return &Error{x.text, fmt.Errorf(format, args...)}
}

// Eval evaluates the expression.
func (x *Expr) Eval(in *Input) (ref.Val, error) {
	v, _, err := x.program.Eval(in)
	if err == nil {
		return v, nil
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "no such key: "):
		_, name, _ := strings.Cut(text, "no such key: ")
		return nil, x.fail("the message has no field %q: where it may be missing, write has(…) in when:, or .? and orValue(…)", name)
	case strings.Contains(text, "no such overload") && strings.Contains(text, "number"):
		return nil, x.fail("%s: a number of the message has more digits than can be reckoned with: pass it on as it is, or make it a string(…)", text)
	case strings.Contains(text, "cost limit exceeded"):
		return nil, x.fail("the expression takes too long on this message")
	}
	return nil, &Error{x.text, err}
}

// True evaluates an expression that is to give true or false. A nil one is
// true.
func (x *Expr) True(in *Input) (bool, error) {
	if x == nil {
		return true, nil
	}
	v, err := x.Eval(in)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, x.fail("it gives %s, and true or false is wanted", typeName(v))
	}
	return bool(b), nil
}

// Text evaluates an expression that is to give text.
func (x *Expr) Text(in *Input) (string, error) {
	v, err := x.Eval(in)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case types.String:
		return string(v), nil
	case types.Int, types.Uint:
		return fmt.Sprint(v.Value()), nil
	case Number:
		return string(v), nil
	}
	return "", x.fail("it gives %s, and text is wanted", typeName(v))
}

// Whole evaluates an expression that is to give a whole number.
func (x *Expr) Whole(in *Input) (int64, error) {
	v, err := x.Eval(in)
	if err != nil {
		return 0, err
	}
	switch v := v.(type) {
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if int64(v) >= 0 {
			return int64(v), nil
		}
	}
	return 0, x.fail("it gives %s, and a whole number of 64 bits is wanted", typeName(v))
}

// Bytes evaluates an expression that is to give text or bytes.
func (x *Expr) Bytes(in *Input) ([]byte, error) {
	v, err := x.Eval(in)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case types.String:
		return []byte(v), nil
	case types.Bytes:
		return []byte(v), nil
	case types.Int, types.Uint:
		return []byte(fmt.Sprint(v.Value())), nil
	case Number:
		return []byte(v), nil
	}
	return nil, x.fail("it gives %s, and text or bytes are wanted", typeName(v))
}

func typeName(v ref.Val) string {
	if v == nil || v.Type() == nil {
		return "nothing"
	}
	return "a " + v.Type().TypeName()
}

var errNoSQL = errors.New("no parameter of SQL can be that: make it a string(…)")
