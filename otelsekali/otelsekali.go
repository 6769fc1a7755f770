// Package otelsekali tells OpenTelemetry what consumers, relays and pruners do:
// traces that continue the producer's, and metrics.
//
//	telemetry, err := otelsekali.New(otelsekali.Config{System: "kafka"})
//	consumer, err := sekali.NewConsumer(sekali.Config[pgx.Tx]{
//		Observer: sekali.Observers(sekali.LogTo(slog.Default()), telemetry), …
//	})
//	relay, err := box.NewRelay(outbox.RelayConfig{Observer: telemetry.Relay, …})
//	pruner.Every(ctx, time.Hour, telemetry.Pruned)
//	stop, err := telemetry.Watch(pgxstore.New(pool).Admin().Health, 0)
//
// All metrics are in one table: Metrics, and docs/telemetry.md. Their attributes
// have few values; message keys and bodies are in none. Spans have the key of
// their message in its stored form, and no body.
package otelsekali

import (
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/retention"
)

// scope is what OpenTelemetry calls who tells something.
const scope = "github.com/sekali/sekali/otelsekali"

// Config says whom to tell. No field is required.
type Config struct {
	// TracerProvider takes spans. Defaults to otel.GetTracerProvider(). With a
	// noop.TracerProvider messages are not looked at for the producer's context.
	TracerProvider trace.TracerProvider
	// MeterProvider takes metrics. Defaults to otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
	// Propagator finds the producer's context in headers, whose names compare
	// without regard to case. Defaults to W3C trace context and baggage.
	Propagator propagation.TextMapPropagator
	// System is the broker, as the semantic conventions name it: kafka, rabbitmq,
	// nats, aws_sqs. It is an attribute of spans. Defaults to none.
	System string
}

// Telemetry is a sekali.Observer, a sekali.Tracer and a sekali.AgeWatcher for
// any number of consumers. It is safe for concurrent use.
type Telemetry struct {
	tracer     trace.Tracer
	traces     bool
	propagator propagation.TextMapPropagator
	system     []attribute.KeyValue
	meter      metric.Meter

	of        instruments
	consumers sync.Map // name to *consumer
	relay     relay
	pruner    pruner
}

var (
	_ sekali.Observer   = (*Telemetry)(nil)
	_ sekali.Tracer     = (*Telemetry)(nil)
	_ sekali.AgeWatcher = (*Telemetry)(nil)
)

// New returns a Telemetry, or the error of a MeterProvider that does not take
// its metrics.
func New(cfg Config) (*Telemetry, error) {
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	}
	_, none := cfg.TracerProvider.(noop.TracerProvider)
	t := &Telemetry{
		tracer: cfg.TracerProvider.Tracer(scope), traces: !none, propagator: cfg.Propagator, meter: cfg.MeterProvider.Meter(scope),
	}
	if cfg.System != "" {
		t.system = systemOf(cfg.System)
	}
	m := &maker{meter: t.meter}
	t.of, t.relay, t.pruner = instrumentsOf(m), relayOf(m), prunerOf(m)
	if err := m.err(); err != nil {
		return nil, fmt.Errorf("new telemetry: %w", err)
	}
	return t, nil
}

// WatchesAges implements sekali.AgeWatcher: metrics have the ages of duplicates.
func (t *Telemetry) WatchesAges() bool { return true }

// Observe implements sekali.Observer.
func (t *Telemetry) Observe(e sekali.Event) {
	c := t.consumer(e.Consumer)
	switch e.Kind {
	case sekali.Received:
		c.received[index(e.Redelivered)].add(1)
	case sekali.Finished:
		c.finished(&e)
		if e.Outcome != sekali.Processed {
			t.traceFinished(&e)
		}
	case sekali.Committed:
		c.commit.took(e.Duration)
		c.batch.value(float64(e.Count))
	case sekali.Settled:
		c.settled.add(e.Count)
	case sekali.Interrupted:
		if e.Pause > 0 { // else what went wrong was beside the message
			c.retries[e.Kind].add(max(1, e.Count))
		}
	case sekali.AttemptFailed, sekali.Conflicted:
		c.retries[e.Kind].add(max(1, e.Count))
	case sekali.DeadLettered:
		c.letter(e.Reason).add(1)
		t.traceLetter(&e)
	case sekali.Held:
		c.held.add(1)
	case sekali.Started:
		t.of.consumers.Add(context.Background(), 1, c.itself...)
	case sekali.Stopped:
		t.of.consumers.Add(context.Background(), -1, c.itself...)
	default:
		if trouble, is := c.troubles[e.Kind]; is {
			trouble.add(1)
		}
	}
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// instruments are those of all consumers.
type instruments struct {
	received, messages, duplicates, retries, letters, held, settled, troubles metric.Int64Counter
	ages, handling, commits, batches                                          metric.Float64Histogram
	consumers                                                                 metric.Int64UpDownCounter
}

func instrumentsOf(m *maker) instruments {
	return instruments{
		received: m.counter("sekali.received"), messages: m.counter("sekali.messages"), duplicates: m.counter("sekali.duplicates"),
		retries: m.counter("sekali.retries"), letters: m.counter("sekali.dead_letters"), held: m.counter("sekali.held"),
		settled: m.counter("sekali.settled"), troubles: m.counter("sekali.troubles"),
		ages: m.histogram("sekali.duplicate.age"), handling: m.histogram("sekali.handler.duration"),
		commits: m.histogram("sekali.commit.duration"), batches: m.histogram("sekali.batch.size"),
		consumers: m.upDown("sekali.consumers"),
	}
}

// consumer has the instruments with the attributes of one, and a place for each
// value that these can have.
type consumer struct {
	received             [2]count // by Redelivered
	outcomes             map[sekali.Outcome]count
	causes               map[sekali.Cause]count
	retries              map[sekali.EventKind]count
	letters              map[deadletter.Reason]count
	troubles             map[sekali.EventKind]count
	held, settled        count
	age, handling, batch record
	commit               record
	itself               []metric.AddOption
}

func (t *Telemetry) consumer(name string) *consumer {
	if c, ok := t.consumers.Load(name); ok {
		return c.(*consumer)
	}
	c, _ := t.consumers.LoadOrStore(name, newConsumer(&t.of, attribute.String(consumerKey, name)))
	return c.(*consumer)
}

func newConsumer(of *instruments, name attribute.KeyValue) *consumer {
	c := &consumer{
		outcomes: map[sekali.Outcome]count{}, causes: map[sekali.Cause]count{}, retries: map[sekali.EventKind]count{},
		letters: map[deadletter.Reason]count{}, troubles: map[sekali.EventKind]count{},
		held: counted(of.held, name), settled: counted(of.settled, name), age: recorded(of.ages, name),
		handling: recorded(of.handling, name), batch: recorded(of.batches, name), commit: recorded(of.commits, name),
		itself: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(name))},
	}
	for i := range c.received {
		c.received[i] = counted(of.received, name, attribute.Bool(redeliveredKey, i == 1))
	}
	for _, o := range []sekali.Outcome{sekali.Processed, sekali.Duplicate, sekali.Stale, sekali.Conflict} {
		c.outcomes[o] = counted(of.messages, name, attribute.String(outcomeKey, o.String()))
	}
	for _, cause := range []sekali.Cause{sekali.CauseRedrive, sekali.CauseLostRace, sekali.CauseRedelivery, sekali.CauseRepeat} {
		c.causes[cause] = counted(of.duplicates, name, attribute.String(causeKey, cause.String()))
	}
	for _, k := range []sekali.EventKind{sekali.AttemptFailed, sekali.Conflicted, sekali.Interrupted} {
		c.retries[k] = counted(of.retries, name, attribute.String(causeKey, k.String()))
	}
	for _, r := range append(deadletter.Reasons(), otherReason) {
		c.letters[r] = counted(of.letters, name, attribute.String(reasonKey, string(r)))
	}
	for _, k := range []sekali.EventKind{
		sekali.DeadLetterFailed, sekali.SettleFailed, sekali.ReceiveFailed, sekali.CheckFailed, sekali.StatsFailed, sekali.Expired, sekali.Suspected,
	} {
		c.troubles[k] = counted(of.troubles, name, attribute.String(kindKey, k.String()))
	}
	return c
}

func (c *consumer) finished(e *sekali.Event) {
	c.outcomes[e.Outcome].add(1)
	switch e.Outcome {
	case sekali.Processed:
		c.handling.took(e.Handling)
	case sekali.Duplicate:
		c.causes[e.Cause].add(1)
		if e.Age > 0 {
			c.age.took(e.Age)
		}
	}
}

// otherReason is that of letters whose reason is not known here.
const otherReason deadletter.Reason = "other"

func (c *consumer) letter(r deadletter.Reason) count {
	if known, is := c.letters[r]; is {
		return known
	}
	return c.letters[otherReason]
}

// relay has what is told of an outbox.Relay.
type relay struct {
	published, retries, givenUp, interruptions count
	publishing                                 record
	lanes                                      metric.Int64Gauge
}

func relayOf(m *maker) relay {
	return relay{
		published: counted(m.counter("sekali.outbox.published")), retries: counted(m.counter("sekali.outbox.retries")),
		givenUp: counted(m.counter("sekali.outbox.given_up")), interruptions: counted(m.counter("sekali.outbox.interruptions")),
		publishing: recorded(m.histogram("sekali.outbox.publish.duration")), lanes: m.gauge("sekali.outbox.lanes"),
	}
}

// Relay is an observer for an outbox.Relay.
func (t *Telemetry) Relay(e outbox.Event) {
	switch e.Kind {
	case outbox.Sent:
		t.relay.published.add(e.Count)
		t.relay.publishing.took(e.Duration)
	case outbox.Retried:
		t.relay.retries.add(1)
	case outbox.GivenUp:
		t.relay.givenUp.add(1)
	case outbox.Interrupted:
		t.relay.interruptions.add(1)
	case outbox.Shared:
		t.relay.lanes.Record(context.Background(), int64(e.Count))
	}
}

// pruner has what is told of a retention.Pruner.
type pruner struct {
	removed, runs metric.Int64Counter
	took          metric.Float64Histogram
}

func prunerOf(m *maker) pruner {
	return pruner{m.counter("sekali.pruned"), m.counter("sekali.prune.runs"), m.histogram("sekali.prune.duration")}
}

// Pruned is told of a run of a retention.Pruner, by its Every say.
func (t *Telemetry) Pruned(r retention.Report, err error) {
	for _, one := range r.Results {
		if one.Keep == retention.Forever {
			continue // they were not looked at
		}
		rows := attribute.String(rowsKey, string(one.Rows))
		counted(t.pruner.removed, rows).add(int(one.Removed))
		recorded(t.pruner.took, rows).took(one.Took)
	}
	result := "done"
	if err != nil {
		result = "failed"
	}
	counted(t.pruner.runs, attribute.String(resultKey, result)).add(1)
}
