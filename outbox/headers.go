package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/sekali/sekali/broker"
)

// binary is how a header value that is not text stands in the table.
type binary struct {
	Base64 []byte `json:"base64"`
}

// MarshalHeaders writes headers as a JSON object, in their order: a value that
// is text as a string, nil as null, any other as {"base64": "…"}. A name that
// repeats is there twice. No headers are nil: NULL in the table.
func MarshalHeaders(h broker.Headers) ([]byte, error) {
	if len(h) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	for i, x := range h {
		b.WriteByte("{,"[min(i, 1)])
		if !utf8.ValidString(x.Name) {
			return nil, fmt.Errorf("the name of header %d is not UTF-8: the table cannot keep it", i+1)
		}
		name, err := json.Marshal(x.Name)
		if err != nil {
			return nil, err
		}
		var value any = string(x.Value)
		switch {
		case x.Value == nil:
			value = nil
		case !utf8.Valid(x.Value):
			value = binary{x.Value}
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalHeaders reads what MarshalHeaders wrote, or another language's JSON
// library.
func UnmarshalHeaders(text []byte) (broker.Headers, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	h, err := unmarshalHeaders(text)
	if err != nil {
		return nil, fmt.Errorf(`the headers are not a JSON object such as {"name": "value"}: %w`, err)
	}
	return h, nil
}

func unmarshalHeaders(text []byte) (h broker.Headers, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.Join(errors.New("it does not begin with {"), err)
	}
	for d.More() {
		name, err := d.Token() // a string: the decoder sees to that
		if err != nil {
			return nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, err
		}
		value, err := headerValue(raw)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", name, err)
		}
		h = append(h, broker.Header{Name: name.(string), Value: value})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind it")
	}
	return h, nil
}

func headerValue(raw json.RawMessage) ([]byte, error) {
	switch text := strings.TrimSpace(string(raw)); {
	case text == "null":
		return nil, nil
	case strings.HasPrefix(text, `"`):
		var s string
		err := json.Unmarshal(raw, &s)
		return []byte(s), err
	case strings.HasPrefix(text, "{"):
		var b struct {
			Base64 *[]byte `json:"base64"`
		}
		if err := json.Unmarshal(raw, &b); err != nil {
			return nil, err
		}
		if b.Base64 == nil {
			return nil, errors.New(`its value is an object without "base64"`)
		}
		return *b.Base64, nil
	}
	return nil, errors.New(`its value is neither a string nor null nor {"base64": "…"}`)
}
