package watermillbroker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/broker/watermillbroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const keyName = "ordering-key"

// soon is a context for what must end in time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// scripted is a subscriber that brings what a test sends it.
type scripted struct {
	subscriptions chan chan *message.Message
	fail          chan error
}

func newScripted() *scripted {
	return &scripted{make(chan chan *message.Message, 10), make(chan error, 10)}
}

func (s *scripted) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	select {
	case err := <-s.fail:
		return nil, err
	default:
	}
	in, out := make(chan *message.Message), make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case m, ok := <-in:
				if !ok {
					return
				}
				out <- m
			case <-ctx.Done():
				return
			}
		}
	}()
	s.subscriptions <- in
	return out, nil
}

func (s *scripted) Close() error { return nil }

func source(t *testing.T, cfg watermillbroker.SourceConfig) *watermillbroker.Source {
	t.Helper()
	cfg.Topic, cfg.Grace = "orders", time.Millisecond
	s, err := watermillbroker.NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// send has a source receive one message of a subscription.
func send(t *testing.T, s *watermillbroker.Source, in chan *message.Message, m *message.Message) *broker.Delivery {
	t.Helper()
	go func() { in <- m }()
	d, err := s.Receive(soon(t), 10)
	if err != nil || len(d) != 1 {
		t.Fatalf("received %d, %v", len(d), err)
	}
	return d[0]
}

// started returns the first subscription's input.
func started(t *testing.T, s *watermillbroker.Source, sub *scripted) chan *message.Message {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.Receive(ctx, 1)
	}()
	in := <-sub.subscriptions
	cancel()
	<-done
	return in
}

func TestMetadataBecomeWhatTheConfigSays(t *testing.T) {
	sub := newScripted()
	s := source(t, watermillbroker.SourceConfig{
		Subscriber: sub, Ordered: true, PinsLanes: true, OrderingKeyMetadata: keyName, PublishedAtMetadata: "at", AttemptMetadata: "attempt",
	})
	in := started(t, s, sub)
	m := message.NewMessage("id-1", nil)
	m.Metadata = message.Metadata{keyName: "KOPI-250", "at": "2026-12-01T02:03:04.5Z", "attempt": "3", "b": "\xff"}
	d := send(t, s, in, m)
	if d.Message.ID != "id-1" || string(d.Message.OrderingKey) != "KOPI-250" || d.Message.Body == nil || d.Message.Topic != "orders" ||
		!d.Message.PublishedAt.Equal(time.Date(2026, 12, 1, 2, 3, 4, 5e8, time.UTC)) || d.Attempt != 3 || !d.Redelivered || d.Lane != "orders" || !s.PinsLanes() {
		t.Errorf("the delivery is %+v", d)
	}
	if len(d.Message.Headers) != 4 || d.Message.Headers[1].Name != "attempt" || string(d.Message.Headers[2].Value) != "\xff" {
		t.Errorf("the headers are %v", d.Message.Headers)
	}
}

func TestAMessageWhoseTimeIsOverSettlesNothing(t *testing.T) {
	sub := newScripted()
	s := source(t, watermillbroker.SourceConfig{Subscriber: sub})
	in := started(t, s, sub)
	ctx, cancel := context.WithCancel(t.Context())
	late, good := message.NewMessageWithContext(ctx, "late", nil), message.NewMessage("good", nil)
	one, two := send(t, s, in, late), send(t, s, in, good)
	cancel()
	err := s.Settle(soon(t), []broker.Settlement{{Delivery: one}, {Delivery: two}})
	if !errors.Is(err, broker.ErrLost) {
		t.Errorf("settled: %v", err)
	}
	select {
	case <-late.Acked():
		t.Error("a message that is not ours was acknowledged")
	default:
	}
	<-good.Acked()
	if err := s.Settle(soon(t), []broker.Settlement{{Delivery: two}}); !errors.Is(err, broker.ErrLost) {
		t.Errorf("settled twice: %v", err)
	}
}

func TestASubscriptionThatEndsOrFailsIsMadeAgain(t *testing.T) {
	sub := newScripted()
	wrong := errors.New("no such queue")
	sub.fail <- wrong
	s := source(t, watermillbroker.SourceConfig{Subscriber: sub})
	if _, err := s.Receive(soon(t), 1); !errors.Is(err, wrong) || errors.Is(err, broker.ErrClosed) {
		t.Errorf("the first subscription: %v", err)
	}
	in := started(t, s, sub)
	close(in) // the backend ends it
	if _, err := s.Receive(soon(t), 1); err == nil || errors.Is(err, broker.ErrClosed) {
		t.Errorf("the end of a subscription: %v", err)
	}
	again := <-sub.subscriptions
	send(t, s, again, message.NewMessage("m", nil))
}

func TestCloseGivesBackWhatIsInHandAndWhatNobodyTook(t *testing.T) {
	sub := newScripted()
	s := source(t, watermillbroker.SourceConfig{Subscriber: sub})
	in := started(t, s, sub)
	inHand, waiting := message.NewMessage("in hand", nil), message.NewMessage("waiting", nil)
	send(t, s, in, inHand)
	in <- waiting
	if err := s.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	<-inHand.Nacked()
	<-waiting.Nacked()
	if _, err := s.Receive(soon(t), 1); !errors.Is(err, broker.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestConfigsThatCannotWorkAreRefusedInOneLine(t *testing.T) {
	good := watermillbroker.SourceConfig{Subscriber: newScripted(), Topic: "orders"}
	for name, change := range map[string]func(*watermillbroker.SourceConfig){
		"subscriber":    func(c *watermillbroker.SourceConfig) { c.Subscriber = nil },
		"topic":         func(c *watermillbroker.SourceConfig) { c.Topic = "" },
		"subscriptions": func(c *watermillbroker.SourceConfig) { c.Subscriptions = -1 },
		"grace":         func(c *watermillbroker.SourceConfig) { c.Grace = -1 },
		"ordered":       func(c *watermillbroker.SourceConfig) { c.Ordered, c.Subscriptions = true, 2 },
		"pins":          func(c *watermillbroker.SourceConfig) { c.PinsLanes = true },
	} {
		cfg := good
		change(&cfg)
		if _, err := watermillbroker.NewSource(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatMetadataCannotCarryIsRefused(t *testing.T) {
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	p := watermillbroker.NewPublisher(channel, watermillbroker.ClosePublisher())
	err := p.Publish(soon(t), broker.Message{}, broker.Message{Topic: "t", Headers: broker.Headers{{Name: "a"}, {Name: "a"}}}, broker.Message{Topic: "t"})
	var each *broker.PublishError
	if !errors.As(err, &each) || each.Errs[0] == nil || each.Errs[1] == nil || each.Errs[2] != nil {
		t.Errorf("published: %v", err)
	}
	if err := p.Close(soon(t)); err != nil {
		t.Error(err)
	}
}
