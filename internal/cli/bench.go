package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sekali/sekali/bench"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/demo"
)

func (a *app) bench() *cobra.Command {
	var quick, contention, file bool
	var kept, rounds int
	var each, roundTrip time.Duration
	c := &cobra.Command{
		Use: "bench", Args: cobra.NoArgs,
		Short: "Measure Sekali against the pattern written by hand, on your database",
		Long: `Measures, side by side, the idempotent consumer as people write it by hand
(BEGIN, INSERT the key, UPDATE, COMMIT), Sekali's ways, and the limit of the same
SQL in batches. It works in a schema, database or file of its own and drops it
afterwards. Ratios within one report can be trusted; absolute figures are this
machine's, at this moment.

A database that may lose commits is refused: its figures compare nothing.`,
	}
	f := c.Flags()
	f.BoolVar(&quick, "quick", false, "only the cases that tell most, in less than a minute")
	f.BoolVar(&contention, "contention", false, "batches that fight over 50 rows, each case 10 s long unless --each says otherwise")
	f.BoolVar(&file, "run", false, "sekali run against Go code with Handle that does the same, in half a minute")
	f.IntVar(&kept, "kept", 0, "measure with so many rows in processed_messages beforehand, and without")
	f.DurationVar(&roundTrip, "round-trip", 0, "have the database so far away, as if a network were between; 0: as it is")
	f.IntVar(&rounds, "rounds", 7, "how often each case is measured, in turns")
	f.DurationVar(&each, "each", time.Second, "how long each case is measured in each round")
	a.databaseFlag(c)
	a.outputFlag(c)
	c.AddCommand(a.benchOutbox())
	return a.command(c, func(ctx context.Context, _ []string) error {
		switch {
		case rounds < 1 || rounds > 1000:
			return usagef("--rounds %d: use 1 to 1000", rounds)
		case each < 10*time.Millisecond || each > time.Hour:
			return usagef("--each %v: use 10ms to 1h", each)
		case roundTrip < 0 || roundTrip > time.Second:
			return usagef("--round-trip %v: use 0 to 1s", roundTrip)
		case kept < 0 || kept > 1_000_000_000:
			return usagef("--kept %d: use 0 to 1000000000", kept)
		case quick && kept > 0, quick && contention, contention && kept > 0, file && (quick || contention || kept > 0):
			return usagef("--quick, --contention, --run and --kept exclude each other: keep one")
		}
		url, err := a.databaseURL()
		if err != nil {
			return err
		}
		kind, err := dburl.KindOf(url)
		if err != nil {
			return usageError{err}
		}
		cfg := bench.Config{Database: url, Cases: bench.Full(kind), Rounds: rounds, Each: each, RoundTrip: roundTrip}
		switch {
		case quick:
			cfg.Cases = bench.Quick(kind)
			if !f.Changed("rounds") && !f.Changed("each") {
				cfg.Rounds, cfg.Each = 7, 400*time.Millisecond
			}
		case file:
			cfg.Cases = bench.Runs(kind)
		case contention:
			cfg.Cases = bench.Hot(kind)
			if !f.Changed("each") {
				cfg.Each = 10 * time.Second
			}
			if len(cfg.Cases) == 0 {
				return usagef("--contention says nothing of SQLite, which has one writer at a time")
			}
		case kept > 0:
			cfg.Cases = bench.Kept(kind, kept)
		}
		progress, finish := a.bar("cases")
		cfg.Progress = progress
		report, err := bench.Measure(ctx, cfg)
		finish()
		if err != nil {
			return err
		}
		if a.output == "json" {
			return writeJSON(a.stdout, report)
		}
		return report.WriteTable(a.stdout)
	})
}

func (a *app) benchOutbox() *cobra.Command {
	var broker string
	var cfg bench.OutboxConfig
	c := &cobra.Command{
		Use: "outbox", Args: cobra.NoArgs,
		Short: "Measure the outbox's relay against publishing and marking row by row",
		Long: `Measures, side by side, events published from the outbox by a relay, row by row
as people write it by hand (publish, wait for the confirmation, mark), and what
the broker takes without a database. It works in places of its own and drops
them afterwards.`,
	}
	f := c.Flags()
	f.StringVar(&broker, "broker", "", "URL of the broker: nats://…, kafka://…, rabbitmq://…, amqp10://…, redis://… (default: an embedded NATS server)")
	f.IntVar(&cfg.Rounds, "rounds", 7, "how often each way is measured, in turns")
	f.DurationVar(&cfg.Each, "each", 2*time.Second, "how long the broker alone and row by row are measured in each round")
	f.IntVar(&cfg.Events, "events", 20_000, "how many events the relay publishes in each round")
	f.IntVar(&cfg.Keys, "keys", 1000, "how many ordering keys the events have; 0: none")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) (err error) {
		switch {
		case cfg.Rounds < 1 || cfg.Rounds > 1000:
			return usagef("--rounds %d: use 1 to 1000", cfg.Rounds)
		case cfg.Each < 10*time.Millisecond || cfg.Each > time.Hour:
			return usagef("--each %v: use 10ms to 1h", cfg.Each)
		case cfg.Events < 1 || cfg.Events > 10_000_000:
			return usagef("--events %d: use 1 to 10000000", cfg.Events)
		case cfg.Keys < 0:
			return usagef("--keys %d: use 0 or more", cfg.Keys)
		}
		if cfg.Database, err = a.databaseURL(); err != nil {
			return err
		}
		if broker != "" {
			if err := demo.CheckBroker(broker); err != nil {
				return usageError{err}
			}
		}
		place, err := demo.MakePlace(ctx, broker)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, place.Close(context.WithoutCancel(ctx))) }()
		cfg.Publisher, cfg.Topic = place.Publisher, place.Topic
		progress, finish := a.bar("measurements")
		cfg.Progress = progress
		report, err := bench.MeasureOutbox(ctx, cfg)
		finish()
		if err != nil {
			return err
		}
		report.Broker = place.String()
		if a.output == "json" {
			return writeJSON(a.stdout, report)
		}
		return report.WriteTable(a.stdout)
	})
}
