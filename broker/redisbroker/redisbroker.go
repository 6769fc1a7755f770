// Package redisbroker receives from and publishes to Redis streams, through
// go-redis. It needs Redis 6.2, alone, with sentinels or as a cluster (a stream
// is one key, so that it lives on one node), and is tested with 7.0.
//
// # How a message travels
//
// Message.Topic is the stream's key. An entry's fields are the message: "body"
// is Message.Body, "ordering-key" is Message.OrderingKey, "message-id" is
// Message.ID, and all others are headers, in their order, repeated names
// included. The three names can be configured, for entries of producers that
// know nothing of Sekali; a Publisher refuses headers that bear one of them.
// Names and values are any bytes. An entry without a body field has a nil body.
//
// Without the field "message-id", or where it is empty, Message.ID is
// "<stream>/<entry id>". Redis knows no incarnation of a stream, but its entry
// ids begin with the time in milliseconds, so that those of a stream that was
// deleted and made again are new ones, with three exceptions: a producer that
// gives explicit ids to XADD, a server's clock that was set back across the
// deletion, and a stream that is deleted and added to within one millisecond.
// Where one of them can be, have the producer write a message id: the message
// would be taken for the one that had the id before.
// A stream that was renamed has new ids too.
//
// # Deliveries and their time
//
// A Source is a consumer of a group, under a name of its own that no other
// Source has ("sekali-<host>-<process>-<random>"). A delivery's time (AckWait)
// is counted from before it was asked for. Entries that are unsettled for
// longer, because a process died say, are claimed by whichever Source of the
// group looks next (XAUTOCLAIM); each does so several times a second. All
// Sources of a group should have the same AckWait. It is the server's clock that
// counts: where that is set forward, or after a failover to one that is ahead,
// entries in hand may be delivered again early. Names of dead consumers are
// removed once nothing is pending under them.
//
// What is given back (Retry, Close) is handed over to a consumer named
// "sekali-released" that nobody is, with an idle time that lets the next one
// claim it. Nothing is taken from whoever has claimed it meanwhile. An
// acknowledgement counts however late it comes: the effect is committed.
//
// # What Redis does not promise
//
// A group has no order: entries go to whoever asks, and those that come again
// come later than their successors. There are no lanes.
//
// Trimming a stream (XADD MAXLEN, XTRIM) or deleting from it (XDEL) takes
// entries away whether they were processed or not. Those that were delivered
// before are noticed: Receive returns ErrTrimmed, once, with their ids. Those
// that were never delivered are not. A Source neither trims nor deletes;
// whoever does must stay behind the group's oldest pending entry.
//
// Redis confirms before it has written to disk (unless appendfsync is always)
// and before its replicas have it. After a crash or a failover entries that
// were confirmed may be gone, and entries that were acknowledged may come
// again. The latter is absorbed as every duplicate is, the former is loss, and
// PublisherConfig.Replicas makes it rarer, not impossible.
package redisbroker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// OpenSource makes a client for a URL, as Options takes it, and returns a
// Source that closes the client when it is closed. It does no I/O.
func OpenSource(url string, cfg SourceConfig) (*Source, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("new Redis source: %w", err)
	}
	opts, err := Options(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(opts)
	s, err := NewSource(client, cfg)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// OpenPublisher makes a client for a URL, as Options takes it, and returns a
// Publisher that closes the client when it is closed. It does no I/O.
func OpenPublisher(url string, cfg PublisherConfig) (*Publisher, error) {
	opts, err := Options(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(opts)
	p, err := NewPublisher(client, cfg)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	p.owned = true
	return p, nil
}

// Options returns go-redis's options for a URL: "redis://user:password@host:6379/0",
// or "rediss://…" with TLS, with go-redis's own parameters. For sentinels or a
// cluster make a client by NewFailoverClient or NewClusterClient and hand it
// to NewSource. Errors never show a password. (go-redis writes a log of its own
// to standard error, one for the whole program: redis.SetLogger changes that.)
func Options(raw string) (*redis.Options, error) {
	wrong := func(what string) error {
		return fmt.Errorf("broker URL %q %s: use redis://user:password@host:6379/0, or rediss:// with TLS", RedactURL(raw), what)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil: // the parser's own error quotes what it could not parse
		return nil, wrong("is not a URL")
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return nil, wrong("does not begin with redis://")
	case u.Hostname() == "":
		return nil, wrong("names no host")
	case strings.Contains(u.Host, ","):
		return nil, wrong("names several hosts")
	}
	opts, err := redis.ParseURL(raw)
	if err != nil {
		return nil, wrong("has a path that is not the number of a database, or a parameter that go-redis does not know")
	}
	opts.ClientName = orDefault(opts.ClientName, "sekali")
	// A context's deadline counts on the wire too.
	opts.ContextTimeoutEnabled = true
	// No questions to the server about maintenance of Redis's own cloud.
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opts, nil
}

// RedactURL returns a URL without its password and parameters, for logs and
// errors. What cannot be parsed is not shown at all.
func RedactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" && strings.Contains(raw, "@") {
		return "(hidden)"
	}
	if u.User == nil && u.RawQuery == "" {
		return raw
	}
	u.RawQuery = ""
	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), "xxxxx")
	}
	return u.String()
}

// once is a command that go-redis does not send again when its answer is lost:
// that would read, or publish, twice.
type once struct{ *redis.Cmd }

// NoRetry tells go-redis so.
func (once) NoRetry() bool { return true }

// isReply tells whether an error is the server's answer, so that the command
// arrived and had no effect, or none that we know not of.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// noGroup tells that the stream or the group is not there. Servers before 7
// put an error in a script into a text of their own.
func noGroup(err error) bool {
	return isReply(err) && (strings.Contains(err.Error(), "NOGROUP") || strings.HasPrefix(err.Error(), "UNBLOCKED"))
}
