package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
)

const (
	// connectTimeout is how long a server may take to answer at all.
	connectTimeout = 5 * time.Second
	// ackWait is short, so that what a killed consumer had in hand comes back
	// soon. A consumer that lives asks for more time.
	ackWait = 2 * time.Second
	// allOrders is the end of the subject of a demo's orders, after the
	// stream's name.
	allOrders = ".orders"
)

// natsFeed is a JetStream stream of the demo's own.
type natsFeed struct {
	url, stream string
	embedded    *server.Server // nil: a server that was given
	files       string         // of the embedded server
	nc          *nats.Conn
	js          jetstream.JetStream
}

func checkNATS(raw string) error {
	if u, err := url.Parse(raw); err != nil || u.Host == "" {
		return fmt.Errorf("broker URL %q: it names no host: use nats://host:4222", natsbroker.RedactURL(raw))
	}
	return nil
}

func natsSource(t task) (broker.Source, error) {
	return natsbroker.OpenSource(t.Broker, natsbroker.SourceConfig{
		Stream: strings.TrimSuffix(t.Topic, allOrders), Consumer: t.Service, AckWait: ackWait,
	}, nats.Timeout(connectTimeout))
}

func openNATS(ctx context.Context, url, run string) (feed, error) {
	return (&natsFeed{url: url}).makeStream(ctx, run)
}

// openEmbedded starts an embedded NATS server with JetStream on files.
func openEmbedded(ctx context.Context, run, folder string) (feed, error) {
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
	f := &natsFeed{url: embedded.ClientURL(), embedded: embedded, files: filepath.Join(folder, "jetstream")}
	return f.makeStream(ctx, run)
}

// makeStream makes the stream, or closes the feed.
func (f *natsFeed) makeStream(ctx context.Context, run string) (_ feed, err error) {
	f.stream = "SEKALI_DEMO_" + run
	defer func() {
		if err != nil {
			tidying, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
			defer done()
			_ = f.close(tidying, false)
		}
	}()
	if f.nc, err = natsbroker.Connect(f.url, nats.Timeout(connectTimeout)); err != nil {
		return nil, err
	}
	if f.js, err = jetstream.New(f.nc); err != nil {
		return nil, fmt.Errorf("use JetStream at %s: %w", natsbroker.RedactURL(f.url), err)
	}
	_, err = f.js.CreateStream(ctx, jetstream.StreamConfig{Name: f.stream, Subjects: []string{f.stream + allOrders}, Storage: jetstream.FileStorage})
	if err != nil {
		return nil, fmt.Errorf("make the stream %s at %s: %w: is JetStream on, and is there space?", f.stream, natsbroker.RedactURL(f.url), err)
	}
	return f, nil
}

func (f *natsFeed) address() (url, topic string) { return f.url, f.stream + allOrders }

func (f *natsFeed) publisher() (broker.Publisher, error) { return natsbroker.NewPublisher(f.js), nil }

func (f *natsFeed) drained(ctx context.Context, consumer string) (bool, error) {
	c, err := f.js.Consumer(ctx, f.stream, consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the state of consumer %s: %w", consumer, err)
	}
	info := c.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, nil
}

// bury has nothing to do: the server counts each message's ackWait itself.
func (f *natsFeed) bury(context.Context, string) {}

func (f *natsFeed) String() string {
	if f.embedded != nil {
		return "NATS JetStream, embedded"
	}
	return natsbroker.RedactURL(f.url)
}

func (f *natsFeed) kept() string {
	if f.embedded != nil {
		return "the stream " + f.stream + ": nats-server -js -sd " + f.files
	}
	return "the stream " + f.stream
}

func (f *natsFeed) close(ctx context.Context, keep bool) (err error) {
	// What an embedded server has in its folder goes with the folder.
	if f.js != nil && !keep && f.embedded == nil {
		err = f.js.DeleteStream(ctx, f.stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			err = nil
		}
	}
	if f.nc != nil {
		f.nc.Close()
	}
	if f.embedded != nil {
		f.embedded.Shutdown()
		f.embedded.WaitForShutdown()
	}
	if err != nil {
		return fmt.Errorf("delete the stream %s at %s: %w: delete it by hand", f.stream, f, err)
	}
	return nil
}
