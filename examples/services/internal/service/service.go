// Package service has what the examples share: they receive from a JetStream
// stream, and stop when they are told to.
package service

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker/natsbroker"
)

// Main runs run until the process is told to stop. database is DATABASE_URL.
func Main(run func(ctx context.Context, database string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Consume runs a consumer on the stream of a name, at NATS_URL. The stream is
// waited for, if it is not there yet.
func Consume[Tx any](ctx context.Context, stream string, cfg sekali.Config[Tx]) error {
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = "nats://127.0.0.1:4222"
	}
	source, err := natsbroker.OpenSource(url, natsbroker.SourceConfig{Stream: stream, Consumer: cfg.Name})
	if err != nil {
		return err
	}
	cfg.Source = source
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}
