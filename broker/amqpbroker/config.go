package amqpbroker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

// What SourceConfig's fields default to.
const (
	DefaultCredit  = 500
	DefaultTimeout = 10 * time.Second
)

// SourceConfig says which queue a Source receives from, and how.
type SourceConfig struct {
	// URL of the broker: amqp10://user:password@host:5672, or amqp10s:// for
	// TLS. Required.
	URL string
	// Queue is the address to receive from: on Artemis a queue's name, or
	// "address::queue"; on RabbitMQ "/queue/name". Required.
	Queue string
	// Capability is asked of the address: "queue" has Artemis make an anycast
	// queue where there is none; "topic" and "" are the others. Defaults to
	// "queue"; "-" means none.
	Capability string
	// Credit is how many deliveries may be on their way or in hand at once.
	// Those in hand do not count until they are settled. Defaults to 500.
	Credit int
	// Exclusive says that the queue has one consumer at a time, which the
	// broker sees to (Artemis: an exclusive queue, or one with
	// max-consumers 1): its messages are then one lane, in order. Defaults to
	// false: no order.
	Exclusive bool
	// Timeout bounds connecting and one question to the broker. Defaults to
	// 10 s.
	Timeout time.Duration
	// Client has further options of the connection. Defaults to none.
	Client *amqp.ConnOptions
}

func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []string
	if err := CheckURL(c.URL); err != nil {
		errs = append(errs, err.Error())
	}
	if strings.TrimSpace(c.Queue) == "" {
		errs = append(errs, "Queue is empty: name the address to receive from")
	}
	switch c.Capability {
	case "":
		c.Capability = "queue"
	case "-":
		c.Capability = ""
	case "queue", "topic":
	default:
		errs = append(errs, fmt.Sprintf("Capability is %q: use queue, topic or -", c.Capability))
	}
	if c.Credit < 0 || c.Timeout < 0 {
		errs = append(errs, "Credit or Timeout is negative: leave it 0 for its default")
	}
	if len(errs) > 0 {
		return c, errors.New(strings.Join(errs, "; "))
	}
	if c.Credit == 0 {
		c.Credit = DefaultCredit
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c, nil
}

// capabilities of an address.
func capabilities(one string) []string {
	if one == "" {
		return nil
	}
	return []string{one}
}
