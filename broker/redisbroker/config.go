package redisbroker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What the fields of SourceConfig and PublisherConfig default to.
const (
	DefaultAckWait          = 30 * time.Second
	DefaultTimeout          = 10 * time.Second
	DefaultBodyField        = "body"
	DefaultOrderingKeyField = "ordering-key"
	DefaultIDField          = "message-id"
)

const (
	// minAckWait keeps a round trip and the margin well inside a delivery's time.
	minAckWait = 500 * time.Millisecond
	// longestPoll is how long one question for new entries may wait on the
	// server. What is given back wakes nobody there, so that it is also how long
	// that may lie.
	longestPoll = 250 * time.Millisecond
)

// SourceConfig says which messages a Source receives, and how.
type SourceConfig struct {
	// Stream is the key of the stream. It is made, empty, if it is not there.
	// Required.
	Stream string
	// Group is the consumer group. Sources of one group compete. It is made at
	// the first Receive if it is not there; if it vanishes later, by FLUSHALL
	// or a failover say, it is made again at the stream's first entry, whatever
	// OnlyNew says, so that nothing is passed over. Required.
	Group string
	// OnlyNew has a group that does not exist yet begin with entries that are
	// added after its creation. Defaults to false: with the first entry that
	// the stream holds.
	OnlyNew bool
	// AckWait is how long a delivery may stay unsettled before it is given to
	// somebody else. At least 500 ms; the same in all sources of a group.
	// Defaults to 30 s.
	AckWait time.Duration
	// BodyField is the field that is the message's body. Defaults to "body".
	BodyField string
	// OrderingKeyField is the field that is the message's ordering key.
	// Defaults to "ordering-key".
	OrderingKeyField string
	// IDField is the field that is the message's id. Defaults to "message-id".
	IDField string
	// Timeout bounds one question to the server, as far as go-redis obeys
	// contexts (redis.Options.ContextTimeoutEnabled). Defaults to 10 s.
	Timeout time.Duration
}

// PublisherConfig says how a Publisher writes entries. Its zero value will do.
type PublisherConfig struct {
	// BodyField, OrderingKeyField and IDField are as in SourceConfig.
	BodyField, OrderingKeyField, IDField string
	// MaxLen trims a stream, at each entry added, to about so many ("~").
	// Trimming takes away what was not processed yet. Defaults to 0: no
	// trimming.
	MaxLen int64
	// OnlyExisting refuses to publish to a stream that is not there, with
	// ErrNoStream. Defaults to false: Redis makes the stream.
	OnlyExisting bool
	// Replicas is how many replicas must say that they have a message before
	// it counts as confirmed (WAIT). That is no guarantee: a failover may choose
	// another one. It cannot be had from a cluster client. Defaults to 0.
	Replicas int
	// Timeout bounds one question to the server, as SourceConfig.Timeout does.
	// Defaults to 10 s.
	Timeout time.Duration
}

// fields are the names of the fields that are no headers.
type fields struct{ body, key, id string }

func (f fields) withDefaults() fields {
	return fields{orDefault(f.body, DefaultBodyField), orDefault(f.key, DefaultOrderingKeyField), orDefault(f.id, DefaultIDField)}
}

func (f fields) distinct() bool { return f.body != f.key && f.key != f.id && f.id != f.body }

func (f fields) has(name string) bool { return slices.Contains([]string{f.body, f.key, f.id}, name) }

// problems collects all that is wrong with a config.
type problems []error

func (p *problems) add(is bool, format string, args ...any) {
	if is {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

// err joins the texts with semicolons, where errors.Join would put each on a
// line.
func (p problems) err() error {
	texts := make([]string, len(p))
	for i := range p {
		texts[i] = p[i].Error()
	}
	if len(p) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

func (c SourceConfig) fields() fields {
	return fields{c.BodyField, c.OrderingKeyField, c.IDField}.withDefaults()
}

// withDefaults returns a copy with every default filled in, or an error that
// names all that is missing or contradicts itself.
func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var bad problems
	bad.add(strings.TrimSpace(c.Stream) == "", "Stream is %q: give the key of the stream to receive from", c.Stream)
	bad.add(strings.TrimSpace(c.Group) == "", "Group is %q: name the consumer group", c.Group)
	bad.add(!c.fields().distinct(), "BodyField, OrderingKeyField and IDField are not all different: give each a name of its own")
	bad.add(c.AckWait < 0 || c.Timeout < 0, "AckWait or Timeout is negative: leave it 0 for its default")
	bad.add(c.AckWait > 0 && c.AckWait < minAckWait, "AckWait is %v: make it %v at least", c.AckWait, minAckWait)
	if err := bad.err(); err != nil {
		return c, err
	}
	c.AckWait = orDefault(c.AckWait, DefaultAckWait)
	c.Timeout = orDefault(c.Timeout, DefaultTimeout)
	return c, nil
}

func (c PublisherConfig) fields() fields {
	return fields{c.BodyField, c.OrderingKeyField, c.IDField}.withDefaults()
}

func (c PublisherConfig) withDefaults(cluster bool) (PublisherConfig, error) {
	var bad problems
	bad.add(!c.fields().distinct(), "BodyField, OrderingKeyField and IDField are not all different: give each a name of its own")
	bad.add(c.MaxLen < 0 || c.Replicas < 0 || c.Timeout < 0, "MaxLen, Replicas or Timeout is negative: leave it 0 for its default")
	bad.add(cluster && c.Replicas > 0, "Replicas is set for a client of several nodes, which cannot say on whose connection it waits: leave it 0")
	if err := bad.err(); err != nil {
		return c, err
	}
	c.Timeout = orDefault(c.Timeout, DefaultTimeout)
	return c, nil
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
