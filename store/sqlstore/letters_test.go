package sqlstore_test

import (
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

func letter() deadletter.Letter {
	return deadletter.Letter{
		Consumer: "stock-service", Key: "order-42", Reason: deadletter.Permanent, Error: "no stock", Attempts: 1,
		Message: broker.Message{ID: "7", Topic: "orders", Body: []byte("{}")},
	}
}
