package watermillbroker

import (
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultGrace is what SourceConfig.Grace defaults to.
const DefaultGrace = 500 * time.Millisecond

// SourceConfig says what a Source receives, and how.
type SourceConfig struct {
	// Subscriber to receive from. Required. It is used by nobody else for this
	// topic, unless it delivers to each subscription what no other gets.
	Subscriber message.Subscriber
	// Topic to subscribe to. Required.
	Topic string
	// Subscriptions is how many are open at once. More than one only where the
	// backend shares messages among them (a queue, a consumer group): one that
	// sends a copy to each would have every message processed and found a
	// duplicate. Defaults to 1.
	Subscriptions int
	// Ordered says that one subscription gets the messages in an order to be
	// kept: they are one lane. Needs Subscriptions 1. Defaults to false.
	Ordered bool
	// PinsLanes says that no other instance gets messages of the topic
	// meanwhile, so that the order holds across instances. Watermill cannot
	// know: it is your word. Needs Ordered. Defaults to false.
	PinsLanes bool
	// OrderingKeyMetadata names the metadata that is the ordering key.
	// Defaults to none.
	OrderingKeyMetadata string
	// PublishedAtMetadata names the metadata with the time of publication:
	// RFC 3339, or as time.Time prints itself (Google Cloud Pub/Sub's
	// "publishTime"). What cannot be read is no time. Defaults to none.
	PublishedAtMetadata string
	// AttemptMetadata names the metadata with the count of deliveries, 1 for
	// the first. What is not a number above 0 is no count. Defaults to none.
	AttemptMetadata string
	// Grace is how long Close waits after the last acknowledgement, so that the
	// backend can tell its broker. Defaults to 500 ms.
	Grace time.Duration
	// CloseSubscriber has Close close the Subscriber too. Defaults to false.
	CloseSubscriber bool
}

func (c SourceConfig) withDefaults() (SourceConfig, error) {
	var errs []string
	bad := func(is bool, text string) {
		if is {
			errs = append(errs, text)
		}
	}
	bad(c.Subscriber == nil, "Subscriber is not set: give the one to receive from")
	bad(c.Topic == "", "Topic is empty: name what to subscribe to")
	bad(c.Subscriptions < 0 || c.Grace < 0, "Subscriptions or Grace is negative: leave it 0 for its default")
	bad(c.Ordered && c.Subscriptions > 1, "Ordered means one subscription: leave Subscriptions out")
	bad(c.PinsLanes && !c.Ordered, "PinsLanes needs Ordered: without, there are no lanes")
	if len(errs) > 0 {
		return c, errors.New(strings.Join(errs, "; "))
	}
	if c.Subscriptions == 0 {
		c.Subscriptions = 1
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	return c, nil
}
