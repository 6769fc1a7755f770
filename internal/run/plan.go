// Package run is sekali run: a consumer whose handler is SQL and HTTP from a
// file, so that nobody has to write Go.
package run

import (
	"errors"
	"maps"
	"slices"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/internal/run/expr"
	"github.com/sekali/sekali/internal/run/sqltext"
	"github.com/sekali/sekali/outbox"
)

// Plan is a file whose statements are read and whose expressions are compiled.
// It is safe for concurrent use.
type Plan struct {
	File *config.File

	key                    sekali.KeyFunc
	when                   *expr.Expr
	order, entity, version *expr.Expr
	statements             []statement
	effects                []request
	events                 []event
}

// statement is one of SQL.
type statement struct {
	from   config.Statement
	sql    *sqltext.Statement
	when   *expr.Expr
	params map[string]*expr.Expr
}

// request is one of HTTP.
type request struct {
	from   config.Effect
	name   string
	when   *expr.Expr
	params map[string]*expr.Expr
	body   *expr.Body
}

// event goes to the outbox.
type event struct {
	from    config.Event
	when    *expr.Expr
	id, key *expr.Expr
	headers []header
	body    *expr.Body
}

type header struct {
	name  string
	value *expr.Expr
}

// planner compiles, and collects what is wrong.
type planner struct {
	compiler *expr.Compiler
	problems config.Problems
	effects  []string // whose results are there
}

// Load reads a file's text and compiles all that is in it. The error is
// config.Problems: all that can be seen without database and broker.
func Load(text string, lookup func(string) (string, bool)) (*Plan, error) {
	file, err := config.Read(text, lookup)
	compiler, fatal := expr.NewCompiler()
	if fatal != nil {
		return nil, fatal
	}
	compiler.Vars = append([]string{}, slices.Sorted(maps.Keys(file.Vars))...)
	b := &planner{compiler: compiler}
	_ = errors.As(err, &b.problems)
	p := &Plan{File: file}
	b.compile(p)
	if err := b.problems.Err(); err != nil {
		return p, err
	}
	p.key = keyFunc(file.Key)
	return p, nil
}

func (b *planner) compile(p *Plan) {
	f := p.File
	p.when = b.expr(f.When, expr.Bool)
	p.order, p.entity, p.version = b.expr(f.Order, expr.Text), b.expr(f.Entity, expr.Text), b.expr(f.Version, expr.Whole)
	for _, e := range f.Effects {
		r := request{from: e, name: e.Name.Value, when: b.expr(e.When, expr.Bool), params: b.exprs(e.Params, expr.Text), body: b.body(e.Body)}
		p.effects = append(p.effects, r)
		b.effects = append(b.effects, r.name)
	}
	for _, s := range f.Handle {
		p.statements = append(p.statements, b.statement(s, f))
	}
	for _, e := range f.Publish {
		x := event{from: e, when: b.expr(e.When, expr.Bool), id: b.expr(e.ID, expr.Text), key: b.expr(e.Key, expr.Bytes), body: b.body(e.Body)}
		for name, v := range e.Headers {
			x.headers = append(x.headers, header{name, b.expr(v, expr.Bytes)})
		}
		slices.SortFunc(x.headers, func(a, b header) int { return compare(a.name, b.name) })
		b.header(e)
		p.events = append(p.events, x)
	}
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// header finds the one that the relay sets.
func (b *planner) header(e config.Event) {
	if t, there := e.Headers[outbox.IDHeader]; there {
		b.problems = append(b.problems, t.Problem("the relay sets this header", "give its value as id:"))
	}
}

func (b *planner) expr(t config.Text, want expr.Want) *expr.Expr {
	if !t.Given() {
		return nil
	}
	x, problems := b.compiler.Compile(t, want, b.effects...)
	b.problems = append(b.problems, problems...)
	return x
}

func (b *planner) exprs(all map[string]config.Text, want expr.Want) map[string]*expr.Expr {
	compiled := make(map[string]*expr.Expr, len(all))
	for name, t := range all {
		compiled[name] = b.expr(t, want)
	}
	return compiled
}

func (b *planner) body(from config.Body) *expr.Body {
	body, problems := b.compiler.CompileBody(from, b.effects...)
	b.problems = append(b.problems, problems...)
	return body
}

// statement reads one, and sees that it and its parameters belong together.
func (b *planner) statement(from config.Statement, f *config.File) statement {
	s := statement{from: from, when: b.expr(from.When, expr.Bool), params: b.exprs(from.Params, expr.Any)}
	if !from.SQL.Given() || f.Kind == "" {
		return s
	}
	sql, err := sqltext.Parse(from.SQL.Value, f.Kind)
	if bad := (*sqltext.Error)(nil); errors.As(err, &bad) {
		p := from.SQL.Problem(bad.Cause, bad.Mend)
		p.Pos = from.SQL.Offset(bad.Offset)
		b.problems = append(b.problems, p)
		return s
	}
	s.sql = sql
	names := sql.Names()
	for _, name := range names {
		if _, given := from.Params[name]; !given {
			p := from.SQL.Problem("the parameter :"+name+" is not given", "add "+name+": … to params")
			p.Pos = from.SQL.Offset(sql.Offset(name))
			b.problems = append(b.problems, p)
		}
	}
	for name, t := range from.Params {
		if !slices.Contains(names, name) {
			b.problems = append(b.problems, t.Problem("the statement does not use it", "write :"+name+" there, or remove it"))
		}
	}
	return s
}

// keyFunc makes the extractor.
func keyFunc(k config.Key) sekali.KeyFunc {
	parts := make([]sekali.KeyFunc, len(k.Parts))
	for i, p := range k.Parts {
		parts[i] = keyFunc(p)
	}
	switch k.Kind {
	case "header":
		return sekali.Header(k.Value.Value)
	case "json":
		return sekali.JSON(k.Value.Value)
	case "literal":
		return sekali.Literal(k.Value.Value)
	case "cloud_event":
		return sekali.CloudEvent()
	case "debezium":
		return sekali.Debezium()
	case "business":
		return sekali.Business(parts...)
	case "first_of":
		return sekali.FirstOf(parts...)
	case "scoped":
		return sekali.Scoped(k.Value.Value, parts[0])
	case "fold_uuid":
		return sekali.FoldUUID(parts[0])
	}
	return sekali.MessageID()
}
