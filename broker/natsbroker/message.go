package natsbroker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
)

// handle is the Handle of a delivery.
type handle struct {
	reply    string    // where to acknowledge
	sequence uint64    // in the stream
	stream   time.Time // creation of the stream: its incarnation
}

// deliveryOf makes a delivery of a message that a pull asked for at asked.
func (s *Source) deliveryOf(m *nats.Msg, meta *nats.MsgMetadata, v *view, asked time.Time) *broker.Delivery {
	d := &broker.Delivery{
		Message: broker.Message{
			ID:          messageID(m, meta),
			Topic:       m.Subject,
			OrderingKey: s.orderingKey(m),
			Headers:     headersOf(m.Header),
			Body:        m.Data,
			PublishedAt: meta.Timestamp.UTC(),
		},
		Attempt:     int(min(meta.NumDelivered, 1<<31-1)),
		Redelivered: meta.NumDelivered > 1,
		Handle:      &handle{m.Reply, meta.Sequence.Stream, v.stream},
	}
	if d.Message.Body == nil {
		d.Message.Body = []byte{}
	}
	if s.cfg.Ordered {
		d.Lane = s.cfg.Stream + "/" + s.cfg.Consumer
	}
	d.Extend(v.ours() - time.Since(asked))
	return d
}

// messageID is the producer's id, else the message's place in its stream with
// the time at which it was stored there. A stream that was made again counts
// from 1 again, at another time.
func messageID(m *nats.Msg, meta *nats.MsgMetadata) string {
	if id := m.Header.Get(jetstream.MsgIDHeader); id != "" {
		return id
	}
	return fmt.Sprintf("%s@%d/%d", meta.Stream, meta.Timestamp.UnixNano(), meta.Sequence.Stream)
}

func (s *Source) orderingKey(m *nats.Msg) []byte {
	if name := s.cfg.OrderingKeyHeader; name != "" {
		if v := m.Header.Values(name); len(v) > 0 {
			return []byte(v[0])
		}
	}
	if n := s.cfg.OrderingKeyToken; n > 0 {
		if tokens := strings.Split(m.Subject, "."); n <= len(tokens) {
			return []byte(tokens[n-1])
		}
	}
	return nil
}

func headersOf(h nats.Header) broker.Headers {
	if len(h) == 0 {
		return nil
	}
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	headers := make(broker.Headers, 0, len(names))
	for _, name := range names {
		for _, v := range h[name] {
			headers = append(headers, broker.Header{Name: name, Value: []byte(v)})
		}
	}
	return headers
}

// instruction tells whether a header is not part of a message but tells a
// server how to store it once. A copy, a redriven dead letter say, must not
// say it again: it would be refused, or erase others.
func instruction(name string) bool {
	for _, prefix := range []string{"Nats-Expected-", "Nats-Rollup", "Nats-Schedule"} {
		if len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
			return true
		}
	}
	return strings.EqualFold(name, jetstream.MsgIDHeader)
}

// natsMessage makes what is published, or says why NATS cannot carry it.
func (p *Publisher) natsMessage(m broker.Message) (*nats.Msg, error) {
	if !validSubject(m.Topic, false) {
		return nil, fmt.Errorf("topic %q is not a subject: use tokens with dots between them, without blanks and wildcards", m.Topic)
	}
	out := &nats.Msg{Subject: m.Topic, Data: m.Body, Header: nats.Header{}}
	for _, h := range m.Headers {
		if instruction(h.Name) {
			continue
		}
		if err := addHeader(out.Header, h.Name, string(h.Value)); err != nil {
			return nil, err
		}
	}
	if name := p.keyHeader; name != "" && m.OrderingKey != nil {
		out.Header.Del(name)
		if err := addHeader(out.Header, name, string(m.OrderingKey)); err != nil {
			return nil, err
		}
	}
	if m.ID != "" && !p.withoutID {
		if err := addHeader(out.Header, jetstream.MsgIDHeader, m.ID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addHeader adds a header as it is, or refuses it: nats.go would turn line
// breaks into blanks and drop blanks around the value without a word.
func addHeader(h nats.Header, name, value string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return unprintable(r) || r == ':' }) {
		return fmt.Errorf("header %q cannot have this name in NATS: rename it, without blanks and colons", name)
	}
	if strings.ContainsAny(value, "\r\n") || value != strings.Trim(value, " \t") {
		return fmt.Errorf("the value of header %q holds a line break, or a blank at an end, which NATS does not keep: encode it", name)
	}
	h[name] = append(h[name], value)
	return nil
}
