package rabbitbroker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// handshakeTime bounds connecting, where the URL does not.
	handshakeTime = 30 * time.Second
	// partingTime bounds a polite end of a channel or a connection.
	partingTime = 5 * time.Second
)

// link is a connection. Calls of the client library do not end with a context:
// to end one that does not return, the link is cut under it.
type link struct {
	conn *amqp.Connection
	raw  net.Conn
	dead atomic.Bool // cut; conn may not have noticed yet

	mu      sync.Mutex
	blocked chan struct{} // closed when the server takes messages again; nil: it does
	reason  string        // why it does not

	watching sync.WaitGroup
}

// dial connects.
func dial(ctx context.Context, raw string, cfg amqp.Config) (*link, error) {
	target, err := clientURL(raw)
	if err != nil {
		return nil, err
	}
	l := &link{}
	stop := func() bool { return true }
	cfg = settings(ctx, cfg)
	dial := cfg.Dial
	cfg.Dial = func(network, addr string) (net.Conn, error) {
		c, err := dial(network, addr)
		if err != nil {
			return nil, err
		}
		l.raw = c
		stop = context.AfterFunc(ctx, l.cut)
		return c, c.SetDeadline(time.Now().Add(handshakeTime)) // the library takes it back
	}
	l.conn, err = amqp.DialConfig(target, cfg)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if l.raw != nil {
			l.cut()
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w: is the server running, and are address, user, password and vhost right?", RedactURL(raw), err)
	}
	changes := l.conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	l.watching.Go(func() {
		for c := range changes {
			l.setBlocked(c)
		}
		l.setBlocked(amqp.Blocking{}) // whoever waits is to find it closed
	})
	return l, nil
}

// settings returns a copy with a name and a way to dial, into which the
// library may write.
func settings(ctx context.Context, cfg amqp.Config) amqp.Config {
	cfg.Properties = maps.Clone(cfg.Properties)
	if cfg.Properties == nil {
		cfg.Properties = amqp.NewConnectionProperties()
		cfg.Properties.SetClientConnectionName("sekali")
	}
	if cfg.TLSClientConfig != nil {
		cfg.TLSClientConfig = cfg.TLSClientConfig.Clone()
	}
	if cfg.Dial == nil {
		cfg.Dial = func(network, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: handshakeTime}).DialContext(ctx, network, addr)
		}
	}
	return cfg
}

func (l *link) setBlocked(b amqp.Blocking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = b.Reason
	switch {
	case b.Active && l.blocked == nil:
		l.blocked = make(chan struct{})
	case !b.Active && l.blocked != nil:
		close(l.blocked)
		l.blocked = nil
	}
}

// flowing returns nil if the server takes messages, else what is closed when
// it does again, and why it does not.
func (l *link) flowing() (again <-chan struct{}, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked == nil {
		return nil, ""
	}
	return l.blocked, l.reason
}

// cut breaks the connection.
func (l *link) cut() {
	l.dead.Store(true)
	_ = l.raw.Close()
}

func (l *link) alive() bool { return !l.dead.Load() && !l.conn.IsClosed() }

// guard cuts the link if ctx ends, and grace passes, before release is called.
func (l *link) guard(ctx context.Context, grace time.Duration) (release func()) {
	released := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer cutting.Done()
		patience := time.NewTimer(grace)
		defer patience.Stop()
		select {
		case <-released:
		case <-patience.C:
			l.cut()
		}
	})
	return func() {
		close(released)
		if !stop() {
			cutting.Wait()
		}
	}
}

// channel opens a channel.
func (l *link) channel(ctx context.Context) (*amqp.Channel, error) {
	defer l.guard(ctx, 0)()
	ch, err := l.conn.Channel()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	return ch, nil
}

// aside does something on a channel of its own: what is refused closes it.
func (l *link) aside(ctx context.Context, do func(*amqp.Channel) error) error {
	ch, err := l.channel(ctx)
	if err != nil {
		return err
	}
	defer l.guard(ctx, 0)()
	err = do(ch)
	if e := ch.Close(); err == nil && e != nil {
		err = fmt.Errorf("close the channel: %w", e)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// leave closes a channel, within partingTime.
func (l *link) leave(ch *amqp.Channel) {
	ctx, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	defer l.guard(ctx, 0)()
	_ = ch.Close()
}

// close closes the connection, by cutting it if ctx ends or partingTime passes
// first. What is unsettled goes back either way.
func (l *link) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	release := l.guard(ctx, 0)
	until, _ := ctx.Deadline()
	_ = l.conn.CloseDeadline(until)
	release()
	l.cut()
	l.watching.Wait()
}

// Connect connects to the server at a URL (see CheckURL), for what a Source and
// a Publisher do not do, such as making exchanges. It neither shows a password
// in its errors nor reconnects.
func Connect(ctx context.Context, url string, client amqp.Config) (*amqp.Connection, error) {
	l, err := dial(ctx, url, client)
	if err != nil {
		return nil, err
	}
	return l.conn, nil // its end ends the link
}
