// Package watermillbroker receives from any subscriber of Watermill
// (github.com/ThreeDotsLabs/watermill), and publishes to any publisher of it, so
// that what Watermill has an adapter for comes along: Amazon SQS, Google Cloud
// Pub/Sub, SQL queues and more. It was tested with watermill-sql on PostgreSQL
// and MariaDB, with watermill-redisstream, and with Watermill's own channels.
//
// Amazon SQS, with github.com/ThreeDotsLabs/watermill-aws/sqs. One subscription
// has one message at a time, so several are opened:
//
//	subscriber, err := sqs.NewSubscriber(sqs.SubscriberConfig{AWSConfig: cfg}, logger)
//	…
//	source, err := watermillbroker.NewSource(watermillbroker.SourceConfig{
//		Subscriber: subscriber, Topic: "orders", Subscriptions: 10, CloseSubscriber: true,
//	})
//
// Google Cloud Pub/Sub, with
// github.com/ThreeDotsLabs/watermill-googlecloud/pkg/googlecloud. One subscription
// has many messages in hand:
//
//	subscriber, err := googlecloud.NewSubscriber(googlecloud.SubscriberConfig{ProjectID: "shop"}, logger)
//	…
//	source, err := watermillbroker.NewSource(watermillbroker.SourceConfig{
//		Subscriber: subscriber, Topic: "orders", PublishedAtMetadata: "publishTime", CloseSubscriber: true,
//	})
//
// # What Watermill does not tell
//
// An acknowledgement has no answer: Settle cannot know whether the broker got
// it, and returns nil when the subscriber was told. A lost one costs a
// redelivery, which the table of processed messages absorbs, so no effect is
// lost or doubled. Close waits for a moment after the last one
// (SourceConfig.Grace), which spares most redeliveries after a stop.
//
// Most subscribers hand over one message and wait for its acknowledgement
// before the next: messages that could share a transaction do not come
// together, and one that waits for its next attempt stops its subscription.
// Subscriptions opens several at once.
//
// How long a message may stay unacknowledged is the subscriber's to set
// (AckDeadline, MaxIdleTime, the queue's visibility timeout), and it cannot be
// asked for more. Let it be longer than all attempts of a message take together,
// with the pauses of Config.Backoff: who gets a message again counts its attempts
// from the start, and never comes to MaxAttempts. A message whose own context
// has ended is no longer ours: it is not begun, and acknowledging it is
// broker.ErrLost. A backend that ends no context (SQS) may give a late message
// to somebody else meanwhile: one of the two waits for the other and finds a
// duplicate.
//
// How often a message was delivered, and whether it came before, is unknown
// unless the backend puts a count into the metadata (AttemptMetadata). Without
// that hint a message that kills the process is not found out: careful mode
// is not entered and MaxCrashes does not work. It comes back until the backend
// or an operator takes it away: give the backend a limit and a dead letter queue
// of its own (SQS: maxReceiveCount).
//
// A message given back (a Nack) is delivered again at once, or after the
// backend's own delay, on the same subscription. Order is kept where
// the backend keeps it in that case too: say so with Ordered.
//
// # Backends
//
//   - watermill-sql: its queues need SubscribeBatchSize 1. With more, as is its
//     default, one acknowledgement deletes or marks all messages of its batch,
//     those too that were not handled because AckDeadline passed or the
//     subscriber was closed: they are lost. One subscriber at a time gets
//     messages of a queue, and others wait for it: leave Subscriptions 1. IDs
//     have up to 36 characters. Metadata are JSON: see OnlyText. Payload columns
//     are JSON too unless GeneratePayloadType says BYTEA or LONGBLOB.
//   - watermill-redisstream: needs a ConsumerGroup; without one every subscriber
//     gets everything. Where Redis is Redis, redisbroker does more.
//   - Amazon SQS: a message given back comes again after the visibility timeout.
//   - gochannel: what is in memory dies with the process.
//
// # How a message travels
//
// Message.ID is the UUID, which the producer chose and which may be empty.
// Message.Topic is the topic that is subscribed to. Headers are the metadata,
// by name. A body that is empty or nil arrives as an empty one. Metadata are
// texts: whether other bytes survive is the backend's business, and OnlyText
// has a Publisher refuse them. It always refuses a header that comes twice.
package watermillbroker
