package otelsekali_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// parents are the contexts of three producers.
var parents = []string{
	"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	"00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01",
	"00-2af7651916cd43dd8448eb211c80319c-d7ad6b7169203331-01",
}

func traceOf(parent string) (traceID, spanID string) {
	parts := strings.Split(parent, "-")
	return parts[1], parts[2]
}

// awaitSpans waits until so many spans of a name have ended. A recorder tells
// nobody.
func (s *shop) awaitSpans(name string, n int) (found []sdktrace.ReadOnlySpan) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		found = found[:0]
		var names []string
		for _, span := range s.spans.Ended() {
			names = append(names, span.Name())
			if span.Name() == name {
				found = append(found, span)
			}
		}
		if len(found) >= n {
			return found
		}
		if time.Now().After(end) {
			s.t.Fatalf("spans are %q, want %d of %q", names, n, name)
		}
	}
}

func attributes(span sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// has checks some attributes.
func has(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]string) {
	t.Helper()
	got := attributes(span)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("span %q has %s %q, want %q: %v", span.Name(), name, got[name], v, got)
		}
	}
}

// continues checks that a span continues a producer's trace.
func continues(t *testing.T, span sdktrace.ReadOnlySpan, parent string) {
	t.Helper()
	traceID, spanID := traceOf(parent)
	if span.SpanContext().TraceID().String() != traceID || span.Parent().SpanID().String() != spanID || !span.Parent().IsRemote() {
		t.Errorf("span %q is in trace %s below %s, want %s", span.Name(), span.SpanContext().TraceID(), span.Parent().SpanID(), parent)
	}
}

func TestTheTraceOfAProducerGoesOnThroughAllThatBecomesOfItsMessage(t *testing.T) {
	s := newShop(t)
	cfg := s.config()
	handle := cfg.Handle
	inHandler := make(chan string, 10)
	cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
		inHandler <- trace.SpanContextFromContext(ctx).TraceID().String()
		return handle(ctx, tx, m)
	}
	stop := s.start(cfg)
	s.publish("order-1", "body-1", "", "traceparent", parents[0])
	first := s.awaitSpans("process orders", 1)[0]
	s.await(1, "sekali.messages", "outcome", "processed")
	s.publish("order-1", "body-1", "", "Traceparent", parents[1])
	duplicate := s.awaitSpans("process orders", 2)[1]
	s.publish("order-2", "body-1", "", "traceparent", parents[2], "fails", "for good")
	letter := s.awaitSpans("dead-letter orders", 1)[0]
	stop()

	continues(t, first, parents[0])
	if traceID, _ := traceOf(parents[0]); <-inHandler != traceID {
		t.Error("the handler's context does not continue the trace")
	}
	has(t, first, map[string]string{
		"messaging.operation.type": "process", "messaging.operation.name": "process", "messaging.destination.name": "orders",
		"messaging.system": "memory", "messaging.consumer.group.name": "stock-service", "sekali.key": "order-1",
	})
	if first.SpanKind() != trace.SpanKindConsumer || attributes(first)["messaging.message.id"] == "" {
		t.Errorf("it is of kind %v, with %v", first.SpanKind(), attributes(first))
	}

	continues(t, duplicate, parents[1])
	has(t, duplicate, map[string]string{"sekali.outcome": "duplicate", "sekali.cause": "repeat", "sekali.key": "order-1"})
	if attributes(duplicate)["sekali.age"] == "" {
		t.Errorf("the duplicate has no age: %v", attributes(duplicate))
	}

	continues(t, letter, parents[2])
	has(t, letter, map[string]string{"sekali.reason": "permanent", "sekali.attempt": "1", "messaging.destination.name": "orders"})
	failed := s.awaitSpans("process orders", 3)[2]
	continues(t, failed, parents[2])
	if failed.Status().Code != codes.Error || attributes(failed)["error.type"] == "" || letter.Status().Code != codes.Error {
		t.Errorf("the failure is %+v with %v, the letter %+v", failed.Status(), attributes(failed), letter.Status())
	}
	for _, span := range s.spans.Ended() {
		for name, v := range attributes(span) {
			if strings.Contains(v, "body-") {
				t.Errorf("span %q shows a body in %s: %q", span.Name(), name, v)
			}
		}
	}
}

func TestASpanOfABatchLinksToItsProducers(t *testing.T) {
	s := newShop(t)
	cfg := s.config()
	cfg.Handle, cfg.Batch, cfg.Workers = nil, sekali.Batch{Size: 10}, 1
	cfg.HandleBatch = func(_ context.Context, _ *sql.Tx, m []*sekali.Message) error { return nil }
	for i, parent := range parents {
		s.publish("order-"+string(rune('1'+i)), "body-1", "", "traceparent", parent)
	}
	stop := s.start(cfg)
	s.await(3, "sekali.messages", "outcome", "processed")
	stop()
	want, got := map[string]bool{}, map[string]bool{}
	for _, parent := range parents {
		id, _ := traceOf(parent)
		want[id] = true
	}
	batches := 0
	for _, span := range s.awaitSpans("process orders", 1) {
		id := span.SpanContext().TraceID().String()
		if len(span.Links()) == 0 { // it was alone
			got[id] = true
			continue
		}
		batches++
		if want[id] {
			t.Errorf("a span of several is in the trace of one")
		}
		has(t, span, map[string]string{"messaging.batch.message_count": string(rune('0' + len(span.Links())))})
		for _, link := range span.Links() {
			got[link.SpanContext.TraceID().String()] = true
		}
	}
	if !maps.Equal(want, got) || batches == 0 {
		t.Errorf("%d batches, of traces %v, want %v", batches, got, want)
	}
}

func TestASpanAroundTheConsumerIsLinked(t *testing.T) {
	s := newShop(t)
	around := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(t.Context(), around)
	for parent, links := range map[string]int{parents[0]: 1, "": 0} {
		m := &sekali.Message{Message: broker.Message{Topic: "t"}}
		if parent != "" {
			m.Headers = broker.Headers{{Name: "traceparent", Value: []byte(parent)}}
		}
		_, end := s.telemetry.Begin(ctx, "c", []*sekali.Message{m})
		end(nil)
		span := s.spans.Ended()[len(s.spans.Ended())-1]
		if len(span.Links()) != links || parent == "" && span.Parent().TraceID() != around.TraceID() {
			t.Errorf("%q: %d links, below %v", parent, len(span.Links()), span.Parent())
		}
	}
}

func TestMessagesOfSeveralTopicsHaveASpanWithoutOne(t *testing.T) {
	s := newShop(t)
	m := []*sekali.Message{{Message: broker.Message{Topic: "a"}}, {Message: broker.Message{Topic: "b"}}}
	_, end := s.telemetry.Begin(t.Context(), "c", m)
	end(errors.New("no"))
	span := s.spans.Ended()[0]
	if _, there := attributes(span)["messaging.destination.name"]; span.Name() != "process" || there || span.Status().Code != codes.Error {
		t.Errorf("%s: %v", span.Name(), attributes(span))
	}
}

func TestWhatIsPublishedCarriesTheSpanOn(t *testing.T) {
	s := newShop(t)
	producer := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	before := broker.Headers{{Name: "traceparent", Value: []byte("old")}, {Name: "other", Value: []byte("x")}}
	after := s.telemetry.Inject(trace.ContextWithSpanContext(t.Context(), producer), before)
	if v, _ := before.Get("traceparent"); string(v) != "old" {
		t.Error("the caller's headers were changed")
	}
	_, end := s.telemetry.Begin(t.Context(), "c", []*sekali.Message{{Message: broker.Message{Headers: after}}})
	end(nil)
	if span := s.spans.Ended()[0]; span.SpanContext().TraceID() != producer.TraceID() || span.Parent().SpanID() != producer.SpanID() {
		t.Errorf("it goes on below %v", span.Parent())
	}
	if !slices.ContainsFunc(after, func(h broker.Header) bool { return h.Name == "other" }) {
		t.Errorf("headers are %v", after)
	}
}
