package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
)

var (
	// ErrNoStream is the error for a message whose stream is not there
	// (PublisherConfig.OnlyExisting).
	ErrNoStream = errors.New("the stream does not exist")
	// ErrNotReplicated is the error for a message that the server has, and that
	// too few replicas have said to have in time (PublisherConfig.Replicas).
	ErrNotReplicated = errors.New("too few replicas have it")
)

const (
	// At most so many messages, and about so many bytes, are under way in one
	// Publish.
	windowMessages = 500
	windowBytes    = 4 << 20
	// replicaWait is how long replicas may take. It is shorter than go-redis
	// waits for an answer.
	replicaWait = time.Second
)

// Publisher adds entries to streams, many at once, each confirmed by the
// server's answer. It is safe for concurrent use.
type Publisher struct {
	client redis.UniversalClient
	cfg    PublisherConfig
	names  fields
	owned  bool

	mu     sync.RWMutex // held for reading during a Publish
	closed bool
}

var _ broker.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher that publishes through client, which stays
// its owner's to close. It does no I/O.
func NewPublisher(client redis.UniversalClient, cfg PublisherConfig) (*Publisher, error) {
	several := false
	switch client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		several = true
	}
	full, err := cfg.withDefaults(several)
	if err != nil {
		return nil, fmt.Errorf("new Redis publisher: %w", err)
	}
	return &Publisher{client: client, cfg: full, names: full.fields()}, nil
}

// Publish adds messages and waits for the answers. A *broker.PublishError
// tells which ones were not confirmed: among them ErrNoStream,
// ErrNotReplicated and the server's own refusals. Nothing is sent twice, so
// that after a broken connection a message may have been added or not.
func (p *Publisher) Publish(ctx context.Context, m ...broker.Message) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return fmt.Errorf("publish to Redis: %w", broker.ErrClosed)
	}
	errs, failed := make([]error, len(m)), false
	for from := 0; from < len(m); {
		to := window(m, from)
		p.send(ctx, m[from:to], errs[from:to])
		from = to
	}
	for i, err := range errs {
		if err != nil {
			failed = true
			errs[i] = fmt.Errorf("publish message %d of %d to Redis stream %q: %w", i+1, len(m), m[i].Topic, err)
		}
	}
	if failed {
		return &broker.PublishError{Errs: errs}
	}
	return nil
}

// Close waits for what is under way, and closes the client if the Publisher
// made it. It may be called twice.
func (p *Publisher) Close(context.Context) error {
	p.mu.Lock() // no Publish is under way
	defer p.mu.Unlock()
	if !p.closed && p.owned {
		_ = p.client.Close()
	}
	p.closed = true
	return nil
}

// window is where those messages end that are sent together from one on.
func window(m []broker.Message, from int) int {
	bytes := 0
	for i := from; i < len(m); i++ {
		if i > from && (i-from == windowMessages || bytes > windowBytes) {
			return i
		}
		bytes += len(m[i].Body)
	}
	return len(m)
}

// send sends messages in one pipeline and notes what went wrong.
func (p *Publisher) send(ctx context.Context, m []broker.Message, errs []error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	pipe := p.client.Pipeline()
	adds := make([]*redis.Cmd, len(m))
	for i := range m {
		args, err := p.entryArgs(m[i])
		if err != nil {
			errs[i] = broker.Refuse(err)
			continue
		}
		cmd := redis.NewCmd(ctx, args...)
		cmd.SetFirstKeyPos(1)
		adds[i] = cmd
		_ = pipe.Process(ctx, once{cmd}) // it only puts it in line
	}
	var replicas *redis.IntCmd
	if pipe.Len() > 0 && p.cfg.Replicas > 0 {
		replicas = redis.NewIntCmd(ctx, "wait", p.cfg.Replicas, replicaWait.Milliseconds())
		_ = pipe.Process(ctx, replicas)
	}
	_, failed := pipe.Exec(ctx)
	for i, cmd := range adds {
		if cmd == nil {
			continue
		}
		errs[i] = p.outcome(cmd, failed, replicas)
	}
}

// outcome says whether an entry was confirmed.
func (p *Publisher) outcome(cmd *redis.Cmd, failed error, replicas *redis.IntCmd) error {
	err := cmd.Err()
	id, _ := cmd.Val().(string)
	switch {
	case errors.Is(err, redis.Nil):
		return broker.Refuse(fmt.Errorf("%w: make it, or leave OnlyExisting out", ErrNoStream))
	case redis.HasErrorPrefix(err, "WRONGTYPE"), redis.HasErrorPrefix(err, "NOPERM"):
		return broker.Refuse(err)
	case err != nil:
		return err
	case id == "" && failed != nil: // it was not sent
		return failed
	case id == "":
		return errReply
	case replicas == nil:
		return nil
	case replicas.Err() != nil:
		return fmt.Errorf("ask the replicas: %w", replicas.Err())
	case replicas.Val() < int64(p.cfg.Replicas):
		return fmt.Errorf("%w: %d of %d after %v", ErrNotReplicated, replicas.Val(), p.cfg.Replicas, replicaWait)
	}
	return nil
}
