package run

import (
	"fmt"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/run/expr"
	"github.com/sekali/sekali/outbox"
)

// job is what a message is to do in its transaction.
type job struct {
	statements []bound
	events     []outbox.Message
}

// bound is a statement with its values.
type bound struct {
	of   *statement
	text string
	args []any
}

// changed checks how many rows the statement has changed.
func (b *bound) changed(rows int64) error {
	if want := b.of.from.Rows; want >= 0 && rows != int64(want) {
		return sekali.Permanent(fmt.Errorf("%s (line %d of the file): it has changed %d rows, and rows: wants %d",
			b.of.from.SQL.Field, b.of.from.SQL.Line, rows, want))
	}
	return nil
}

// failed says which statement an error is of.
func (b *bound) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s (line %d of the file): %w", b.of.from.SQL.Field, b.of.from.SQL.Line, err)
}

// input returns what expressions see of a message, or false if it is to have no
// effect. An expression for the order or the version that fails is told here:
// where it was needed there was no way to tell.
func (p *Plan) input(m *sekali.Message) (*expr.Input, bool, error) {
	in := expr.NewInput(m, p.File.Vars)
	if p.order != nil {
		if _, err := p.order.Text(in); err != nil {
			return nil, false, err
		}
	}
	if p.version != nil {
		if _, err := p.entity.Text(in); err != nil {
			return nil, false, err
		}
		if _, err := p.version.Whole(in); err != nil {
			return nil, false, err
		}
	}
	wanted, err := p.when.True(in)
	return in, wanted, err
}

// job evaluates all that the message does in its transaction.
func (p *Plan) job(in *expr.Input) (*job, error) {
	j := &job{}
	for i := range p.statements {
		s := &p.statements[i]
		runs, err := s.when.True(in)
		if err != nil {
			return nil, err
		}
		if !runs {
			continue
		}
		b, err := s.bind(p, in)
		if err != nil {
			return nil, err
		}
		j.statements = append(j.statements, b)
	}
	for i := range p.events {
		m, publishes, err := p.events[i].message(in)
		if err != nil {
			return nil, err
		}
		if publishes {
			j.events = append(j.events, m)
		}
	}
	return j, nil
}

// whole is input and job.
func (p *Plan) whole(m *sekali.Message) (*job, error) {
	in, wanted, err := p.input(m)
	if err != nil || !wanted {
		return &job{}, err
	}
	return p.job(in)
}

func (s *statement) bind(p *Plan, in *expr.Input) (bound, error) {
	b := bound{of: s, text: s.sql.Text()}
	names := s.sql.Args()
	var literals map[string]string
	b.args = make([]any, 0, len(names))
	for _, name := range names {
		v, err := s.params[name].Param(in, p.File.Kind)
		if err != nil {
			return b, err
		}
		if text, is := v.(expr.Literal); is {
			if literals == nil {
				literals = map[string]string{}
			}
			literals[name] = string(text)
			continue
		}
		b.args = append(b.args, v)
	}
	if literals != nil {
		b.text, _ = s.sql.Inline(literals)
	}
	return b, nil
}

func (e *event) message(in *expr.Input) (m outbox.Message, publishes bool, err error) {
	if publishes, err = e.when.True(in); err != nil || !publishes {
		return m, false, err
	}
	m.Topic = e.from.Topic.Value
	if e.id != nil {
		if m.ID, err = e.id.Text(in); err != nil {
			return m, false, err
		}
	}
	if e.key != nil {
		if m.OrderingKey, err = e.key.Bytes(in); err != nil {
			return m, false, err
		}
	}
	for _, h := range e.headers {
		value, err := h.value.Bytes(in)
		if err != nil {
			return m, false, err
		}
		m.Headers = append(m.Headers, broker.Header{Name: h.name, Value: value})
	}
	m.Body, err = e.body.Bytes(in)
	return m, err == nil, err
}

// orderOf is Config.Order. Where the expression fails the message has no
// ordering key: it becomes a dead letter in its turn.
func (p *Plan) orderOf(m *sekali.Message) string {
	key, err := p.order.Text(expr.NewInput(m, p.File.Vars))
	if err != nil {
		return ""
	}
	return key
}

// versionOf is Config.Version.
func (p *Plan) versionOf(m *sekali.Message) (string, int64, bool) {
	in := expr.NewInput(m, p.File.Vars)
	entity, err := p.entity.Text(in)
	if err != nil {
		return "", 0, false
	}
	version, err := p.version.Whole(in)
	return entity, version, err == nil
}
