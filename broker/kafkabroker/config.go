package kafkabroker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What SourceConfig's fields default to.
const (
	DefaultSessionTimeout   = 45 * time.Second
	DefaultRebalanceTimeout = time.Minute
	DefaultMaxAhead         = 10_000
)

// SourceConfig says which topics a Source receives, and how.
type SourceConfig struct {
	// Brokers to ask first, "host:9092". Required, unless URL is set.
	Brokers []string
	// URL of the brokers, as Options takes it. Required, unless Brokers are
	// set.
	URL string
	// Group is the consumer group. Its members share the partitions. Required.
	Group string
	// Topics to receive. One that is not there yet is waited for. Required.
	Topics []string
	// OnlyNew has a group that has no offset for a partition begin with what is
	// published later. Defaults to false: with the first record that is there.
	// An offset that the broker does not have any more is, either way, followed
	// by the first record that it has.
	OnlyNew bool
	// ServerSide lets the brokers assign partitions (KIP-848, Kafka 4.0 and
	// later), where the server has it; else, and by default, the members agree
	// among themselves (cooperative-sticky). SessionTimeout and
	// RebalanceTimeout are then the server's: group.consumer.session.timeout.ms.
	ServerSide bool
	// SessionTimeout is how long a member may be silent before its partitions
	// go to others. Defaults to 45 s, as Kafka's own clients do.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long a member may take to give a partition up:
	// the message in work is waited for, for three quarters of it at most.
	// Defaults to 1 min.
	RebalanceTimeout time.Duration
	// MaxAhead is how many records of a partition may be received beyond the
	// first one that has not finished. Defaults to 10,000.
	MaxAhead int
	// Options for franz-go besides, to authenticate by other means say. They
	// win over what the Source sets; leave what concerns groups, offsets and
	// callbacks to it.
	Options []kgo.Opt
}

// withDefaults returns a copy with every default filled in, or an error that
// names all that is missing or contradicts itself.
func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Brokers) == 0 && c.URL == "", "no brokers: set Brokers, such as \"localhost:9092\", or URL")
	bad(len(c.Brokers) > 0 && c.URL != "", "both Brokers and URL are set: keep one")
	bad(c.Group == "", "Group is not set: name the consumer group")
	bad(len(c.Topics) == 0, "Topics is empty: name at least one")
	for _, t := range c.Topics {
		bad(strings.TrimSpace(t) == "", "Topics has a blank one: remove it")
	}
	bad(c.SessionTimeout < 0 || c.RebalanceTimeout < 0 || c.MaxAhead < 0,
		"SessionTimeout, RebalanceTimeout or MaxAhead is negative: leave it 0 for its default")
	bad(c.ServerSide && (c.SessionTimeout > 0 || c.RebalanceTimeout > 0),
		"ServerSide leaves time-outs to the server: remove SessionTimeout and RebalanceTimeout")
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	if c.SessionTimeout == 0 {
		c.SessionTimeout = DefaultSessionTimeout
	}
	if c.RebalanceTimeout == 0 {
		c.RebalanceTimeout = max(DefaultRebalanceTimeout, c.SessionTimeout)
	}
	if c.MaxAhead == 0 {
		c.MaxAhead = DefaultMaxAhead
	}
	return c, nil
}

// connection are the options of a client that belongs to no group.
func (c SourceConfig) connection() ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.ClientID("sekali"), kgo.SeedBrokers(c.Brokers...)}
	if c.URL != "" {
		more, err := Options(c.URL)
		if err != nil {
			return nil, err
		}
		opts = append(opts[:1], more...)
	}
	return append(opts, c.Options...), nil
}

// options are those of the client without the Source's callbacks.
func (c SourceConfig) options() ([]kgo.Opt, error) {
	opts, err := c.connection()
	if err != nil {
		return nil, err
	}
	start := kgo.NewOffset().AtStart()
	if c.OnlyNew {
		start = kgo.NewOffset().AtEnd()
	}
	balancers := []kgo.GroupBalancer{kgo.CooperativeStickyBalancer()}
	if c.ServerSide {
		// The server's uniform assignor; the cooperative one is for servers
		// that know no such groups.
		balancers = []kgo.GroupBalancer{kgo.StickyBalancer()}
		opts = append(opts, kgo.ServerSideBalancer())
	}
	opts = append(opts,
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Topics...),
		kgo.Balancers(balancers...),
		kgo.SessionTimeout(c.SessionTimeout),
		kgo.HeartbeatInterval(min(3*time.Second, c.SessionTimeout/3)),
		kgo.RebalanceTimeout(c.RebalanceTimeout),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Markers of transactions take offsets too: a lag that never falls to
		// zero would alarm somebody.
		kgo.KeepControlRecords(),
		kgo.ConsumeStartOffset(start),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// A fetch of idle partitions alone keeps others of its broker waiting
		// for so long, those that were just assigned among them.
		kgo.FetchMaxWait(500*time.Millisecond),
		// A topic that is not there yet, or again, is noticed soon.
		kgo.MetadataMinAge(250*time.Millisecond),
	)
	return append(opts, c.Options...), nil
}
