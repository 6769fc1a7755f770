package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/amqpbroker"
)

// amqpFeed is a queue for each consumer on ActiveMQ Artemis, which makes them
// when they are first used. AMQP 1.0 itself can neither tell how much is in a
// queue nor delete one: that is Artemis' management, by way of messages.
type amqpFeed struct {
	url, run string
	conn     *amqp.Conn

	mu      sync.Mutex // one question at a time
	session *amqp.Session
	ask     *amqp.Sender
	replies *amqp.Receiver
}

// management is the address at which Artemis is managed.
const management = "activemq.management"

func amqpQueue(run, consumer string) string { return run + "-" + consumer }

func amqpSource(t task) (broker.Source, error) {
	return amqpbroker.NewSource(amqpbroker.SourceConfig{URL: t.Broker, Queue: amqpQueue(t.Topic, t.Service), Timeout: 2 * connectTimeout})
}

func openAMQP(ctx context.Context, url, run string) (feed, error) {
	f := &amqpFeed{url: url, run: "sekali-demo-" + run}
	ctx, done := context.WithTimeout(ctx, 2*connectTimeout)
	defer done()
	conn, err := amqpbroker.Connect(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	f.conn = conn
	if f.session, err = conn.NewSession(ctx, nil); err == nil {
		f.ask, err = f.session.NewSender(ctx, management, nil)
	}
	if err == nil {
		f.replies, err = f.session.NewReceiver(ctx, "", &amqp.ReceiverOptions{DynamicAddress: true, SourceCapabilities: []string{"temporary-queue"}})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("manage the broker at %s: %w: the demo needs ActiveMQ Artemis, and a user who may manage it", f, err)
	}
	return f, nil
}

// manage asks Artemis and returns its answer, JSON.
func (f *amqpFeed) manage(ctx context.Context, properties map[string]any, arguments ...any) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, done := context.WithTimeout(ctx, 2*connectTimeout)
	defer done()
	body, err := json.Marshal(arguments)
	if err != nil {
		return "", err
	}
	to := f.replies.Address()
	m := &amqp.Message{Properties: &amqp.MessageProperties{ReplyTo: &to}, ApplicationProperties: properties, Value: string(body)}
	if err := f.ask.Send(ctx, m, nil); err != nil {
		return "", err
	}
	reply, err := f.replies.Receive(ctx, nil)
	if err != nil {
		return "", err
	}
	if err := f.replies.AcceptMessage(ctx, reply); err != nil {
		return "", err
	}
	text, _ := reply.Value.(string)
	if ok, _ := reply.ApplicationProperties["_AMQ_OperationSucceeded"].(bool); !ok {
		return "", fmt.Errorf("the broker says %s", text)
	}
	return text, nil
}

func (f *amqpFeed) address() (url, topic string) { return f.url, f.run }

func (f *amqpFeed) publisher() (broker.Publisher, error) {
	p, err := amqpbroker.NewPublisher(amqpbroker.PublisherConfig{URL: f.url})
	if err != nil {
		return nil, err
	}
	return fanOut{p}, nil
}

// fanOut publishes each message to the queue of every consumer.
type fanOut struct{ broker.Publisher }

func (o fanOut) Publish(ctx context.Context, messages ...broker.Message) error {
	for _, s := range services {
		copies := make([]broker.Message, len(messages))
		for i, m := range messages {
			copies[i] = m
			copies[i].Topic = amqpQueue(m.Topic, s.name)
		}
		if err := o.Publisher.Publish(ctx, copies...); err != nil {
			return err
		}
	}
	return nil
}

// drained: nothing is in the queue, what consumers have in hand included.
func (f *amqpFeed) drained(ctx context.Context, consumer string) (bool, error) {
	queue := amqpQueue(f.run, consumer)
	text, err := f.manage(ctx, map[string]any{"_AMQ_ResourceName": "queue." + queue, "_AMQ_Attribute": "messageCount"})
	var counts []int
	if err == nil {
		err = json.Unmarshal([]byte(text), &counts)
	}
	if err != nil || len(counts) != 1 {
		return false, fmt.Errorf("ask for the state of the queue %s: %w (%q)", queue, err, text)
	}
	return counts[0] == 0, nil
}

// bury has nothing to do: what a dead consumer had in hand goes back when its
// connection breaks.
func (f *amqpFeed) bury(context.Context, string) {}

func (f *amqpFeed) String() string { return amqpbroker.RedactURL(f.url) }

func (f *amqpFeed) kept() string { return "the queues " + amqpQueue(f.run, "*") }

func (f *amqpFeed) close(ctx context.Context, keep bool) (err error) {
	defer func() { _ = f.conn.Close() }()
	if keep {
		return nil
	}
	for _, s := range services {
		queue := amqpQueue(f.run, s.name)
		_, e := f.manage(ctx, map[string]any{"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "destroyQueue"}, queue, true, true)
		err = errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("delete %s at %s: %w: delete by hand what is there", f.kept(), f, err)
	}
	return nil
}
