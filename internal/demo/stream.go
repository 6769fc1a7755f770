package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
)

// stream is the demo's broker: a JetStream stream of its own, on an embedded
// server unless one is given.
type stream struct {
	url, name string
	embedded  *server.Server
	nc        *nats.Conn
	js        jetstream.JetStream
}

func openStream(ctx context.Context, url, run, folder string) (_ *stream, err error) {
	s := &stream{url: url, name: "SEKALI_DEMO_" + run}
	defer func() {
		if err != nil {
			s.close(context.WithoutCancel(ctx), false)
		}
	}()
	if url == "" {
		if s.embedded, err = startServer(folder); err != nil {
			return nil, err
		}
		s.url = s.embedded.ClientURL()
	}
	if s.nc, err = natsbroker.Connect(s.url, nats.Timeout(5*time.Second)); err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		return nil, fmt.Errorf("use JetStream at %s: %w", natsbroker.RedactURL(s.url), err)
	}
	_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: s.name, Subjects: []string{s.subject()}, Storage: jetstream.FileStorage})
	if err != nil {
		return nil, fmt.Errorf("make the stream %s at %s: %w: is JetStream on, and is there space?", s.name, natsbroker.RedactURL(s.url), err)
	}
	return s, nil
}

// startServer starts an embedded NATS server with JetStream on files.
func startServer(folder string) (*server.Server, error) {
	embedded, err := server.NewServer(&server.Options{
		ServerName: "sekali-demo", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		JetStream: true, StoreDir: filepath.Join(folder, "jetstream"), LogFile: filepath.Join(folder, "nats.log"),
	})
	if err != nil {
		return nil, fmt.Errorf("start the embedded NATS server in %s: %w", folder, err)
	}
	embedded.ConfigureLogger()
	go embedded.Start()
	if !embedded.ReadyForConnections(10 * time.Second) {
		embedded.Shutdown()
		return nil, fmt.Errorf("start the embedded NATS server in %s: it is not ready after 10 s: see nats.log there", folder)
	}
	return embedded, nil
}

func (s *stream) subject() string { return s.name + ".orders" }

// publish sends the orders as planned, and tells of each batch.
func (s *stream) publish(ctx context.Context, p plan, sent func(n int)) error {
	const batch = 500
	publisher := natsbroker.NewPublisher(s.js)
	for from := 0; from < len(p.sending); from += batch {
		var messages []broker.Message
		for _, i := range p.sending[from:min(from+batch, len(p.sending))] {
			m, err := p.orders[i].message(s.subject())
			if err != nil {
				return err
			}
			messages = append(messages, m)
		}
		if err := publisher.Publish(ctx, messages...); err != nil {
			return fmt.Errorf("publish orders: %w", err)
		}
		sent(len(messages))
	}
	return publisher.Close(ctx)
}

// drained tells whether a consumer has taken and settled everything.
func (s *stream) drained(ctx context.Context, consumer string) (bool, error) {
	c, err := s.js.Consumer(ctx, s.name, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the state of consumer %s: %w", consumer, err)
	}
	info := c.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, nil
}

// close deletes the stream, unless it is kept, and disconnects.
func (s *stream) close(ctx context.Context, keep bool) {
	if s.js != nil && !keep {
		_ = s.js.DeleteStream(ctx, s.name)
	}
	if s.nc != nil {
		s.nc.Close()
	}
	if s.embedded != nil {
		s.embedded.Shutdown()
		s.embedded.WaitForShutdown()
	}
}
