package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker/natsbroker"
	"github.com/sekali/sekali/internal/run/config"
)

// embeddedTimeout bounds the start of the embedded broker.
const embeddedTimeout = 20 * time.Second

// embedded is a NATS server with JetStream in this process. What it has
// confirmed survives a loss of power.
type embedded struct {
	server *server.Server
	unlock func()
}

// startEmbedded starts the server on files, and makes the stream.
func startEmbedded(ctx context.Context, src config.Source) (_ *embedded, err error) {
	host, portText, err := net.SplitHostPort(src.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", src.Listen, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: the port is no number", src.Listen)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	// The server logs a port that is taken, and goes on without.
	if probe, err := net.Listen("tcp", src.Listen); err != nil {
		return nil, fmt.Errorf("start the embedded broker on %s: %w: is another one running?", src.Listen, err)
	} else if err := probe.Close(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(src.Directory, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the embedded broker: %w", err)
	}
	unlock, err := lock(ctx, src.Directory)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "sekali-run", Host: host, Port: port, NoSigs: true, JetStream: true, SyncAlways: true,
		StoreDir: src.Directory, LogFile: filepath.Join(src.Directory, "nats.log"),
	})
	if err != nil {
		unlock()
		return nil, fmt.Errorf("start the embedded broker in %s: %w", src.Directory, err)
	}
	s.ConfigureLogger()
	s.Start()
	e := &embedded{s, unlock}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if !s.ReadyForConnections(embeddedTimeout) {
		return nil, fmt.Errorf("start the embedded broker in %s: it is not ready after %v: see nats.log there", src.Directory, embeddedTimeout)
	}
	return e, e.makeStream(ctx, src)
}

// makeStream makes the stream, or gives it the subjects that it lacks.
func (e *embedded) makeStream(ctx context.Context, src config.Source) error {
	nc, err := natsbroker.Connect(e.url())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, embeddedTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, src.Stream.Value)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: src.Stream.Value, Subjects: src.Subjects, Storage: jetstream.FileStorage})
	case err == nil && !slices.Equal(stream.CachedInfo().Config.Subjects, src.Subjects):
		cfg := stream.CachedInfo().Config
		cfg.Subjects = src.Subjects
		_, err = js.UpdateStream(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("make the stream %s of the embedded broker: %w: are stream and subjects right?", src.Stream.Value, err)
	}
	return nil
}

func (e *embedded) url() string { return e.server.ClientURL() }

func (e *embedded) close() {
	if e == nil {
		return
	}
	e.server.Shutdown()
	e.server.WaitForShutdown()
	e.unlock()
}

// lock keeps a folder for one broker: two would write the same files, and lose
// what they confirmed. The lock is that of a database which nobody writes: it is
// there on every system, and goes with its process.
func lock(ctx context.Context, directory string) (unlock func(), err error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.Join(directory, "lock")}).EscapedPath()+"?_txlock=exclusive")
	if err != nil {
		return nil, fmt.Errorf("lock the folder %s of the embedded broker: %w", directory, err)
	}
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("lock the folder %s of the embedded broker: %w: does another broker run on it?", directory, err)
	}
	return func() {
		_ = tx.Rollback()
		_ = db.Close()
	}, nil
}
