//go:build !fast

package demo

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/amqptest"
)

func TestAnAMQPFeedKnowsWhatIsLeftAndLeavesNothing(t *testing.T) {
	if !amqptest.IsArtemis(t) {
		t.Skip("the server stands in for Artemis, whose management the demo needs; the run says so")
	}
	opened, err := openAMQP(t.Context(), amqptest.URL(t), "test-"+strings.ToLower(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	f := opened.(*amqpFeed)
	if strings.Contains(f.String(), "sekali:sekali") {
		t.Errorf("it shows its password: %s", f)
	}
	p, err := f.publisher()
	if err != nil {
		t.Fatal(err)
	}
	_, topic := f.address()
	if err := p.Publish(t.Context(), broker.Message{Topic: topic, Body: []byte("an order")}); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, s := range services {
		source, err := amqpSource(task{Broker: f.url, Topic: topic, Service: s.name})
		if err != nil {
			t.Fatal(err)
		}
		d, err := source.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if drained, err := f.drained(t.Context(), s.name); err != nil || drained {
			t.Errorf("with a message in hand %s is drained: %v, %v", s.name, drained, err)
		}
		if err := source.Settle(t.Context(), []broker.Settlement{{Delivery: d[0]}}); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // Artemis may still be writing it down
			drained, err := f.drained(t.Context(), s.name)
			if drained {
				break
			}
			if err != nil || time.Now().After(end) {
				t.Fatalf("%s is drained: %v, %v", s.name, drained, err)
			}
		}
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	queue := amqpQueue(f.run, services[0].name)
	if err := f.close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	again, err := openAMQP(t.Context(), amqptest.URL(t), "test-again")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.close(context.Background(), true) }()
	if _, err := again.(*amqpFeed).manage(t.Context(), map[string]any{"_AMQ_ResourceName": "queue." + queue, "_AMQ_Attribute": "messageCount"}); err == nil {
		t.Error("the queue is still there")
	}
}
