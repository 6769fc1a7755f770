package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/demo"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// childCommand is the hidden command by which the demo starts its consumers.
const childCommand = "demo-consumer"

func (a *app) demo() *cobra.Command {
	var cfg demo.Config
	c := &cobra.Command{
		Use: "demo", Args: cobra.NoArgs,
		Short: "Play a coffee shop whose consumers are killed, and count the effects",
		Long: `Publishes orders, some of them twice, to two idempotent consumers and a naive
one, each a process of its own that is killed several times between a commit
and its acknowledgement. In the end the database says what was done how often.

Without --database and --broker it needs no set-up: it uses an SQLite file and
an embedded NATS JetStream server in a temporary folder. On a given server it
makes a schema or database, and a stream or topic of its own, and removes them
afterwards.

The exit status is 0 only if the effect of both idempotent consumers is exactly
right; the naive one's damage is expected.`,
	}
	f := c.Flags()
	f.IntVar(&cfg.Orders, "orders", 10_000, "how many orders to publish")
	f.Float64Var(&cfg.Duplicates, "duplicates", 0.2, "share of the orders that the producer sends twice, 0 to 1")
	f.IntVar(&cfg.Crashes, "crashes", 5, "how often each consumer is killed")
	f.Uint64Var(&cfg.Seed, "seed", 0, "repeats a demo: the same orders, duplicates and kills, though not the same timing (default: a new one)")
	f.StringVar(&cfg.Database, "database", "", "URL of the database: postgres://…, mysql://… or sqlite:path (default: a temporary SQLite file)")
	f.StringVar(&cfg.Broker, "broker", "", "URL of the broker: nats://…, kafka://host:9092[,…], rabbitmq://host:5672, amqp10://host:5672 or redis://host:6379 (default: an embedded NATS server)")
	f.BoolVar(&cfg.Keep, "keep", false, "leave the folder, tables and the stream or topic for a look afterwards")
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) error {
		if !f.Changed("seed") {
			cfg.Seed = rand.Uint64() >> 32 // short enough to type
		}
		return a.play(ctx, cfg)
	})
}

// checkDemo refuses what cannot be played, before anything is made.
func checkDemo(cfg demo.Config) error {
	switch {
	case cfg.Orders < 1 || cfg.Orders > 10_000_000:
		return usagef("--orders %d: use 1 to 10000000", cfg.Orders)
	case !(cfg.Duplicates >= 0 && cfg.Duplicates <= 1):
		return usagef("--duplicates %v: use a share from 0 to 1", cfg.Duplicates)
	case cfg.Crashes < 0 || cfg.Crashes > 1000:
		return usagef("--crashes %d: use 0 to 1000", cfg.Crashes)
	case cfg.Crashes > cfg.Orders:
		return usagef("--crashes %d: more than --orders %d: each crash needs a message of its own", cfg.Crashes, cfg.Orders)
	}
	if cfg.Database != "" {
		if _, err := dburl.KindOf(cfg.Database); err != nil {
			return usageError{err}
		}
	}
	if cfg.Broker != "" {
		if err := demo.CheckBroker(cfg.Broker); err != nil {
			return usageError{err}
		}
	}
	return nil
}

func (a *app) play(ctx context.Context, cfg demo.Config) error {
	if err := checkDemo(cfg); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program to start it again: %w", err)
	}
	cfg.Command = []string{self, childCommand}
	progress, finish := a.bar("messages")
	cfg.Progress = progress
	report, err := demo.Play(ctx, cfg)
	finish()
	if err != nil {
		return fmt.Errorf("demo (seed %d): %w", cfg.Seed, err)
	}
	if a.output == "json" {
		err = writeJSON(a.stdout, report)
	} else {
		err = report.WriteTable(a.stdout)
	}
	if err == nil && !report.OK {
		err = errors.New("demo: the effect of an idempotent consumer is not exact: see the report")
	}
	return err
}

// bar shows a progress bar, on a terminal alone.
func (a *app) bar(of string) (progress func(done, of int), finish func()) {
	file, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(-1,
		progressbar.OptionSetWriter(file), progressbar.OptionSetDescription(of), progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionFullWidth(),
	)
	progress = func(done, of int) {
		bar.ChangeMax(of)
		_ = bar.Set(done)
	}
	return progress, func() { _ = bar.Clear() }
}

// demoChild is a consumer process of the demo.
func (a *app) demoChild() *cobra.Command {
	return a.command(&cobra.Command{Use: childCommand, Hidden: true, Args: cobra.NoArgs}, func(ctx context.Context, _ []string) error {
		if !demo.IsChild() {
			return usagef("%s is started by sekali demo alone", childCommand)
		}
		return demo.Child(ctx, a.stdin, io.Writer(a.stdout))
	})
}
