// Package amqpbroker receives from and publishes to brokers that speak AMQP
// 1.0, through Azure/go-amqp. It was tested with ActiveMQ Artemis 2.40, and
// with the AMQP 1.0 plugin of RabbitMQ 3.10.
//
// # How a message travels
//
// Message.ID is the property message-id, as a JMS client sees it in
// JMSMessageID: text as it is ("ID:…" from JMS clients); other types with
// their prefix ("ID:AMQP_ULONG:7", "ID:AMQP_UUID:…", "ID:AMQP_BINARY:0AFF"), and
// "ID:AMQP_STRING:" before text that would look like one of these. (Before text
// without "ID:" JMS puts "ID:AMQP_NO_PREFIX:"; here it stays as the producer
// wrote it.) A Publisher turns them back. Without a message-id the ID is empty:
// AMQP knows no positions.
//
// Message.Topic is the property to, else the address received from.
// Message.OrderingKey is the property group-id (JMSXGroupID), which is text.
// Headers are the application properties, by name: text and binaries are their
// bytes, numbers and booleans their decimal form, times RFC 3339, null no value
// (nil). A name cannot come twice: a Publisher refuses what does. It writes
// values that are UTF-8 as text, others as binaries.
//
// A body is the data sections, joined, or a value that is text or binary (what
// a JMS TextMessage is); other values and sequences come as JSON. No section,
// or a null value, is a nil body. A Publisher writes data. Message.PublishedAt
// is the property creation-time.
//
// # Deliveries
//
// A delivery is accepted when its effect is committed, and released when it is
// given back, which counts for nothing: how often a handler failed is the
// Consumer's to count. It is never rejected, which would have the broker decide
// what becomes of it.
//
// The broker's count (the header delivery-count, JMSXDeliveryCount less 1) is a
// hint that a process may have died of the message: it grows when a connection
// is lost with the delivery in hand. Artemis 2.40 was seen not to count every
// such loss; what it has counted stays. Brokers have limits of their own: Artemis
// moves a message to its dead letter address after max-delivery-attempts (10)
// of those. It is visible there, not lost; set the limit to -1 if only Sekali
// is to decide.
//
// Settle waits until the broker has answered to something that it was told
// after the deliveries, and it reads in order: so it has them, though it may
// still be writing them down. One such round trip serves any number. A delivery
// belongs to the link that brought it: when that is lost it settles nothing.
package amqpbroker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/Azure/go-amqp"
)

// address turns a URL into what go-amqp wants.
func address(raw string) (addr string, sasl amqp.SASLType, err error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", nil, fmt.Errorf("AMQP 1.0 URL: it cannot be read: write amqp10://user:password@host:5672")
	}
	scheme, ok := map[string]string{"amqp10": "amqp", "amqp10s": "amqps", "amqp": "amqp", "amqps": "amqps"}[u.Scheme]
	if !ok || u.Host == "" {
		return "", nil, fmt.Errorf("AMQP 1.0 URL %s: write amqp10://user:password@host:5672, or amqp10s:// for TLS", RedactURL(raw))
	}
	sasl = amqp.SASLTypeAnonymous()
	if u.User != nil {
		password, _ := u.User.Password()
		sasl = amqp.SASLTypePlain(u.User.Username(), password)
	}
	return scheme + "://" + u.Host, sasl, nil
}

// CheckURL tells what is wrong with a URL, without any I/O.
func CheckURL(raw string) error {
	_, _, err := address(raw)
	return err
}

// Connect connects to the broker of a URL: amqp10://user:password@host:5672, or
// amqp10s:// for TLS; anonymously where it names no user. Options come after
// what the URL says and win over it; nil is fine. Its errors show no password.
func Connect(ctx context.Context, raw string, options *amqp.ConnOptions) (*amqp.Conn, error) {
	addr, sasl, err := address(raw)
	if err != nil {
		return nil, err
	}
	var o amqp.ConnOptions
	if options != nil {
		o = *options
	}
	if o.SASLType == nil {
		o.SASLType = sasl
	}
	conn, err := amqp.Dial(ctx, addr, &o)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w: is the broker running, and are address, user and password right?", RedactURL(raw), err)
	}
	return conn, nil
}

// RedactURL returns a URL without its password, for logs and errors. What
// cannot be parsed is not shown at all.
func RedactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" && strings.Contains(raw, "@") {
		return "(hidden)"
	}
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), "xxxxx")
	}
	u.RawQuery = ""
	return u.String()
}

// gone tells whether an error means that a link, session or connection is of
// no use any more.
func gone(err error) bool {
	var link *amqp.LinkError
	var session *amqp.SessionError
	var conn *amqp.ConnError
	return errors.As(err, &link) || errors.As(err, &session) || errors.As(err, &conn)
}
