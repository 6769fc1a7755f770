package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/brokerurl"
)

// maxPublish bounds a message from the standard input, in bytes.
const maxPublish = 16 << 20

func (a *app) publish() *cobra.Command {
	var url, topic, id, key string
	var headers []string
	c := &cobra.Command{
		Use: "publish [BODY]", Args: cobra.MaximumNArgs(1),
		Short: "Publish one message, to try a consumer",
		Long: `Publishes one message and waits until the broker has confirmed it. The body is the
argument, or the standard input without one.`,
	}
	f := c.Flags()
	f.StringVar(&url, "broker", "", "URL of the broker: nats://…, kafka://…, rabbitmq://…, amqp10://… or redis://…")
	f.StringVar(&topic, "topic", "", "topic, subject, stream or queue to publish to")
	f.StringVar(&id, "id", "", "id of the message at the broker")
	f.StringVar(&key, "ordering-key", "", "its ordering key")
	f.StringArrayVar(&headers, "header", nil, "a header, name=value; may be repeated")
	return a.command(c, func(ctx context.Context, args []string) error {
		if url == "" || topic == "" {
			return usagef("where shall it go? Give --broker and --topic")
		}
		m := broker.Message{ID: id, Topic: topic}
		if key != "" {
			m.OrderingKey = []byte(key)
		}
		for _, h := range headers {
			name, value, found := strings.Cut(h, "=")
			if !found || name == "" {
				return usagef("--header %q: use name=value", h)
			}
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: []byte(value)})
		}
		if len(args) == 1 {
			m.Body = []byte(args[0])
		} else {
			body, err := io.ReadAll(io.LimitReader(a.stdin, maxPublish+1))
			if err != nil {
				return fmt.Errorf("read the body from the standard input: %w", err)
			}
			if len(body) > maxPublish {
				return fmt.Errorf("the body is longer than %d bytes", maxPublish)
			}
			m.Body = body
		}
		return a.publishOne(ctx, url, m)
	})
}

func (a *app) publishOne(ctx context.Context, url string, m broker.Message) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	publisher, err := brokerurl.OpenPublisher(url)
	if err != nil {
		return err
	}
	if err := publisher.Publish(ctx, m); err != nil {
		return errors.Join(fmt.Errorf("publish to %s: %w", m.Topic, err), publisher.Close(ctx))
	}
	if err := publisher.Close(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, "published")
	return err
}
