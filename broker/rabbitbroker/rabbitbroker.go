// Package rabbitbroker receives from and publishes to RabbitMQ by AMQP 0-9-1,
// through amqp091-go. It works with RabbitMQ from 3.10.
//
// # How a message travels
//
// Message.Topic is "queue" for the default exchange, where the routing key is
// the queue's name, and "exchange/routing key" for others. A queue whose name
// holds a slash is "/queue": the exchange before the first slash is the default
// one. In the exchange's name a slash is written %2F and a percent sign %25;
// the routing key is taken as it is.
//
// Message.ID is the message-id property. RabbitMQ has no position to make one
// of: without the property ID is empty. Message.PublishedAt is the timestamp
// property, in seconds; a Publisher sets it. AMQP has no null: a body that is
// empty or nil arrives as []byte{}. An ordering key has no place of its own:
// see SourceConfig.OrderingKeyHeader and WithOrderingKeyHeader.
//
// Headers come in alphabetical order, for a table keeps none. Their values
// become bytes so: strings and byte arrays as they are, numbers in decimal,
// booleans as true and false, timestamps by RFC 3339 in UTC, a void as nothing;
// tables and arrays as JSON, in which byte arrays that are not UTF-8 are in
// base64. A Publisher sends values that are UTF-8 as strings and others as byte
// arrays. It refuses what a table cannot hold: a name that is there twice, or
// longer than 255 bytes, and headers that together do not fit into a frame.
// Headers that RabbitMQ itself writes or obeys are no part of a message: a
// Publisher leaves out CC, BCC, x-death, x-first-death-…, x-last-death-… and
// x-delivery-count. Properties that have no place in broker.Message, such as
// content-type, arrive as headers of that name where no header has it; headers
// of these names are published as properties too: content-type,
// content-encoding, correlation-id, reply-to, type and app-id.
//
// # Deliveries
//
// Delivery tags belong to a channel, and begin at 1 on the next one. A delivery
// therefore knows its channel: once that is gone, whatever the cause, Settle
// does nothing for it and says broker.ErrLost, Delivery.Expired tells that it
// is not to be begun, and RabbitMQ delivers the message again.
//
// AMQP confirms no acknowledgement. After those of a Settle the Source asks for
// the queue, on the same channel: the server handles the methods of a channel
// in order, so that its answer tells that it has handled the acknowledgements.
//
// Delivery.Attempt is exact on quorum queues. Classic ones count nothing: there
// it is 1 for a message that comes for the first time, and 0, unknown,
// afterwards. (Copies of delayed retries are counted on both.)
//
// # What may lose messages or bring them again
//
// A quorum queue with a delivery limit (20 by default from RabbitMQ 4.0) drops
// a message that came too often, unless it has a dead letter exchange. AMQP
// does not tell a consumer what arguments a queue has: give yours a dead letter
// exchange. Where the Source declares the queue it insists on one. Every return
// counts, also that of a message which was only prefetched by a process that
// died or stopped.
//
// The server closes a channel on which a delivery stays unsettled for longer
// than consumer_timeout (30 min by default). The Source then opens another one,
// and Receive says what happened. Deliveries wait while they are prefetched,
// too: Prefetch times the time that a message takes must stay well below it.
package rabbitbroker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// parameters are those of a URL that are known, and hold no secrets.
var parameters = map[string]bool{
	"heartbeat": true, "connection_timeout": true, "channel_max": true, "auth_mechanism": true,
	"cacertfile": true, "certfile": true, "keyfile": true, "server_name_indication": true,
}

// CheckURL tells what is wrong with a server's URL, without any I/O:
//
//	rabbitmq://[user:password@]host[:5672][/vhost][?heartbeat=10&connection_timeout=30000&…]
//
// rabbitmqs:// is with TLS; amqp:// and amqps:// mean the same. The vhost
// defaults to "/". Parameters are those of
// https://www.rabbitmq.com/docs/uri-query-parameters. Its errors never show a
// password.
func CheckURL(raw string) error {
	_, err := clientURL(raw)
	return err
}

// clientURL returns the URL as the client library wants it.
func clientURL(raw string) (string, error) {
	wrong := func(why string) error {
		return fmt.Errorf("the RabbitMQ URL %s %s: write rabbitmq://host:5672", RedactURL(raw), why)
	}
	u, err := url.Parse(raw)
	if err != nil { // the parser's own error quotes what it could not parse
		return "", wrong("is not a URL")
	}
	switch u.Scheme {
	case "rabbitmq", "amqp":
		u.Scheme = "amqp"
	case "rabbitmqs", "amqps":
		u.Scheme = "amqps"
	default:
		return "", wrong("does not begin with rabbitmq:// or rabbitmqs://")
	}
	if u.Hostname() == "" {
		return "", wrong("names no host")
	}
	for name := range u.Query() {
		if !parameters[name] { // not its value, which may be a secret
			return "", wrong(fmt.Sprintf("has the parameter %q, which means nothing here", name))
		}
	}
	parsed, err := amqp.ParseURI(u.String())
	if err != nil {
		return "", wrong("cannot be used (" + strings.ReplaceAll(err.Error(), raw, "…") + ")")
	}
	for _, m := range parsed.AuthMechanism {
		if up := strings.ToUpper(m); up != "PLAIN" && up != "AMQPLAIN" && up != "EXTERNAL" {
			return "", wrong("asks for an unknown auth_mechanism, and there are plain, amqplain and external")
		}
	}
	return u.String(), nil
}

// RedactURL returns a URL without its password, and without the values of
// parameters that it does not know, which may hold another one.
func RedactURL(raw string) string {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return "…"
	}
	rest, query, has := strings.Cut(rest, "?")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user, _, secret := strings.Cut(rest[:at], ":")
		if secret {
			user += ":…"
		}
		rest = user + rest[at:]
	}
	if !has {
		return scheme + "://" + rest
	}
	if strings.Contains(query, "@") { // a password with a question mark in it
		return scheme + "://…"
	}
	var known []string
	for p := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(p, "="); !parameters[name] {
			p = "…"
		}
		known = append(known, p)
	}
	return scheme + "://" + rest + "?" + strings.Join(known, "&")
}

// oneLine joins errors with semicolons, where errors.Join would put each on a
// line.
func oneLine(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	texts := make([]string, len(errs))
	for i := range errs {
		texts[i] = errs[i].Error()
	}
	return &joined{strings.Join(texts, "; "), errors.Join(errs...)}
}

type joined struct {
	text string
	err  error
}

func (j *joined) Error() string { return j.text }
func (j *joined) Unwrap() error { return j.err }
