package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/otelsekali"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
)

// Options are what is not in the file.
type Options struct {
	// Log is where events go. Defaults to slog.Default().
	Log *slog.Logger
	// Mounts are pages beside metrics and health.
	Mounts []Mount
	// Source is used instead of the file's, for measurements.
	Source broker.Source
	// Observer is told what happens instead of the log, for measurements.
	Observer sekali.Observer
}

// engine is a plan at work.
type engine struct {
	plan    *Plan
	options Options
	health  *health
	db      *dburl.DB

	// What serves, if the file wants it; else nil.
	mux       *http.ServeMux
	telemetry *otelsekali.Telemetry

	closers []func(context.Context) error
}

// closeTimeout bounds closing what is left at the end.
const closeTimeout = 10 * time.Second

// retryEvery is the pause between attempts to reach what is not there yet.
const retryEvery = 2 * time.Second

// Run consumes until ctx ends, then drains. It checks everything first, and
// waits for a database or broker that is not there. The error may be
// config.Problems.
func Run(ctx context.Context, p *Plan, o Options) (err error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	e := &engine{plan: p, options: o, health: newHealth()}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		for i := len(e.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, e.closers[i](closing))
		}
	}()
	if listen := p.File.HTTP.Listen; listen.Given() {
		if err := e.serve(ctx, listen); err != nil {
			return err
		}
	}
	if err := e.openDatabase(ctx); err != nil || e.db == nil {
		return err
	}
	if err := p.checkDatabase(ctx, e.db); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, e.health.stopping)()
	if e.db.Pool != nil {
		return consume(ctx, e, pgxstore.New(e.db.Pool), p.onPostgres)
	}
	return consume(ctx, e, sqlstore.New(e.db.SQL, e.db.Dialect()), p.onSQL)
}

// openDatabase opens it, and waits for it. It leaves db nil if ctx ends first.
func (e *engine) openDatabase(ctx context.Context) error {
	raw := e.plan.databaseURL()
	for {
		db, err := dburl.Open(ctx, raw, false)
		switch {
		case err == nil:
			e.db = db
			if db.Pool == nil && db.Kind != dburl.SQLite {
				db.SQL.SetMaxOpenConns(e.plan.connections())
				db.SQL.SetMaxIdleConns(e.plan.connections())
			}
			e.closers = append(e.closers, func(context.Context) error { return db.Close() })
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, dburl.ErrURL) || db == nil && e.plan.File.Kind == dburl.SQLite:
			return config.Problems{e.plan.File.Database.Problem(err.Error(), "")}
		}
		e.options.Log.Warn("sekali: the database is not there yet", "error", err, "pause", retryEvery)
		if !pause(ctx, retryEvery) {
			return nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// connections is how many the work needs at once: one for each worker, for
// redrives, statistics and the relay, and some for the ledger of effects.
func (p *Plan) connections() int {
	n := p.File.Connections
	if n > 0 {
		return n
	}
	if n = p.File.Workers; n == 0 {
		n = 4
	}
	n += 4
	if len(p.effects) > 0 {
		n += 4
	}
	return n
}

// databaseURL is the file's, with the size of pgx's pool.
func (p *Plan) databaseURL() string {
	raw := p.File.Database.Value
	u, err := url.Parse(raw)
	if err != nil || p.File.Kind != dburl.PostgreSQL || u.Host == "" {
		return raw
	}
	q := u.Query()
	if !q.Has("pool_max_conns") {
		q.Set("pool_max_conns", strconv.Itoa(p.connections()))
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// source opens where messages come from. urlOf is the embedded broker's.
func (p *Plan) source(raw string) (broker.Source, error) {
	s := p.File.Source
	sub := brokerurl.Subscription{
		Stream: s.Stream.Value, Queue: s.Queue.Value, Group: s.Group, Subjects: s.Subjects,
		OrderingKeyHeader: s.OrderingKeyHeader, OrderingKeyToken: s.OrderingKeyToken, Ordered: s.Ordered, MaxAckPending: s.MaxAckPending,
		OnlyNew: s.OnlyNew, AckWait: s.AckWait, SessionTimeout: s.SessionTimeout, ServerSide: s.ServerSide,
		Prefetch: s.Prefetch, SingleActive: s.SingleActive, DelayedRetry: s.DelayedRetry, Declare: s.Declare,
		Capability: s.Capability, Credit: s.Credit, Exclusive: s.Exclusive,
		BodyField: s.BodyField, OrderingKeyField: s.OrderingKeyField, MessageIDField: s.MessageIDField,
	}
	for _, t := range s.Topics {
		sub.Topics = append(sub.Topics, t.Value)
	}
	if s.Kind == "embedded" {
		sub.Subjects = nil // they are the stream's, and all are received
	}
	return brokerurl.OpenSource(raw, sub)
}

// settings are those of a Consumer but for its handler.
func settings[Tx any](p *Plan, source broker.Source, s store.Store[Tx]) sekali.Config[Tx] {
	f := p.File
	cfg := sekali.Config[Tx]{
		Name: f.Consumer.Value, Source: source, Store: s, Key: p.key,
		Batch: sekali.Batch{Size: f.BatchSize, MaxOpen: f.BatchMaxOpen}, Workers: f.Workers,
		MaxAttempts: f.Retries.Attempts, MaxCrashes: f.Retries.Crashes, Backoff: sekali.Backoff{Initial: f.Retries.Initial, Max: f.Retries.Max},
		DrainTimeout: f.DrainTimeout, OrderInProcessOnly: f.OrderInProcessOnly,
	}
	if p.order != nil {
		cfg.Order = p.orderOf
	}
	if p.version != nil {
		cfg.Version = p.versionOf
	}
	if f.HoldKey {
		cfg.OnBlocked = sekali.HoldKey
	}
	switch f.Fingerprint {
	case "body":
		cfg.Fingerprint = sekali.BodyFingerprint
	case "json":
		cfg.Fingerprint = sekali.JSONFingerprint
	}
	return cfg
}

// consume runs the Consumer, and the relay beside it.
func consume[Tx any](ctx context.Context, e *engine, s store.Store[Tx], handle func(*sekali.Config[Tx], *outbox.Box[Tx], *doer)) error {
	if err := e.opened(s); err != nil {
		return err
	}
	p := e.plan
	source, at := e.options.Source, p.File.Source.URL.Value
	if p.File.Source.Kind == "embedded" && source == nil {
		server, err := startEmbedded(ctx, p.File.Source)
		if err != nil {
			return err
		}
		e.closers = append(e.closers, func(context.Context) error { server.close(); return nil })
		at = server.url()
	}
	if source == nil {
		var err error
		if source, err = p.source(at); err != nil {
			return err
		}
	}
	cfg := settings(p, source, s)
	cfg.Observer = e.observer()
	if d := p.File.DeadLetters; d.Topic.Given() {
		publisher, err := e.publisher(ctx, p.brokerFor(d.URL, at))
		if err != nil || publisher == nil {
			return errors.Join(err, source.Close(ctx))
		}
		cfg.DeadLetters = deadletter.ToPublisher(publisher, d.Topic.Value)
	}
	do, err := doerFor(p, s)
	if err != nil {
		return errors.Join(err, source.Close(ctx))
	}
	defer do.close()
	box := outbox.New(s)
	handle(&cfg, box, do)
	consumer, err := sekali.NewConsumer(cfg)
	if err != nil {
		return errors.Join(err, source.Close(ctx))
	}
	return together(ctx, consumer.Run,
		func(ctx context.Context) error { return relay(ctx, e, box, at) },
		func(ctx context.Context) error { return prune(ctx, e, s, source) })
}

// observer is told what the consumer does.
func (e *engine) observer() sekali.Observer {
	first := e.options.Observer
	if first == nil {
		first = sekali.LogTo(e.options.Log)
	}
	if e.telemetry == nil {
		return first
	}
	return sekali.Observers(first, e.health, e.telemetry)
}

// deskOf is a store's.
func deskOf(s any) (admin.Admin, bool) {
	keeper, ok := store.As[admin.Keeper](s)
	if !ok {
		return admin.Admin{}, false
	}
	return keeper.Admin(), true
}

// brokerFor is the URL of a broker, where the embedded one is meant by its own.
func (p *Plan) brokerFor(t config.Text, embedded string) string {
	if t.Value == config.Embedded || t.Value == "" {
		return embedded
	}
	return t.Value
}

func doerFor[Tx any](p *Plan, s store.Store[Tx]) (*doer, error) {
	if len(p.effects) == 0 {
		return nil, nil
	}
	keeper, ok := store.As[interface{ Effects() effect.Rows }](s)
	if !ok {
		return nil, fmt.Errorf("a %T keeps no effects", s)
	}
	return newDoer(p, effect.New(keeper.Effects(), p.File.Consumer.Value, effect.Config{}))
}

// publisher opens one, and waits for its broker; nil if ctx ends first.
func (e *engine) publisher(ctx context.Context, raw string) (broker.Publisher, error) {
	for {
		publisher, err := brokerurl.OpenPublisher(raw)
		switch {
		case err == nil:
			e.closers = append(e.closers, publisher.Close)
			return publisher, nil
		case errors.Is(err, brokerurl.ErrURL):
			return nil, err
		}
		e.options.Log.Warn("sekali: the broker to publish to is not there yet", "error", err, "pause", retryEvery)
		if !pause(ctx, retryEvery) {
			return nil, nil
		}
	}
}

// relay publishes what is in the outbox, if the file wants it.
func relay[Tx any](ctx context.Context, e *engine, box *outbox.Box[Tx], embedded string) error {
	o := e.plan.File.Outbox
	if !o.Relay {
		return nil
	}
	publisher, err := e.publisher(ctx, e.plan.brokerFor(o.URL, embedded))
	if err != nil || publisher == nil {
		return err
	}
	cfg := outbox.RelayConfig{Publisher: publisher, DrainTimeout: e.plan.File.DrainTimeout, Observer: e.relayed()}
	if o.HoldKey {
		cfg.OnParked = outbox.HoldKey
	}
	r, err := box.NewRelay(cfg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// relayed is told what the relay does.
func (e *engine) relayed() func(outbox.Event) {
	logged := relayLog(e.options.Log)
	if e.telemetry == nil {
		return logged
	}
	return func(x outbox.Event) {
		logged(x)
		e.telemetry.Relay(x)
	}
}

// relayLog tells what goes wrong.
func relayLog(log *slog.Logger) func(outbox.Event) {
	return func(e outbox.Event) {
		switch e.Kind {
		case outbox.Retried, outbox.Interrupted:
			log.Warn("sekali: the relay waits", "event", e.Row.MessageID, "topic", e.Row.Topic, "error", e.Err, "pause", e.Pause)
		case outbox.GivenUp:
			log.Error("sekali: an event is parked: see sekali outbox list", "event", e.Row.MessageID, "topic", e.Row.Topic, "error", e.Err)
		}
	}
}

// together runs the consumer and what is beside it. If one fails the other
// stops. What is beside stops after the consumer, whose last commits wake it.
func together(ctx context.Context, consumer func(context.Context) error, besides ...func(context.Context) error) error {
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	after, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var running sync.WaitGroup
	errs := make([]error, len(besides)+1)
	for i, beside := range besides {
		running.Go(func() {
			if errs[i] = beside(after); errs[i] != nil {
				stop()
			}
		})
	}
	errs[len(besides)] = consumer(consuming)
	end()
	running.Wait()
	return errors.Join(errs...)
}

// Their transactions are those of the stores.
var (
	_ store.Store[pgx.Tx]  = (*pgxstore.Store)(nil)
	_ store.Store[*sql.Tx] = (*sqlstore.Store)(nil)
)
