package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"github.com/sekali/sekali"
)

// Input is what expressions see of one message. It is for one goroutine.
type Input struct {
	message *sekali.Message
	vars    map[string]string
	effects map[string]any

	parsed  bool
	body    any
	bodyErr error
	headers map[string]any
}

// NewInput returns the input of a message. Its body is read as JSON when an
// expression first wants it.
func NewInput(m *sekali.Message, vars map[string]string) *Input {
	return &Input{message: m, vars: vars, effects: map[string]any{}}
}

// Result is what an effect gave. The ledger keeps it as JSON, and a person who
// resolves an effect writes it so: {"status": 200, "body": {"no": "PX-1"}}.
type Result struct {
	Status int `json:"status"`
	// Body of the answer: as it is if that is JSON, else as a string, in base64
	// if it is no text.
	Body json.RawMessage `json:"body,omitempty"`
}

// NewResult returns that of an answer.
func NewResult(status int, answer []byte) (Result, error) {
	r := Result{Status: status}
	if len(answer) == 0 {
		return r, nil
	}
	if _, err := decode(answer); err == nil {
		r.Body = answer
		return r, nil
	}
	var value any = answer
	if utf8.Valid(answer) {
		value = string(answer)
	}
	body, err := json.Marshal(value)
	r.Body = body
	return r, err
}

// SetEffect has expressions see the result of an effect.
func (in *Input) SetEffect(name string, r Result) error {
	value := map[string]any{"status": int64(r.Status)}
	if len(r.Body) > 0 {
		body, err := decode(r.Body)
		if err != nil {
			return fmt.Errorf("read the result of effect %q: %w", name, err)
		}
		value["body"] = body
	}
	in.effects[name] = value
	return nil
}

// Parent implements cel.Activation.
func (in *Input) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (in *Input) ResolveName(name string) (any, bool) {
	m := in.message
	switch name {
	case "body":
		if body, err := in.json(); err != nil {
			return types.WrapErr(err), true
		} else if body == nil {
			return types.NullValue, true
		} else {
			return body, true
		}
	case "raw":
		return types.Bytes(m.Body), true
	case "headers":
		return in.headerMap(), true
	case "key":
		return types.String(m.Key()), true
	case "topic":
		return types.String(m.Topic), true
	case "id":
		return types.String(m.ID), true
	case "ordering_key":
		return text(m.OrderingKey), true
	case "time":
		if m.PublishedAt.IsZero() {
			return types.NewErr("the broker does not say when the message was published"), true
		}
		return types.Timestamp{Time: m.PublishedAt.UTC()}, true
	case "vars":
		return in.vars, true
	case "effects":
		return in.effects, true
	}
	return nil, false
}

func (in *Input) json() (any, error) {
	if !in.parsed {
		in.parsed = true
		if in.body, in.bodyErr = decode(in.message.Body); in.bodyErr != nil {
			in.bodyErr = fmt.Errorf("the body is not JSON: %w", in.bodyErr)
		}
	}
	return in.body, in.bodyErr
}

// decode reads JSON whose numbers keep their digits.
func decode(data []byte) (value any, err error) {
	switch {
	case len(data) == 0:
		return nil, errors.New("it is empty")
	case !utf8.Valid(data):
		return nil, errors.New("it is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows it")
	}
	return value, nil
}

// headerMap has the first value of each header: text where it is that.
func (in *Input) headerMap() map[string]any {
	if in.headers == nil {
		in.headers = make(map[string]any, len(in.message.Headers))
		for _, h := range in.message.Headers {
			if _, twice := in.headers[h.Name]; !twice {
				in.headers[h.Name] = text(h.Value)
			}
		}
	}
	return in.headers
}

func text(b []byte) any {
	if utf8.Valid(b) {
		return types.String(b)
	}
	return types.Bytes(b)
}
