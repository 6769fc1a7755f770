package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/spf13/cobra"
)

// relaying is what the command relay is told.
type relaying struct {
	broker   string
	onParked string
	listen   string
	cfg      outbox.RelayConfig
}

func (a *app) relay() *cobra.Command {
	var r relaying
	c := &cobra.Command{
		Use: "relay", Short: "Publish the outbox's events to a broker, until it is interrupted", Args: cobra.NoArgs,
		Long: "Publish the outbox's events to a broker, until it is interrupted (SIGINT, SIGTERM): then it finishes what\n" +
			"it has begun. Any number may run at once, beside relays in services: they share the work by lanes.\n\n" +
			"What happens is logged to stderr, in logfmt.",
	}
	c.Flags().StringVar(&r.broker, "broker", "", "URL of the broker: nats://…, kafka://…, rabbitmq://…, amqp10://…, redis://…")
	c.Flags().IntVar(&r.cfg.Batch, "batch", outbox.DefaultBatch, "how many events are read and recorded at once")
	c.Flags().DurationVar(&r.cfg.PollEvery, "poll-every", outbox.DefaultPollEvery, "how often to look when nothing wakes the relay")
	c.Flags().DurationVar(&r.cfg.Lease, "lease", outbox.DefaultLease, "how long the events of a relay that died wait for another")
	c.Flags().IntVar(&r.cfg.MaxAttempts, "max-attempts", outbox.DefaultMaxAttempts, "how often the broker may refuse an event before it is parked")
	c.Flags().StringVar(&r.onParked, "on-parked", "pass", "later events of a parked one's ordering key: pass, or hold-key")
	c.Flags().StringVar(&r.listen, "listen", "", "URL of the PostgreSQL server itself, to be woken by NOTIFY: see pgxstore.NewNotifier (default: only poll)")
	a.databaseFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) error { return a.runRelay(ctx, r) })
}

func (a *app) runRelay(ctx context.Context, r relaying) (err error) {
	cfg := r.cfg
	switch {
	case r.broker == "":
		return usagef("no broker is named: give --broker: %w", brokerurl.ErrURL)
	case cfg.Batch < 1 || cfg.MaxAttempts < 1:
		return usagef("--batch %d, --max-attempts %d: use 1 or more", cfg.Batch, cfg.MaxAttempts)
	case cfg.PollEvery <= 0 || cfg.Lease < time.Second:
		return usagef("--poll-every %v, --lease %v: use more than 0s, and 1s or more", cfg.PollEvery, cfg.Lease)
	case r.onParked == "hold-key":
		cfg.OnParked = outbox.HoldKey
	case r.onParked != "pass":
		return usagef("--on-parked %q: use pass or hold-key", r.onParked)
	}
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	defer db.Close()
	var options []outbox.Option
	if r.listen != "" {
		if db.Kind != dburl.PostgreSQL {
			return usagef("--listen is for PostgreSQL: leave it out")
		}
		notifier, err := pgxstore.NewNotifier(r.listen)
		if err != nil {
			return usagef("--listen %q: %w", dburl.Redact(r.listen), err)
		}
		defer notifier.Close()
		options = append(options, outbox.WithNotifier(notifier))
	}
	publisher, err := brokerurl.OpenPublisher(r.broker)
	if err != nil {
		return err
	}
	cfg.Publisher = publisher
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, publisher.Close(closing))
	}()
	logged := &relayLog{to: slog.New(slog.NewTextHandler(a.stderr, nil))}
	cfg.Observer = logged.observe
	relay, err := outbox.New(sqlstore.New(db.SQL, db.Dialect()), options...).NewRelay(cfg)
	if err != nil {
		return err
	}
	logged.to.Info("relay runs", "broker", brokerurl.Redact(r.broker))
	if err := relay.Run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "%s published\n", events(int(logged.sent.Load()), ""))
	return nil
}

// relayLog logs what a relay does, and counts what it published.
type relayLog struct {
	to   *slog.Logger
	sent atomic.Int64
}

func (l *relayLog) observe(e outbox.Event) {
	event := []any{"id", e.Row.ID, "message_id", plain(e.Row.MessageID), "topic", plain(e.Row.Topic), "attempts", e.Row.Attempts + 1, "error", e.Err}
	switch e.Kind {
	case outbox.Sent:
		l.sent.Add(int64(e.Count))
		l.to.Debug("published", "count", e.Count, "duration", e.Duration)
	case outbox.Retried:
		l.to.Warn("not published, will be tried again", append(event, "pause", e.Pause)...)
	case outbox.GivenUp:
		l.to.Error("parked: see sekali outbox show", event...)
	case outbox.Interrupted:
		l.to.Warn("the broker or the database is not there", "error", e.Err, "pause", e.Pause)
	case outbox.Shared:
		l.to.Info("lanes", "count", e.Count)
	}
}
