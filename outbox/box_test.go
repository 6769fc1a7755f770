package outbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/outbox"
)

func (s *shop) try(m outbox.Message) (id string, err error) {
	s.t.Helper()
	tx, err := s.db.BeginTx(s.ctx, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if id, err = s.box.Add(s.ctx, tx, m); err == nil {
		err = tx.Commit()
	}
	return id, err
}

func TestAnIDIsANewUUIDInTheOrderOfTime(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t))
	var ids []string
	for range 3 {
		id, err := s.try(outbox.Message{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		if u, err := uuid.Parse(id); err != nil || u.Version() != 7 {
			t.Errorf("the id is %s", id)
		}
		ids = append(ids, id)
	}
	if !slices.IsSorted(ids) {
		t.Errorf("the ids are %q", ids)
	}
}

func TestAnEventThatCannotBePublishedIsRefusedAtOnce(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t))
	c := newShop(t, dbtest.SQLite(t), outbox.CloudEvents("/shop"))
	for want, x := range map[string]struct {
		s *shop
		m outbox.Message
	}{
		"Topic is empty":       {s, outbox.Message{}},
		"Topic has 256 bytes":  {s, outbox.Message{Topic: strings.Repeat("t", 256)}},
		"Topic is not text":    {s, outbox.Message{Topic: "a\nb"}},
		"ID has 201 bytes":     {s, outbox.Message{Topic: "t", ID: strings.Repeat("i", 201)}},
		"ID is not text":       {s, outbox.Message{Topic: "t", ID: "\xff"}},
		"ID is empty":          {s, outbox.Message{Topic: "t", ID: "  "}},
		"put its value in":     {s, outbox.Message{Topic: "t", Headers: broker.Headers{{Name: "Idempotency-Key"}}}},
		"of header 1 is not":   {s, outbox.Message{Topic: "t", Headers: broker.Headers{{Name: "\xff"}}}},
		"are a CloudEvent's":   {s, outbox.Message{Topic: "t", Type: "paid"}},
		"Type is empty":        {c, outbox.Message{Topic: "t"}},
		"which CloudEvents se": {c, outbox.Message{Topic: "t", Type: "paid", Headers: broker.Headers{{Name: "CE_Type"}}}},
	} {
		if _, err := x.s.try(x.m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", x.m, err, want)
		}
	}
	if _, err := outbox.New(nothing{}).NewRelay(outbox.RelayConfig{}); err == nil {
		t.Error("a store without an outbox is taken")
	}
	if _, err := outbox.New(nothing{}).Add(t.Context(), nil, outbox.Message{Topic: "t"}); err == nil {
		t.Error("a store without an outbox is taken")
	}
}

// nothing is a store that keeps no outbox.
type nothing struct{ *memstore.Store }

func TestAnEventIsACloudEventByChoice(t *testing.T) {
	s, p := newShop(t, dbtest.SQLite(t), outbox.CloudEvents("/shop")), newScript()
	id, err := s.try(outbox.Message{Topic: "t", Type: "order.paid", Subject: "42", Headers: broker.Headers{{Name: "tenant", Value: []byte("a")}}})
	if err != nil {
		t.Fatal(err)
	}
	s.relay(outbox.RelayConfig{Publisher: p})
	p.wait(t, id)
	m := &sekali.Message{Message: p.got[0]}
	for name, want := range map[string]string{
		"ce_specversion": "1.0", "ce_id": id, "ce_source": "/shop", "ce_type": "order.paid", "ce_subject": "42", "tenant": "a", outbox.IDHeader: id,
	} {
		if got, _ := m.Headers.Get(name); string(got) != want {
			t.Errorf("the header %s is %q, want %q", name, got, want)
		}
	}
	key, err := sekali.CloudEvent()(m)
	if want := sekali.JoinKey("/shop", id); err != nil || key != want {
		t.Errorf("the key of the CloudEvent is %q, %v, want %q", key, err, want)
	}
}

func TestHeadersComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h broker.Headers
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			x := broker.Header{Name: rapid.String().Draw(t, "name")}
			if !rapid.Bool().Draw(t, "nil") {
				x.Value = rapid.SliceOf(rapid.Byte()).Draw(t, "value")
			}
			h = append(h, x)
		}
		text, err := outbox.MarshalHeaders(h)
		if err != nil {
			t.Fatal(err)
		}
		got, err := outbox.UnmarshalHeaders(text)
		same := slices.EqualFunc(h, got, func(a, b broker.Header) bool {
			return a.Name == b.Name && string(a.Value) == string(b.Value) && (a.Value == nil) == (b.Value == nil)
		})
		if err != nil || !same {
			t.Fatalf("%q became %s became %q, %v", h, text, got, err)
		}
	})
}

func TestHeadersThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{`[]`, `{`, `{"a"}`, `{"a":1}`, `{"a":{}}`, `{"a":{"base64":"%"}}`, `{"a":["b"]}`, `{} {}`, `"a"`, `nope`, `{"a":true}`} {
		if h, err := outbox.UnmarshalHeaders([]byte(text)); err == nil {
			t.Errorf("%s is taken for %v", text, h)
		}
	}
	for _, text := range []string{"", "  ", "{}", "null "} {
		if h, err := outbox.UnmarshalHeaders([]byte(text)); len(h) > 0 || (err != nil) != (text == "null ") {
			t.Errorf("%q: %v, %v", text, h, err)
		}
	}
}
