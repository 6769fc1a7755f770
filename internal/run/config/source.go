package config

import (
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/internal/brokerurl"
)

// Embedded is the URL of the broker that runs in the process itself.
const Embedded = "nats://embedded"

// kinds are the fields of source that a broker has beside url; the first ones,
// so many, are required.
var kinds = map[string]struct {
	required int
	fields   []string
}{
	"embedded": {2, []string{"stream", "subjects", "directory", "listen", "group", "only_new", "ack_wait", "ordered", "max_ack_pending", "ordering_key_header", "ordering_key_token"}},
	"nats":     {1, []string{"stream", "subjects", "group", "only_new", "ack_wait", "ordered", "max_ack_pending", "ordering_key_header", "ordering_key_token"}},
	"kafka":    {1, []string{"topics", "group", "only_new", "server_side", "session_timeout"}},
	"rabbitmq": {1, []string{"queue", "prefetch", "single_active", "ordering_key_header", "delayed_retry", "declare"}},
	"amqp10":   {1, []string{"queue", "capability", "credit", "exclusive"}},
	"redis":    {1, []string{"stream", "group", "only_new", "ack_wait", "body_field", "ordering_key_field", "message_id_field"}},
}

// sourceFields are those of all kinds.
var sourceFields = func() []string {
	all := []string{"url"}
	for _, k := range []string{"embedded", "kafka", "rabbitmq", "amqp10", "redis"} {
		for _, f := range kinds[k].fields {
			if !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}()

func (c *File) readSource(n node) {
	s := n.fields("give url, and what to receive", sourceFields, "url")
	if s == nil || !s["url"].given() {
		return
	}
	src := &c.Source
	src.URL = s["url"].text("give the URL of a broker, such as nats://localhost:4222")
	if !src.URL.Given() || src.URL.Value == "" {
		return
	}
	n.file.hidePassword(src.URL.Value)
	if src.URL.Value == Embedded {
		src.Kind = "embedded"
	} else if kind, err := brokerurl.KindOf(src.URL.Value); err != nil {
		s["url"].bad("it names no broker that is known", brokerurl.ErrURL.Error()+", or "+Embedded)
		return
	} else {
		src.Kind = kind
	}
	n.ofKind(s, src.Kind)
	src.read(s, c.Consumer.Value)
	if host, _, err := net.SplitHostPort(src.Listen); src.Kind == "embedded" && (err != nil || host == "") {
		s["listen"].bad("it is no address", "give host and port, such as 127.0.0.1:4222")
	}
}

// ofKind finds fields that the kind does not have, and those that it misses.
func (n node) ofKind(s map[string]node, kind string) {
	has := kinds[kind]
	for name, v := range s {
		if name != "url" && !slices.Contains(has.fields, name) {
			v.bad("a source of kind "+kind+" has no such field", "remove it; there are "+strings.Join(has.fields, ", "))
		}
	}
	for _, name := range has.fields[:has.required] {
		if !s[name].given() {
			n.file.problem(Problem{Pos: n.pos(), Field: n.below(name), Cause: "it is missing", Mend: mends[name]})
		}
	}
}

func (src *Source) read(s map[string]node, consumer string) {
	text := func(name, otherwise string) string {
		if !s[name].given() {
			return otherwise
		}
		return s[name].text("give a single value").Value
	}
	if s["stream"].given() {
		src.Stream = s["stream"].text(mends["stream"])
	}
	if s["queue"].given() {
		src.Queue = s["queue"].text(mends["queue"])
	}
	src.Topics = s["topics"].texts(mends["topics"])
	for _, t := range s["subjects"].texts(mends["subjects"]) {
		src.Subjects = append(src.Subjects, t.Value)
	}
	src.Group = text("group", consumer)
	src.OnlyNew, src.Ordered, src.ServerSide = s["only_new"].yes(), s["ordered"].yes(), s["server_side"].yes()
	src.DelayedRetry, src.SingleActive, src.Exclusive = s["delayed_retry"].yes(), s["single_active"].yes(), s["exclusive"].yes()
	src.AckWait, src.SessionTimeout = s["ack_wait"].time(500*time.Millisecond), s["session_timeout"].time(time.Second)
	src.MaxAckPending, src.Prefetch, src.Credit = s["max_ack_pending"].number(1, 1_000_000), s["prefetch"].number(1, 65535), s["credit"].number(1, 1_000_000)
	src.OrderingKeyHeader, src.OrderingKeyToken = text("ordering_key_header", ""), s["ordering_key_token"].number(1, 1000)
	if s["declare"].given() {
		src.Declare = s["declare"].choice("quorum", "classic")
	}
	src.Capability = text("capability", "")
	src.BodyField, src.OrderingKeyField, src.MessageIDField = text("body_field", ""), text("ordering_key_field", ""), text("message_id_field", "")
	if src.Kind == "embedded" {
		src.Directory, src.Listen = text("directory", "sekali-broker"), text("listen", "127.0.0.1:4222")
	}
}
