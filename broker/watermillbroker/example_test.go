package watermillbroker_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/watermillbroker"
)

func Example() {
	ctx := context.Background()
	// Any subscriber and publisher of Watermill; this one is in memory.
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	publisher := watermillbroker.NewPublisher(channel)
	err := publisher.Publish(ctx, broker.Message{Topic: "orders", ID: "order-42:paid", Body: []byte(`{"order":42}`)})
	if err != nil {
		fmt.Println(err)
	}
	source, err := watermillbroker.NewSource(watermillbroker.SourceConfig{Subscriber: channel, Topic: "orders", CloseSubscriber: true})
	if err != nil {
		fmt.Println(err)
	}
	// A sekali.Consumer does this.
	deliveries, err := source.Receive(ctx, 100)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(deliveries[0].Message.ID, string(deliveries[0].Message.Body))
	err = source.Settle(ctx, []broker.Settlement{{Delivery: deliveries[0], Action: broker.Ack}})
	if err != nil {
		fmt.Println(err)
	}
	if err := source.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: order-42:paid {"order":42}
}
