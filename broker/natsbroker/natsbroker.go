// Package natsbroker receives from and publishes to NATS JetStream, through
// nats.go. It works with nats-server from 2.9.
//
// # How a message travels
//
// Message.Topic is the subject. Message.ID is the Nats-Msg-Id header if the
// message has one, else "<stream>@<time of storing>/<sequence>", the time in
// nanoseconds since 1970. The messages of a stream that was deleted and made
// again, which counts from 1 again, are thereby new ones, also to a source that
// did not notice.
// Headers keep every value of a name in order; different names come in
// alphabetical order, for NATS does not keep theirs. NATS ends a header at the
// line's end and drops blanks before its value: a Publisher refuses what would
// not arrive as it was, it never alters it. NATS has no null: a body that is
// empty or nil arrives as an empty one, []byte{}. An ordering key has no place
// of its own: see SourceConfig.OrderingKeyHeader and WithOrderingKeyHeader.
//
// # Deliveries and their time
//
// A Source asks for messages only when somebody is in Receive, and for no more
// than Receive may return. A delivery's time (AckWait) is counted
// from when the messages were asked for, which is before the server sent them:
// a process that was frozen for a minute sees that its deliveries are over.
//
// Acknowledgements are pipelined, and the last one of a Settle is confirmed by
// the server, which handles them in order. If the connection was replaced
// meanwhile all are sent again. An acknowledgement counts however late it
// comes and on whichever connection: the effect is committed, so that there is
// nothing to gain from having the message come again.
package natsbroker

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Connect connects to the servers of a URL ("nats://user:password@host:4222",
// or several with commas between them) and reconnects for ever. Options come
// after these defaults and win over them. Its errors never show a password.
func Connect(urls string, options ...nats.Option) (*nats.Conn, error) {
	for one := range strings.SplitSeq(urls, ",") {
		// The parser's own error quotes what it could not parse.
		if _, err := url.Parse(strings.TrimSpace(one)); err != nil || strings.TrimSpace(one) == "" {
			return nil, fmt.Errorf("connect to NATS: %s is not a URL: write nats://host:4222", RedactURL(urls))
		}
	}
	defaults := []nats.Option{
		nats.Name("sekali"),
		nats.MaxReconnects(-1),
		// What goes wrong is seen by whoever receives or publishes.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
	nc, err := nats.Connect(urls, append(defaults, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w: is the server running, and are address and credentials right?", RedactURL(urls), err)
	}
	return nc, nil
}

// OpenSource connects and returns a Source that closes the connection when it
// is closed.
func OpenSource(urls string, cfg SourceConfig, options ...nats.Option) (*Source, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("new NATS source: %w", err)
	}
	js, err := connect(urls, options)
	if err != nil {
		return nil, err
	}
	s, err := NewSource(js, cfg)
	if err != nil {
		js.Conn().Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// OpenPublisher connects and returns a Publisher that closes the connection
// when it is closed.
func OpenPublisher(urls string, options ...PublisherOption) (*Publisher, error) {
	js, err := connect(urls, nil)
	if err != nil {
		return nil, err
	}
	p := NewPublisher(js, options...)
	p.owned = true
	return p, nil
}

func connect(urls string, options []nats.Option) (jetstream.JetStream, error) {
	nc, err := Connect(urls, options...)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("use JetStream at %s: %w", RedactURL(urls), err)
	}
	return js, nil
}

// RedactURL returns a URL, or several with commas between them, without
// passwords and tokens, for logs and errors. What cannot be parsed is not shown
// at all.
func RedactURL(urls string) string {
	parts := strings.Split(urls, ",")
	for i, one := range parts {
		u, err := url.Parse(strings.TrimSpace(one))
		switch {
		case err != nil || u.Host == "" && strings.Contains(one, "@"):
			parts[i] = "(hidden)"
		case u.User == nil && u.RawQuery == "":
			parts[i] = strings.TrimSpace(one)
		default:
			u.RawQuery = ""
			if _, has := u.User.Password(); has {
				u.User = url.UserPassword(u.User.Username(), "xxxxx")
			} else if u.User != nil {
				u.User = url.User("xxxxx") // a lone user name is a token to NATS
			}
			parts[i] = u.String()
		}
	}
	return strings.Join(parts, ",")
}
