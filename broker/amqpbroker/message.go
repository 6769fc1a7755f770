package amqpbroker

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
)

// The prefixes of ids that are no plain text, as JMS writes them.
const (
	stringPrefix = "ID:AMQP_STRING:"
	ulongPrefix  = "ID:AMQP_ULONG:"
	uuidPrefix   = "ID:AMQP_UUID:"
	binaryPrefix = "ID:AMQP_BINARY:"
)

// idText returns a message-id as a JMS client sees it.
func idText(id any) string {
	switch id := id.(type) {
	case string:
		if _, typed := typedID(id).(string); !typed || strings.HasPrefix(id, stringPrefix) && typedID(id) != any(id) {
			return stringPrefix + id // it would be taken for another type
		}
		return id
	case uint64:
		return ulongPrefix + strconv.FormatUint(id, 10)
	case amqp.UUID:
		return uuidPrefix + id.String()
	case []byte:
		return binaryPrefix + strings.ToUpper(hex.EncodeToString(id))
	}
	return ""
}

// typedID undoes idText: only what idText writes has a type, all else is text
// as it stands, so that every ID comes back as it was published.
func typedID(id string) any {
	if text, is := strings.CutPrefix(id, stringPrefix); is && idText(text) == id {
		return text
	}
	if text, is := strings.CutPrefix(id, ulongPrefix); is {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && idText(n) == id {
			return n
		}
	}
	if text, is := strings.CutPrefix(id, uuidPrefix); is {
		raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err == nil && len(raw) == 16 && idText(amqp.UUID(raw)) == id {
			return amqp.UUID(raw)
		}
	}
	if text, is := strings.CutPrefix(id, binaryPrefix); is {
		if raw, err := hex.DecodeString(text); err == nil && idText(raw) == id {
			return raw
		}
	}
	return id
}

// deliveryOf makes a delivery of a message that a link brought.
func (s *Source) deliveryOf(m *amqp.Message, l *link) *broker.Delivery {
	d := &broker.Delivery{Handle: &handle{l, m}}
	d.Message = broker.Message{Topic: s.cfg.Queue, Headers: headersOf(m.ApplicationProperties), Body: bodyOf(m)}
	if p := m.Properties; p != nil {
		d.Message.ID = idText(p.MessageID)
		if p.To != nil && *p.To != "" {
			d.Message.Topic = *p.To
		}
		if p.GroupID != nil {
			d.Message.OrderingKey = []byte(*p.GroupID)
		}
		if p.CreationTime != nil {
			d.Message.PublishedAt = p.CreationTime.UTC()
		}
	}
	count := uint32(0)
	if m.Header != nil {
		count = m.Header.DeliveryCount
	}
	d.Attempt, d.Redelivered = int(min(count, 1<<31-2))+1, count > 0
	if s.cfg.Exclusive {
		d.Lane = s.cfg.Queue
	}
	return d
}

func headersOf(properties map[string]any) broker.Headers {
	if len(properties) == 0 {
		return nil
	}
	headers := make(broker.Headers, 0, len(properties))
	for name, value := range properties {
		headers = append(headers, broker.Header{Name: name, Value: bytesOf(value)})
	}
	slices.SortFunc(headers, func(a, b broker.Header) int { return strings.Compare(a.Name, b.Name) })
	return headers
}

// bytesOf returns a value's bytes: see the package's documentation.
func bytesOf(value any) []byte {
	switch v := value.(type) {
	case nil:
		return nil
	case string:
		return []byte(v)
	case amqp.Symbol:
		return []byte(v)
	case []byte:
		return bytes.Clone(v)
	case time.Time:
		return []byte(v.UTC().Format(time.RFC3339Nano))
	case amqp.UUID:
		return []byte(v.String())
	case bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64:
		return fmt.Append(nil, v)
	}
	text, err := json.Marshal(value)
	if err != nil { // a map whose names are no text, say
		return fmt.Append(nil, value)
	}
	return text
}

func bodyOf(m *amqp.Message) []byte {
	switch {
	case m.Data != nil:
		body := bytes.Join(m.Data, nil)
		if body == nil {
			body = []byte{}
		}
		return body
	case m.Sequence != nil:
		return bytesOf(m.Sequence)
	}
	return bytesOf(m.Value)
}

// wireOf makes what travels of a message.
func wireOf(m broker.Message) (*amqp.Message, error) {
	now := time.Now()
	if !m.PublishedAt.IsZero() {
		now = m.PublishedAt
	}
	to := m.Topic
	w := &amqp.Message{
		Header:     &amqp.MessageHeader{Durable: true, Priority: 4},
		Properties: &amqp.MessageProperties{To: &to, CreationTime: &now},
	}
	if !utf8.ValidString(to) || to == "" {
		return nil, fmt.Errorf("topic %q is no address: name one", to)
	}
	if m.ID != "" {
		if !utf8.ValidString(m.ID) {
			return nil, errors.New("its ID is not UTF-8, which AMQP's text must be")
		}
		w.Properties.MessageID = typedID(m.ID)
	}
	if m.OrderingKey != nil {
		if !utf8.Valid(m.OrderingKey) {
			return nil, errors.New("its ordering key is not UTF-8, which a group-id must be")
		}
		group := string(m.OrderingKey)
		w.Properties.GroupID = &group
	}
	if m.Body != nil {
		w.Data = [][]byte{m.Body}
	} else {
		w.Value = amqp.Null{} // a message has a body, and this is one
	}
	if len(m.Headers) > 0 {
		w.ApplicationProperties = make(map[string]any, len(m.Headers))
	}
	for _, h := range m.Headers {
		if _, twice := w.ApplicationProperties[h.Name]; twice {
			return nil, fmt.Errorf("header %q comes twice, and AMQP's properties cannot", h.Name)
		}
		if !utf8.ValidString(h.Name) {
			return nil, fmt.Errorf("header %q is not UTF-8, which a property's name must be", h.Name)
		}
		switch {
		case h.Value == nil:
			w.ApplicationProperties[h.Name] = nil
		case utf8.Valid(h.Value) && !bytes.ContainsRune(h.Value, 0):
			w.ApplicationProperties[h.Name] = string(h.Value)
		default:
			w.ApplicationProperties[h.Name] = h.Value
		}
	}
	return w, nil
}
