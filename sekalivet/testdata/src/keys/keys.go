// Package keys is about what message keys are made of.
package keys

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/effect"
)

type order struct {
	ID, Event string
	Line      int
}

func read(m *sekali.Message) (o order, err error) { return o, nil }

var calls atomic.Int64

var clock = sekali.Config[*sql.Tx]{
	Key: func(m *sekali.Message) (string, error) {
		return "order-" + time.Now().Format(time.DateOnly), nil // want `time\.Now differs from one delivery to the next`
	},
	Order: func(m *sekali.Message) string {
		return uuid.NewString() // want `uuid\.NewString differs`
	},
}

var chance sekali.KeyFunc = byChance

func byChance(m *sekali.Message) (string, error) {
	var b strings.Builder
	b.WriteString(stamp()) // the builder holds it
	return b.String(), nil
}

func stamp() string {
	return fmt.Sprint(time.Now().UnixNano()) // want `time\.Now, called through stamp, differs`
}

func counted() sekali.KeyFunc {
	n := 0
	return func(m *sekali.Message) (string, error) {
		n++
		return m.ID + "#" + strconv.Itoa(n), nil // want `n, which counts calls, differs`
	}
}

var attempts = sekali.Business(sekali.JSON("/id"), sekali.Header("x-delivery-count")) // want `the header or field "x-delivery-count" differs`

var headers sekali.KeyFunc = func(m *sekali.Message) (string, error) {
	attempt, _ := m.Headers.Get("x-death") // want `the header or field "x-death" differs`
	if calls.Add(1) > 1000 {
		log.Print("busy")
	}
	return string(attempt), nil
}

func loop(ctx context.Context, inbox *sekali.Inbox[*sql.Tx], d amqp.Delivery) error {
	key := fmt.Sprintf("delivery-%d", d.DeliveryTag) // want `d\.DeliveryTag differs`
	_, err := inbox.Process(ctx, key, func(ctx context.Context, tx *sql.Tx) error { return nil })
	if err != nil {
		return err
	}
	_, err = inbox.Process(ctx, d.MessageId+":"+d.AppId, func(ctx context.Context, tx *sql.Tx) error { return nil }) // want `d\.MessageId \+ ":" \+ d\.AppId puts parts together`
	return err
}

var joined sekali.KeyFunc = func(m *sekali.Message) (string, error) {
	o, err := read(m)
	if err != nil {
		return "", err
	}
	if o.Line > 0 {
		return fmt.Sprintf("%s:%s", o.ID, o.Event), nil // want `fmt\.Sprintf puts parts together`
	}
	return strings.Join([]string{o.ID, o.Event}, ":"), nil // want `strings\.Join puts parts together`
}

// Right: no two orders have one key, and an order has one.
var right = sekali.Config[*sql.Tx]{
	Key: func(m *sekali.Message) (string, error) {
		began := time.Now()
		o, err := read(m)
		if err != nil {
			return "", fmt.Errorf("read at %v: %w", time.Now(), err)
		}
		log.Print("took ", time.Since(began))
		switch {
		case o.Event == "":
			return "", errors.New("no event")
		case o.Line == 1:
			return sekali.JoinKey(o.ID, o.Event), nil
		case o.Line == 2:
			return fmt.Sprintf("order-%s:%d", o.ID, o.Line), nil
		case o.Line == 3:
			return fmt.Sprintf("%q %q", o.ID, o.Event), nil
		case o.Line == 5:
			return "retry-" + o.ID, nil
		case o.Line == 4:
			return "order-" + o.ID + ":" + strconv.Itoa(o.Line), nil
		}
		sum := sha256.Sum256(m.Body)
		return hex.EncodeToString(sum[:]), nil
	},
	Order: func(m *sekali.Message) string {
		return m.Topic + string(m.OrderingKey) // two lines in one are slower, not wrong
	},
}

// text is no key function, though it looks like one.
func text(m *sekali.Message) (string, error) { return m.ID + m.Topic + time.Now().String(), nil }

func effects(ctx context.Context, ledger *effect.Ledger, m *sekali.Message, req *http.Request) error {
	req.Header.Set("Idempotency-Key", uuid.NewString()) // want `uuid\.NewString differs`
	req.Header.Set("X-Request-Id", uuid.NewString())
	_, err := effect.Do(ctx, ledger, m.Key(), fmt.Sprint("label ", time.Now()), func(ctx context.Context, c effect.Call) (int, error) { // want `time\.Now differs`
		req.Header.Set("idempotency-key", c.IdempotencyKey)
		return 0, nil
	})
	return err
}

// stamped is an order with what is no part of its key.
type stamped struct {
	ID string
	At time.Time
}

func parse(m *sekali.Message) (stamped, error) { return stamped{ID: m.ID, At: time.Now()}, nil }

func both(m *sekali.Message) (id string, at string, err error) {
	return m.ID, time.Now().String(), nil // want `time\.Now, called through both, differs`
}

var unstamped = []sekali.KeyFunc{
	func(m *sekali.Message) (string, error) {
		s, err := parse(m)
		return s.ID, err
	},
	func(m *sekali.Message) (string, error) {
		id, at, err := both(m)
		log.Print(at)
		return id, err
	},
	func(m *sekali.Message) (string, error) {
		_, at, err := both(m)
		return at, err
	},
	func(m *sekali.Message) (string, error) {
		s := stamped{ID: m.ID}
		s.ID = time.Now().String() // want `time\.Now differs`
		return s.ID, nil
	},
}

// Of a type parameter nobody knows that it is a transaction.
func generic[T any](ctx context.Context, client T, m *sekali.Message) error {
	_, err := http.Get("https://example.com")
	return err
}
