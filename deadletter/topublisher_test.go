package deadletter_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
)

// kept is a publisher that keeps what is published.
type kept struct {
	got []broker.Message
	err error
}

func (k *kept) Publish(_ context.Context, m ...broker.Message) error {
	k.got = append(k.got, m...)
	return k.err
}
func (k *kept) Close(context.Context) error { return nil }

func TestALetterComesBackFromABrokersQueueWithEveryByte(t *testing.T) {
	for name, l := range map[string]deadletter.Letter{
		"plain": {
			Consumer: "stock-service", Key: "order-1", OrderingKey: "KOPI-250", Reason: deadletter.Exhausted, Error: "no courier", Attempts: 10,
			Message: broker.Message{
				ID: "7", Topic: "orders", OrderingKey: []byte("KOPI-250"), Body: []byte("{}"), PublishedAt: time.Unix(1, 5).UTC(),
				Headers: broker.Headers{{Name: "trace", Value: []byte("abc")}},
			},
		},
		"hostile": {
			Consumer: "stöck", Key: "k\x00\xff\r\nsekali-key: other", OrderingKey: " e ", Reason: deadletter.Permanent, Error: "no", Attempts: 1,
			Message: broker.Message{
				ID: "\r\n", Topic: "o\x00", Body: []byte{0, 0xff},
				Headers: broker.Headers{
					{Name: "h", Value: []byte("\xff\r\n")},
					{Name: "h", Value: nil},
					{Name: "Sekali-Key", Value: []byte("mine")},
					{Name: "Message-Id", Value: []byte("of another")},
					{Name: "Nats-Msg-Id", Value: []byte("x")},
					{Name: "ok", Value: []byte("1")},
					{Name: "ok", Value: []byte("2")},
				},
			},
		},
		"null":           {Consumer: "c", Key: "base64:AA==", Message: broker.Message{Body: nil}},
		"empty, no key":  {Consumer: "c", Message: broker.Message{Body: []byte{}}},
		"key of letters": {Consumer: "c", Key: "ключ", Message: broker.Message{Body: []byte("b")}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kept{}
			if err := deadletter.ToPublisher(k, "dead").Put(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			m := k.got[0]
			if m.Topic != "dead" || m.ID != "" || !bytes.Equal(m.Body, l.Message.Body) {
				t.Errorf("published: %+v", m)
			}
			names := map[string]bool{"Message-Id": true, "Nats-Msg-Id": true} // which some brokers use themselves
			for _, h := range m.Headers {
				if names[h.Name] || strings.ContainsFunc(string(h.Value), func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Errorf("not every broker carries %q: %q", h.Name, h.Value)
				}
				names[h.Name] = true
			}
			got, err := deadletter.FromMessage(m)
			if err != nil {
				t.Fatal(err)
			}
			if time.Since(got.FirstAt).Abs() > time.Minute {
				t.Errorf("it died at %v", got.FirstAt)
			}
			got.FirstAt, got.LastAt, got.Status = l.FirstAt, l.LastAt, l.Status
			if !reflect.DeepEqual(got, l) {
				t.Errorf("came back as\n%#v, was\n%#v", got, l)
			}
		})
	}
}

func TestARedrivenMessageHasItsKeyForItsConsumerAndNoIDOfTheBrokers(t *testing.T) {
	l := deadletter.Letter{Consumer: "stock", Key: "k\n", Message: broker.Message{
		ID: "7", Topic: "orders", Body: []byte("b"), Headers: broker.Headers{{Name: "h", Value: []byte("v")}},
	}}
	m := deadletter.Redriven(l, "orders.redrive")
	key, _ := m.Headers.Get(deadletter.HeaderKey)
	consumer, _ := m.Headers.Get(deadletter.HeaderConsumer)
	h, _ := m.Headers.Get("h")
	if m.ID != "" || m.Topic != "orders.redrive" || deadletter.UnescapeHeader(string(key)) != "k\n" || string(consumer) != "stock" || string(h) != "v" {
		t.Errorf("redriven: %+v", m)
	}
	if len(l.Message.Headers) != 1 {
		t.Error("the letter was changed")
	}
}

func TestAMessageThatIsNoLetterIsToldSo(t *testing.T) {
	for _, headers := range []broker.Headers{
		nil,
		{{Name: deadletter.HeaderOriginal, Value: []byte("%%%")}},
		{{Name: deadletter.HeaderOriginal, Value: []byte("e30x")}},
	} {
		if _, err := deadletter.FromMessage(broker.Message{Headers: headers}); !errors.Is(err, deadletter.ErrNotALetter) {
			t.Errorf("%v: %v", headers, err)
		}
	}
}

func TestAPublisherThatFailsIsAnError(t *testing.T) {
	k := &kept{err: errors.New("full")}
	if err := deadletter.ToPublisher(k, "dead").Put(t.Context(), deadletter.Letter{Consumer: "c"}); !errors.Is(err, k.err) {
		t.Errorf("got %v", err)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add("base64:")
	f.Add("\x00")
	f.Add(" a")
	f.Fuzz(func(t *testing.T, text string) {
		if got := deadletter.UnescapeHeader(deadletter.EscapeHeader(text)); got != text {
			t.Errorf("%q came back as %q", text, got)
		}
	})
}
