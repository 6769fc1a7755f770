package deadletter

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/broker"
)

// Headers of a letter in a broker's queue. HeaderKey and HeaderConsumer are
// those by which a Consumer of that name takes the key of a copy.
const (
	HeaderKey         = "sekali-key"
	HeaderConsumer    = "sekali-consumer"
	HeaderReason      = "sekali-reason"
	HeaderError       = "sekali-error"        // its first line
	HeaderAttempts    = "sekali-attempts"     // calls of the handler in vain
	HeaderTopic       = "sekali-topic"        // the original's
	HeaderID          = "sekali-id"           // the original's, at its broker
	HeaderOrderingKey = "sekali-ordering-key" // as Config.Order gave it
	HeaderPublishedAt = "sekali-published-at" // the original, RFC 3339
	HeaderDeadAt      = "sekali-dead-at"      // RFC 3339
	// HeaderOriginal holds, in base64, all of the original but its body, as
	// MarshalEnvelope makes it: what other headers show for people may be
	// escaped or cut.
	HeaderOriginal = "sekali-original"
	// HeaderNullBody is there if the original had no body at all.
	HeaderNullBody = "sekali-null-body"
)

// ToPublisher returns a Sink that publishes letters to a topic: a dead letter
// queue at the broker. The body is the original's. The original's own headers
// are kept as they are, where they are plain text that every broker carries;
// HeaderOriginal has all of them.
//
// Such a queue cannot tell that a letter is a copy of another one, hold
// messages back, or have a letter resolved together with its effect: prefer
// the table, which is the default. Letters come back by a redrive from the
// queue (sekali deadletters redrive --from-queue, which for JetStream names the
// stream in which topic, a subject, is stored). p is closed by whoever made it.
func ToPublisher(p broker.Publisher, topic string) Sink { return publisherSink{p, topic} }

type publisherSink struct {
	publisher broker.Publisher
	topic     string
}

// Put implements Sink.
func (s publisherSink) Put(ctx context.Context, l Letter) error {
	m, err := AsMessage(l, s.topic, time.Now())
	if err != nil {
		return err
	}
	if err := s.publisher.Publish(ctx, m); err != nil {
		return fmt.Errorf("publish a dead letter of consumer %q to %s: %w", l.Consumer, s.topic, err)
	}
	return nil
}

// AsMessage returns the message that carries a letter to a broker's queue. It
// has no ID: the broker's own window against duplicates, which goes by IDs,
// must not swallow it.
func AsMessage(l Letter, topic string, at time.Time) (broker.Message, error) {
	envelope, err := MarshalEnvelope(l.Message)
	if err != nil {
		return broker.Message{}, fmt.Errorf("write a dead letter of consumer %q: %w", l.Consumer, err)
	}
	m := broker.Message{Topic: topic, OrderingKey: l.Message.OrderingKey, Body: l.Message.Body}
	for _, h := range l.Message.Headers {
		if isPlain(h.Name) && isPlain(string(h.Value)) && !reserved(h.Name) {
			if _, twice := m.Headers.Get(h.Name); !twice { // not every broker carries two
				m.Headers = append(m.Headers, h)
			}
		}
	}
	add := func(name, value string) {
		if value != "" {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: []byte(value)})
		}
	}
	add(HeaderConsumer, EscapeHeader(l.Consumer))
	add(HeaderKey, EscapeHeader(l.Key))
	add(HeaderReason, string(l.Reason))
	add(HeaderError, forPeople(l.Error))
	add(HeaderAttempts, strconv.Itoa(l.Attempts))
	add(HeaderTopic, EscapeHeader(l.Message.Topic))
	add(HeaderID, EscapeHeader(l.Message.ID))
	add(HeaderOrderingKey, EscapeHeader(l.OrderingKey))
	if !l.Message.PublishedAt.IsZero() {
		add(HeaderPublishedAt, l.Message.PublishedAt.UTC().Format(time.RFC3339Nano))
	}
	add(HeaderDeadAt, at.UTC().Format(time.RFC3339Nano))
	add(HeaderOriginal, base64.StdEncoding.EncodeToString(envelope))
	if l.Message.Body == nil {
		add(HeaderNullBody, "true")
	}
	return m, nil
}

// FromMessage returns the letter that AsMessage made a message of. Its error
// wraps ErrNotALetter if the message is no such one.
func FromMessage(m broker.Message) (Letter, error) {
	original, ok := m.Headers.Get(HeaderOriginal)
	if !ok {
		return Letter{}, fmt.Errorf("%w: it has no header %s", ErrNotALetter, HeaderOriginal)
	}
	envelope, err := base64.StdEncoding.DecodeString(string(original))
	if err != nil {
		return Letter{}, fmt.Errorf("%w: header %s: %w", ErrNotALetter, HeaderOriginal, err)
	}
	body := m.Body
	if _, null := m.Headers.Get(HeaderNullBody); null {
		body = nil
	} else if body == nil {
		body = []byte{}
	}
	l := Letter{Status: Open}
	if l.Message, err = UnmarshalEnvelope(envelope, body); err != nil {
		return Letter{}, fmt.Errorf("%w: header %s: %w", ErrNotALetter, HeaderOriginal, err)
	}
	text := func(name string) string {
		value, _ := m.Headers.Get(name)
		return UnescapeHeader(string(value))
	}
	l.Consumer, l.Key, l.OrderingKey = text(HeaderConsumer), text(HeaderKey), text(HeaderOrderingKey)
	l.Reason, l.Error = Reason(text(HeaderReason)), text(HeaderError)
	l.Attempts, _ = strconv.Atoi(text(HeaderAttempts))
	l.FirstAt, _ = time.Parse(time.RFC3339Nano, text(HeaderDeadAt))
	l.LastAt = l.FirstAt
	return l, nil
}

// Redriven returns the message that a redrive sends: the original, with its
// key for its consumer alone, and without an ID, for the same reason as
// AsMessage.
func Redriven(l Letter, topic string) broker.Message {
	m := l.Message
	m.ID, m.Topic = "", topic
	if l.Key != "" {
		m.Headers = m.Headers.Set(HeaderKey, []byte(EscapeHeader(l.Key))).Set(HeaderConsumer, []byte(EscapeHeader(l.Consumer)))
	}
	return m
}

// reserved tells whether a header's name is ours, or one that a broker uses for
// itself (NATS, Redis).
func reserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "body", "ordering-key", "message-id":
		return true
	}
	return strings.HasPrefix(name, "sekali-") || strings.HasPrefix(name, "nats-")
}

// isPlain tells whether every broker carries text as it is in a header:
// printable ASCII, without blanks at its ends.
func isPlain(text string) bool {
	return text != "" && strings.TrimSpace(text) == text && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

const encoded = "base64:"

// EscapeHeader returns bytes as text that every broker carries in a header:
// themselves where they are printable ASCII, else "base64:" and their base64.
func EscapeHeader(text string) string {
	if text == "" || isPlain(text) && !strings.HasPrefix(text, encoded) {
		return text
	}
	return encoded + base64.StdEncoding.EncodeToString([]byte(text))
}

// UnescapeHeader undoes EscapeHeader. What is not escaped stays as it is.
func UnescapeHeader(text string) string {
	rest, is := strings.CutPrefix(text, encoded)
	if !is {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(rest)
	if err != nil {
		return text
	}
	return string(raw)
}

// maxHeaderError is how much of an error stands in a header, in bytes.
const maxHeaderError = 500

// forPeople returns an error's first line as a header carries it, lossily.
func forPeople(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, line)
	return strings.TrimSpace(line[:min(len(line), maxHeaderError)])
}
