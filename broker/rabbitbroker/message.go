package rabbitbroker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/broker"
)

// maxShort is the longest name that AMQP carries, in bytes.
const maxShort = 255

const countHeader = "x-delivery-count"

// theServers tells whether a header is written or obeyed by the server: no
// part of a message. A copy with such a one would be routed to others, counted
// wrongly, or be dropped as going in a circle.
func theServers(name string) bool {
	switch name {
	case "CC", "BCC", "x-death", countHeader:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// property is a property of AMQP that travels as a header.
type property struct {
	name string
	of   func(*amqp.Publishing) *string
}

var properties = []property{
	{"content-type", func(p *amqp.Publishing) *string { return &p.ContentType }},
	{"content-encoding", func(p *amqp.Publishing) *string { return &p.ContentEncoding }},
	{"correlation-id", func(p *amqp.Publishing) *string { return &p.CorrelationId }},
	{"reply-to", func(p *amqp.Publishing) *string { return &p.ReplyTo }},
	{"type", func(p *amqp.Publishing) *string { return &p.Type }},
	{"app-id", func(p *amqp.Publishing) *string { return &p.AppId }},
}

// publishingOf is a delivery's content, to be published again.
func publishingOf(d *amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
}

// topicOf is the topic of what was published to an exchange.
func topicOf(exchange, key string) string {
	if exchange == "" {
		if strings.Contains(key, "/") {
			return "/" + key
		}
		return key
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(exchange) + "/" + key
}

// placeOf is the reverse.
func placeOf(topic string) (exchange, key string, err error) {
	exchange, key, found := strings.Cut(topic, "/")
	if !found {
		exchange, key = "", topic
	}
	exchange = strings.NewReplacer("%25", "%", "%2F", "/").Replace(exchange)
	switch {
	case exchange == "" && key == "":
		return "", "", errors.New("there is no topic: name a queue, or \"exchange/routing key\"")
	case len(exchange) > maxShort || len(key) > maxShort:
		return "", "", fmt.Errorf("topic %.40q… is too long: exchange and routing key may have %d bytes each", topic, maxShort)
	}
	return exchange, key, nil
}

// messageOf makes a message of a delivery whose place and headers are given.
func (c SourceConfig) messageOf(d *amqp.Delivery, o origin) broker.Message {
	m := broker.Message{
		ID: d.MessageId, Topic: topicOf(o.exchange, o.key), Headers: headersOf(o.headers, publishingOf(d)), Body: d.Body,
	}
	if m.Body == nil {
		m.Body = []byte{}
	}
	if !d.Timestamp.IsZero() {
		m.PublishedAt = d.Timestamp.UTC()
	}
	if c.OrderingKeyHeader != "" {
		if v, ok := m.Headers.Get(c.OrderingKeyHeader); ok {
			m.OrderingKey = v
		}
	}
	return m
}

func headersOf(table amqp.Table, p amqp.Publishing) broker.Headers {
	values := make(map[string][]byte, len(table))
	for _, x := range properties {
		if v := *x.of(&p); v != "" {
			values[x.name] = []byte(v)
		}
	}
	for name, v := range table {
		if name != countHeader {
			values[name] = valueOf(v)
		}
	}
	if len(values) == 0 {
		return nil
	}
	headers := make(broker.Headers, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		headers = append(headers, broker.Header{Name: name, Value: values[name]})
	}
	return headers
}

// valueOf makes bytes of a header's value, as the package's doc says.
func valueOf(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte{}
	case string:
		return []byte(v)
	case []byte:
		return v
	case time.Time:
		return []byte(v.UTC().Format(time.RFC3339))
	case float32:
		return strconv.AppendFloat(nil, float64(v), 'g', -1, 32)
	case float64:
		return strconv.AppendFloat(nil, v, 'g', -1, 64)
	case amqp.Decimal:
		return []byte(decimal(v))
	case amqp.Table, []any:
		text, err := json.Marshal(plain(v))
		if err != nil { // plain leaves nothing that JSON does not know
			return fmt.Append(nil, v)
		}
		return text
	}
	return fmt.Append(nil, v) // booleans and integers
}

// plain makes of a nested value what encoding/json writes as it is meant.
func plain(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		out := make(map[string]any, len(v))
		for name, x := range v {
			out[name] = plain(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return v
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return string(valueOf(v))
		}
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return string(valueOf(v))
		}
	case time.Time, amqp.Decimal:
		return string(valueOf(v))
	}
	return v
}

// decimal writes a number whose last Scale digits are behind the point.
func decimal(d amqp.Decimal) string {
	sign, n := "", int64(d.Value)
	if n < 0 {
		sign, n = "-", -n
	}
	digits := strconv.FormatInt(n, 10)
	if d.Scale == 0 {
		return sign + digits
	}
	if missing := int(d.Scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(d.Scale)
	return sign + digits[:point] + "." + digits[point:]
}

// integer returns a number of whatever width.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case byte:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	}
	return 0, false
}

// outgoing is a message on its way out.
type outgoing struct {
	exchange, key string
	amqp.Publishing
}

// outgoingOf makes what is published, or says why AMQP cannot carry it.
func (p *Publisher) outgoingOf(m broker.Message) (outgoing, error) {
	exchange, key, err := placeOf(m.Topic)
	if err != nil {
		return outgoing{}, err
	}
	out := outgoing{exchange, key, amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: m.ID, Timestamp: time.Now(), Headers: amqp.Table{}, Body: m.Body,
	}}
	if len(m.ID) > maxShort {
		return out, fmt.Errorf("the ID is longer than %d bytes, and AMQP carries no more: shorten it", maxShort)
	}
	seen := map[string]bool{}
	for _, h := range m.Headers {
		if theServers(h.Name) || h.Name == p.keyHeader && h.Name != "" && m.OrderingKey != nil {
			continue
		}
		if seen[h.Name] {
			return out, fmt.Errorf("header %q is there twice, which AMQP does not carry: put both values into one", h.Name)
		}
		seen[h.Name] = true
		if err := out.add(h.Name, h.Value); err != nil {
			return out, err
		}
	}
	if p.keyHeader != "" && m.OrderingKey != nil {
		err = out.add(p.keyHeader, m.OrderingKey)
	}
	return out, err
}

// add adds a header; one with a property's name is that property too, for
// whoever looks there.
func (o *outgoing) add(name string, value []byte) error {
	if name == "" || len(name) > maxShort {
		return fmt.Errorf("header %.40q has a name of %d bytes, and AMQP carries 1 to %d: rename it", name, len(name), maxShort)
	}
	text := utf8.Valid(value)
	for _, x := range properties {
		if x.name == name && text && len(value) > 0 && len(value) <= maxShort {
			*x.of(&o.Publishing) = string(value)
		}
	}
	if text {
		o.Headers[name] = string(value)
	} else {
		o.Headers[name] = slices.Clone(value)
	}
	return nil
}

// weight is how many bytes headers and properties take in a frame, at most.
func (o *outgoing) weight() int {
	n := 64 + len(o.MessageId)
	for _, x := range properties {
		n += 1 + len(*x.of(&o.Publishing))
	}
	return n + weightOf(o.Headers)
}

func weightOf(v any) int {
	const tagged = 9 // the longest number, with its tag
	switch v := v.(type) {
	case string:
		return tagged + len(v)
	case []byte:
		return tagged + len(v)
	case amqp.Table:
		n := tagged
		for name, x := range v {
			n += 1 + len(name) + weightOf(x)
		}
		return n
	case []any:
		n := tagged
		for _, x := range v {
			n += weightOf(x)
		}
		return n
	}
	return tagged
}
