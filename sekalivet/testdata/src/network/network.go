// Package network is about calls of the network in the message's transaction.
package network

import (
	"context"
	"net"
	"net/http"
	"net/smtp"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/effect"
)

type shop struct {
	client  *http.Client
	cache   *redis.Client
	kafka   *kgo.Client
	rabbit  *amqp.Channel
	stream  jetstream.JetStream
	publish broker.Publisher
	ledger  *effect.Ledger
	printer printer
}

type printer interface {
	Print(ctx context.Context, text string) error
}

func (s *shop) handle(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	if _, err := http.Post("https://example.com", "text/plain", nil); err != nil { // want `http\.Post is called inside the message's transaction`
		return err
	}
	if err := s.call(ctx); err != nil {
		return err
	}
	if err := smtp.SendMail("mail:25", nil, "", nil, nil); err != nil { // want `smtp\.SendMail is called inside`
		return err
	}
	if _, err := net.LookupHost("example.com"); err != nil { // want `net\.LookupHost is called inside`
		return err
	}
	if err := s.cache.Set(ctx, "a", "b", 0).Err(); err != nil { // want `redis\.[a-z]*\.?Set is called inside`
		return err
	}
	if err := s.kafka.ProduceSync(ctx, &kgo.Record{}).FirstErr(); err != nil { // want `kgo\.Client\.ProduceSync is called inside`
		return err
	}
	if err := s.rabbit.PublishWithContext(ctx, "", "q", false, false, amqp.Publishing{}); err != nil { // want `amqp091\.Channel\.PublishWithContext is called inside`
		return err
	}
	if _, err := s.stream.Publish(ctx, "a", nil); err != nil { // want `jetstream\.Publisher\.Publish is called inside`
		return err
	}
	if err := s.publish.Publish(ctx, m.Message); err != nil { // want `broker\.Publisher\.Publish is called inside`
		return err
	}
	_, err := effect.Do(ctx, s.ledger, m.Key(), "label", func(ctx context.Context, c effect.Call) (string, error) { // want `effect\.Do is called inside the message's transaction, which stays open`
		_, err := s.client.Get("https://example.com")
		return "", err
	})
	return err
}

func (s *shop) call(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, "GET", "https://example.com", nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req) // want `http\.Client\.Do, called through shop\.call, is called inside`
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Right: nothing of this leaves the process. What is behind an interface is not
// seen.
func (s *shop) right(ctx context.Context, tx pgx.Tx, m *sekali.Message) error {
	u, err := url.Parse("https://example.com")
	if err != nil {
		return err
	}
	req, err := http.NewRequest("GET", u.String(), nil)
	if err != nil {
		return err
	}
	if req.Header.Get("a") != "" || kgo.StringRecord("a") == nil {
		return nil
	}
	if ip := net.ParseIP("127.0.0.1"); ip == nil {
		return nil
	}
	return s.printer.Print(ctx, u.String())
}
