package deadletter

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sekali/sekali/broker"
)

// envelope is all of a message but its body, in JSON, for sinks that store it
// in one column. Bytes that are valid UTF-8 stand as text, so that a person
// who reads the table sees them; others in base64.
type envelope struct {
	ID          *text       `json:"id,omitempty"`
	Topic       *text       `json:"topic,omitempty"`
	OrderingKey *text       `json:"ordering_key,omitempty"`
	PublishedAt *time.Time  `json:"published_at,omitempty"`
	Headers     []envHeader `json:"headers,omitempty"`
}

type envHeader struct {
	Name  text  `json:"name"`
	Value *text `json:"value"` // null: a header without a value
}

// text is a byte string: a JSON string where it is valid UTF-8, else an object
// with its base64.
type text []byte

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal(struct {
		Base64 []byte `json:"base64"`
	}{t})
}

func (t *text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var s string
		err := json.Unmarshal(data, &s)
		*t = text(s)
		return err
	}
	var o struct {
		Base64 []byte `json:"base64"`
	}
	err := json.Unmarshal(data, &o)
	*t = o.Base64
	return err
}

// optional keeps nil and empty apart.
func optional(b []byte) *text {
	if b == nil {
		return nil
	}
	t := text(b)
	return &t
}

func (t *text) bytes() []byte {
	if t == nil {
		return nil
	}
	if *t == nil {
		return []byte{}
	}
	return *t
}

func (t *text) string() string { return string(t.bytes()) }

func nonEmpty(s string) *text {
	if s == "" {
		return nil
	}
	return optional([]byte(s))
}

// MarshalEnvelope returns all of a message but its body as JSON.
func MarshalEnvelope(m broker.Message) ([]byte, error) {
	e := envelope{ID: nonEmpty(m.ID), Topic: nonEmpty(m.Topic), OrderingKey: optional(m.OrderingKey)}
	if !m.PublishedAt.IsZero() {
		at := m.PublishedAt.UTC()
		e.PublishedAt = &at
	}
	for _, h := range m.Headers {
		e.Headers = append(e.Headers, envHeader{text(h.Name), optional(h.Value)})
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode the envelope of message %q: %w", m.ID, err)
	}
	return data, nil
}

// UnmarshalEnvelope returns the message whose envelope MarshalEnvelope made,
// with the body given.
func UnmarshalEnvelope(data, body []byte) (broker.Message, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return broker.Message{}, fmt.Errorf("decode the envelope of a dead letter: %w", err)
	}
	m := broker.Message{
		ID: e.ID.string(), Topic: e.Topic.string(), OrderingKey: e.OrderingKey.bytes(), Body: body,
	}
	if e.PublishedAt != nil {
		m.PublishedAt = *e.PublishedAt
	}
	for _, h := range e.Headers {
		m.Headers = append(m.Headers, broker.Header{Name: string(h.Name), Value: h.Value.bytes()})
	}
	return m, nil
}
