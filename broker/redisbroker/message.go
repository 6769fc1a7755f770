package redisbroker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/broker"
)

// handle is the Handle of a delivery.
type handle struct {
	id     string // of the entry
	count  int64  // the entry's count of deliveries, this one included
	stream string
}

// entry is an entry of the stream as the server tells of it.
type entry struct {
	id     string
	count  int64
	fields []any // names and values in turn
}

// errReply is the error for an answer that is not what the command returns.
var errReply = errors.New("the server's answer is not understood")

// newEntries reads the answer of XREADGROUP for one stream. go-redis's own
// type for it would lose the order of fields and those that repeat.
func newEntries(reply any) ([]entry, error) {
	var list any
	switch r := reply.(type) {
	case nil:
		return nil, nil
	case map[any]any: // RESP3
		for _, list = range r {
		}
	case []any: // RESP2: pairs of a stream and its entries
		if len(r) == 0 {
			return nil, nil
		}
		pair, ok := r[0].([]any)
		if !ok || len(pair) != 2 {
			return nil, errReply
		}
		list = pair[1]
	}
	all, ok := list.([]any)
	if !ok {
		return nil, errReply
	}
	entries := make([]entry, 0, len(all))
	for _, one := range all {
		x, ok := one.([]any)
		if !ok || len(x) != 2 {
			return nil, errReply
		}
		id, ok := x[0].(string)
		pairs, isList := x[1].([]any)
		if !ok || !isList {
			return nil, errReply
		}
		entries = append(entries, entry{id, 1, pairs})
	}
	return entries, nil
}

// claimedEntries reads the answer of claimScript.
func claimedEntries(reply any) (cursor string, entries []entry, gone []string, err error) {
	r, ok := reply.([]any)
	if !ok || len(r) != 3 {
		return "", nil, nil, errReply
	}
	cursor, isText := r[0].(string)
	got, isList := r[1].([]any)
	if !isText || !isList {
		return "", nil, nil, errReply
	}
	for _, one := range got {
		x, ok := one.([]any)
		if !ok || len(x) != 3 {
			return "", nil, nil, errReply
		}
		id, isText := x[0].(string)
		count, isNumber := x[1].(int64)
		pairs, isList := x[2].([]any)
		if !isText || !isNumber || !isList {
			return "", nil, nil, errReply
		}
		entries = append(entries, entry{id, count, pairs})
	}
	gone, err = ids(r[2])
	return cursor, entries, gone, err
}

// ids reads a list of ids.
func ids(reply any) ([]string, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	all := make([]string, len(list))
	for i := range list {
		if all[i], ok = list[i].(string); !ok {
			return nil, errReply
		}
	}
	return all, nil
}

// deliveryOf makes a delivery of an entry that was asked for at asked.
func (s *Source) deliveryOf(e entry, asked time.Time) (*broker.Delivery, error) {
	d := &broker.Delivery{
		Message: broker.Message{
			ID:          s.cfg.Stream + "/" + e.id,
			Topic:       s.cfg.Stream,
			PublishedAt: addedAt(e.id),
		},
		Attempt:     int(min(e.count, 1<<31-1)),
		Redelivered: e.count > 1,
		Handle:      &handle{e.id, e.count, s.cfg.Stream},
	}
	m, names := &d.Message, s.names
	for i := 0; i+1 < len(e.fields); i += 2 {
		name, ok := e.fields[i].(string)
		value, isText := e.fields[i+1].(string)
		if !ok || !isText {
			return nil, errReply
		}
		switch {
		case name == names.body && m.Body == nil:
			m.Body = []byte(value)
		case name == names.key && m.OrderingKey == nil:
			m.OrderingKey = []byte(value)
		case name == names.id:
			if value != "" {
				m.ID = value
			}
		default: // a repeated one of ours too: nothing is dropped
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: []byte(value)})
		}
	}
	d.Extend(s.ours() - time.Since(asked))
	return d, nil
}

// addedAt is the time in an entry's id, unless a producer gave it an id that
// is none.
func addedAt(id string) time.Time {
	const birth = 1_230_768_000_000 // 2009, when Redis was born
	text, _, _ := strings.Cut(id, "-")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < birth || ms > time.Now().Add(24*time.Hour).UnixMilli() {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// entryArgs are the fields of a message, for XADD, or an error that says why
// they would not come out as they went in.
func (p *Publisher) entryArgs(m broker.Message) ([]any, error) {
	if m.Topic == "" {
		return nil, errors.New("its topic is empty: give the key of the stream")
	}
	args := make([]any, 0, 2*len(m.Headers)+16)
	args = append(args, "xadd", m.Topic)
	if p.cfg.OnlyExisting {
		args = append(args, "nomkstream")
	}
	if p.cfg.MaxLen > 0 {
		args = append(args, "maxlen", "~", p.cfg.MaxLen)
	}
	args = append(args, "*")
	begin := len(args)
	for _, h := range m.Headers {
		if p.names.has(h.Name) {
			return nil, fmt.Errorf("header %q bears the name of a field that is no header: rename it, or the field in PublisherConfig and SourceConfig", h.Name)
		}
		args = append(args, h.Name, h.Value)
	}
	if m.OrderingKey != nil {
		args = append(args, p.names.key, m.OrderingKey)
	}
	if m.Body != nil {
		args = append(args, p.names.body, m.Body)
	}
	if m.ID != "" || len(args) == begin { // an entry has one field at least
		args = append(args, p.names.id, m.ID)
	}
	return args, nil
}
