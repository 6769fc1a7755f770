package otelsekali

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store"
)

// The attributes of spans beside those of the semantic conventions.
const (
	spanKey     = attribute.Key("sekali.key")
	spanLetter  = attribute.Key("sekali.letter")
	spanOutcome = attribute.Key("sekali.outcome")
	spanCause   = attribute.Key("sekali.cause")
	spanAge     = attribute.Key("sekali.age") // in seconds
	spanReason  = attribute.Key("sekali.reason")
	spanAttempt = attribute.Key("sekali.attempt")
)

func systemOf(name string) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String(name)}
}

// carrier reads and writes a context in headers.
type carrier struct{ headers *broker.Headers }

// Get implements propagation.TextMapCarrier. Some clients write the first
// letter of a header large.
func (c carrier) Get(name string) string {
	for _, h := range *c.headers {
		if strings.EqualFold(h.Name, name) {
			return string(h.Value)
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(name, value string) { *c.headers = c.headers.Set(name, []byte(value)) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	names := make([]string, len(*c.headers))
	for i, h := range *c.headers {
		names[i] = h.Name
	}
	return names
}

// Inject returns headers with the context of the span in ctx, for a message
// that is to be published: consumers continue the trace. It does not change
// headers itself.
//
//	id, err := box.Add(ctx, tx, outbox.Message{Topic: "orders", Headers: telemetry.Inject(ctx, nil), Body: body})
func (t *Telemetry) Inject(ctx context.Context, headers broker.Headers) broker.Headers {
	t.propagator.Inject(ctx, carrier{&headers})
	return headers
}

// producer returns ctx with the context of who published a message.
func (t *Telemetry) producer(ctx context.Context, m *sekali.Message) context.Context {
	return t.propagator.Extract(ctx, carrier{&m.Headers})
}

// Begin implements sekali.Tracer: a span "process" around each call of a
// handler. One message continues its producer's trace; a span of several links
// to theirs.
func (t *Telemetry) Begin(ctx context.Context, consumer string, m []*sekali.Message) (context.Context, func(error)) {
	if !t.traces || len(m) == 0 {
		return ctx, func(error) {}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(t.processing(consumer)...)}
	if len(m) == 1 {
		ctx, options = t.continued(ctx, m[0], options)
	} else {
		options = append(options, trace.WithAttributes(semconv.MessagingBatchMessageCount(len(m))), t.links(m))
	}
	topic := commonTopic(m)
	if topic != "" {
		options = append(options, trace.WithAttributes(semconv.MessagingDestinationName(topic)))
	}
	ctx, span := t.tracer.Start(ctx, named("process", topic), options...)
	return ctx, func(err error) {
		if err != nil {
			span.SetAttributes(semconv.ErrorType(err))
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// continued has a span continue the trace of who published its message. What ctx
// belonged to is linked.
func (t *Telemetry) continued(ctx context.Context, m *sekali.Message, options []trace.SpanStartOption) (context.Context, []trace.SpanStartOption) {
	around := trace.SpanContextFromContext(ctx)
	ctx = t.producer(ctx, m)
	if around.IsValid() && !around.Equal(trace.SpanContextFromContext(ctx)) {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: around}))
	}
	return ctx, append(options, trace.WithAttributes(about(m)...))
}

func (t *Telemetry) links(m []*sekali.Message) trace.SpanStartOption {
	links := make([]trace.Link, 0, len(m))
	for _, one := range m {
		from := trace.SpanContextFromContext(t.producer(context.Background(), one))
		if from.IsValid() {
			links = append(links, trace.Link{SpanContext: from, Attributes: about(one)})
		}
	}
	return trace.WithLinks(links...)
}

// processing are the attributes of each span of a consumer that processes.
func (t *Telemetry) processing(consumer string) []attribute.KeyValue {
	return append([]attribute.KeyValue{
		semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"), semconv.MessagingConsumerGroupName(consumer),
	}, t.system...)
}

// about are the attributes of a message.
func about(m *sekali.Message) []attribute.KeyValue {
	all := []attribute.KeyValue{spanKey.String(store.StoredKey(m.Key()))}
	if m.ID != "" {
		all = append(all, semconv.MessagingMessageID(m.ID))
	}
	if letter := m.Letter(); letter != 0 {
		all = append(all, spanLetter.Int64(letter))
	}
	return all
}

// commonTopic is that of all messages; empty: they have several.
func commonTopic(m []*sekali.Message) string {
	for _, one := range m[1:] {
		if one.Topic != m[0].Topic {
			return ""
		}
	}
	return m[0].Topic
}

func named(operation, topic string) string {
	if topic == "" {
		return operation
	}
	return operation + " " + topic
}

// traceFinished makes the span of a message whose handler is not called: a
// duplicate, a stale one, a conflict. The producer's trace shows what became of
// it.
func (t *Telemetry) traceFinished(e *sekali.Event) {
	with := append(t.processing(e.Consumer), spanOutcome.String(e.Outcome.String()))
	if e.Cause != 0 {
		with = append(with, spanCause.String(e.Cause.String()))
	}
	if e.Age != 0 {
		with = append(with, spanAge.Float64(e.Age.Seconds()))
	}
	if span := t.after("process", trace.SpanKindConsumer, e, with); span != nil {
		span.End()
	}
}

// traceLetter makes the span of a dead letter.
func (t *Telemetry) traceLetter(e *sekali.Event) {
	with := append(t.system[:len(t.system):len(t.system)], semconv.MessagingConsumerGroupName(e.Consumer),
		spanReason.String(string(e.Reason)), spanAttempt.Int(e.Attempt))
	if span := t.after("dead-letter", trace.SpanKindInternal, e, with); span != nil {
		if e.Err != nil {
			span.SetAttributes(semconv.ErrorType(e.Err))
			span.SetStatus(codes.Error, e.Err.Error())
		}
		span.End()
	}
}

// after starts a span of what an event tells, as long ago as that began, in the
// trace of who published the message; nil: nobody wants traces.
func (t *Telemetry) after(operation string, kind trace.SpanKind, e *sekali.Event, with []attribute.KeyValue) trace.Span {
	if !t.traces || e.Message == nil {
		return nil
	}
	m := e.Message
	with = append(with, about(m)...)
	if m.Topic != "" {
		with = append(with, semconv.MessagingDestinationName(m.Topic))
	}
	_, span := t.tracer.Start(t.producer(context.Background(), m), named(operation, m.Topic),
		trace.WithSpanKind(kind), trace.WithTimestamp(time.Now().Add(-e.Duration)), trace.WithAttributes(with...))
	return span
}
