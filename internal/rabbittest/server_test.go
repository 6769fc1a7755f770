//go:build !fast

package rabbittest_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali/internal/rabbittest"
)

func TestAQueueLivesAsLongAsItsTest(t *testing.T) {
	conn := rabbittest.Connect(t)
	for _, kind := range []string{"quorum", "classic"} {
		var name string
		t.Run(kind, func(t *testing.T) {
			name = rabbittest.Queue(t, conn, kind, amqp.Table{"x-max-length": 7})
			if n := rabbittest.Messages(t, conn, name); n != 0 {
				t.Errorf("there are %d messages in a new queue", n)
			}
		})
		ch := rabbittest.Channel(t, conn)
		if _, err := ch.QueueDeclarePassive(name, true, false, false, false, nil); err == nil {
			t.Errorf("the queue %s is still there", name)
		}
	}
}

func TestWiresThatAreCutConnectAgainUnlessTheyWereKilled(t *testing.T) {
	w := &rabbittest.Wires{}
	connect := func() error {
		conn, err := amqp.DialConfig("amqp"+rabbittest.URL(t)[len("rabbitmq"):], w.Client())
		if err == nil {
			closed := conn.NotifyClose(make(chan *amqp.Error, 1))
			w.Cut()
			<-closed
		}
		return err
	}
	for range 2 {
		if err := connect(); err != nil {
			t.Fatal(err)
		}
	}
	w.Kill()
	if err := connect(); err == nil {
		t.Error("it connected after its death")
	}
}
