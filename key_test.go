package sekali_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

func message(body string, headers ...string) *sekali.Message {
	m := &sekali.Message{Message: broker.Message{ID: "broker-1", Body: []byte(body)}}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = append(m.Headers, broker.Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	return m
}

func TestKeysAreTakenFromWhereTheyAre(t *testing.T) {
	cases := map[string]struct {
		extract sekali.KeyFunc
		m       *sekali.Message
		want    string
	}{
		"a header":                            {sekali.Header("idempotency-key"), message("", "idempotency-key", "order-42:paid"), "order-42:paid"},
		"a header with any bytes":             {sekali.Header("k"), message("", "k", "\xff\x00 "), "\xff\x00 "},
		"a header that comes twice alike":     {sekali.Header("k"), message("", "k", "a", "k", "a"), "a"},
		"a JSON string":                       {sekali.JSON("/event_id"), message(`{"event_id":"e-1"}`), "e-1"},
		"a JSON number as it is written":      {sekali.JSON("/n"), message(`{"n": 12345678901234567890.10 }`), "12345678901234567890.10"},
		"deep in arrays":                      {sekali.JSON("/items/1/id"), message(`{"items":[{"id":"a"},{"id":"b"}]}`), "b"},
		"a JSON pointer's escapes":            {sekali.JSON("/a~1b/~0~01"), message(`{"a/b":{"~~1":"x"}}`), "x"},
		"an empty field name":                 {sekali.JSON("/"), message(`{"":"x"}`), "x"},
		"a whole body":                        {sekali.JSON(""), message(` "x" `), "x"},
		"an escape that is really U+FFFD":     {sekali.JSON("/k"), message(`{"k":"a\uFFFDb"}`), "a\uFFFDb"},
		"the broker's id":                     {sekali.MessageID(), message(""), "broker-1"},
		"the second of two":                   {sekali.FirstOf(sekali.Header("k"), sekali.JSON("/id"), sekali.MessageID()), message(`{"id":"e-2"}`), "e-2"},
		"the last when the body is not JSON":  {sekali.FirstOf(sekali.JSON("/id"), sekali.MessageID()), message(`{"id":`), "broker-1"},
		"several parts":                       {sekali.Business(sekali.JSON("/order"), sekali.Literal("paid")), message(`{"order":42}`), "42:paid"},
		"a scope":                             {sekali.Scoped("tenant:1", sekali.Header("k")), message("", "k", "x"), `tenant\:1:x`},
		"a CloudEvent over NATS or HTTP":      {sekali.CloudEvent(), message("", "ce-id", "1", "ce-source", "/shop"), "/shop:1"},
		"a CloudEvent over Kafka":             {sekali.CloudEvent(), message("", "ce_id", "1", "ce_source", "/shop"), "/shop:1"},
		"a CloudEvent over AMQP":              {sekali.CloudEvent(), message("", "cloudEvents:id", "1", "cloudEvents:source", "/shop"), "/shop:1"},
		"a structured CloudEvent":             {sekali.CloudEvent(), message(`{"specversion":"1.0","id":"1","source":"/shop"}`), "/shop:1"},
		"Debezium's outbox":                   {sekali.Debezium(), message(`{}`, "id", "9f1c"), "9f1c"},
		"a UUID in braces, folded":            {sekali.FoldUUID(sekali.Header("k")), message("", "k", "{C0FFEE00-0000-4000-8000-00000000ABCD}"), "c0ffee00-0000-4000-8000-00000000abcd"},
		"a UUID as a URN, folded":             {sekali.FoldUUID(sekali.Header("k")), message("", "k", "urn:UUID:C0FFEE00-0000-4000-8000-00000000ABCD"), "c0ffee00-0000-4000-8000-00000000abcd"},
		"what is no UUID, not folded":         {sekali.FoldUUID(sekali.Header("k")), message("", "k", "C0FFEE00-0000-4000-8000-00000000ABCG"), "C0FFEE00-0000-4000-8000-00000000ABCG"},
		"a UUID, exact where no one folds it": {sekali.Header("k"), message("", "k", "C0FFEE00-0000-4000-8000-00000000ABCD"), "C0FFEE00-0000-4000-8000-00000000ABCD"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.extract(c.m)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestAMessageWithoutAKeyIsANamedError(t *testing.T) {
	cases := map[string]struct {
		extract sekali.KeyFunc
		m       *sekali.Message
	}{
		"no header":              {sekali.Header("k"), message("")},
		"a blank header":         {sekali.Header("k"), message("", "k", " \t")},
		"no field":               {sekali.JSON("/id"), message(`{}`)},
		"null":                   {sekali.JSON("/id"), message(`{"id":null}`)},
		"an empty string":        {sekali.JSON("/id"), message(`{"id":""}`)},
		"no JSON":                {sekali.JSON("/id"), message(`<id>1</id>`)},
		"no body":                {sekali.JSON("/id"), message("")},
		"below a string":         {sekali.JSON("/id/x"), message(`{"id":"1"}`)},
		"past an array":          {sekali.JSON("/0"), message(`[]`)},
		"an index with a zero":   {sekali.JSON("/01"), message(`["a","b"]`)},
		"a missing part":         {sekali.Business(sekali.Literal("x"), sekali.JSON("/id")), message(`{}`)},
		"no part":                {sekali.FirstOf(), message("")},
		"no broker id":           {sekali.MessageID(), &sekali.Message{}},
		"a CloudEvent of no one": {sekali.CloudEvent(), message("", "ce-id", "1")},
		"not of Debezium":        {sekali.Debezium(), message(`{"source":{"name":"x"}}`)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if key, err := c.extract(c.m); !errors.Is(err, sekali.ErrNoKey) {
				t.Errorf("got key %q and error %v, want ErrNoKey", key, err)
			}
		})
	}
}

func TestAKeyThatCouldBeTwoKeysIsAnError(t *testing.T) {
	cases := map[string]struct {
		extract sekali.KeyFunc
		m       *sekali.Message
	}{
		"a header with two values":         {sekali.Header("k"), message("", "k", "a", "k", "b")},
		"bytes that are not UTF-8":         {sekali.JSON("/k"), message("{\"k\":\"a\xff\"}")},
		"half a surrogate pair":            {sekali.JSON("/k"), message(`{"k":"a\ud800"}`)},
		"half a pair beside a real U+FFFD": {sekali.JSON("/k"), message(`{"k":"\ufffd\ud800"}`)},
		"an object":                        {sekali.JSON("/k"), message(`{"k":{}}`)},
		"true":                             {sekali.JSON("/k"), message(`{"k":true}`)},
		"a pointer without a slash":        {sekali.JSON("k"), message(`{"k":"x"}`)},
		"a pointer with a lone tilde":      {sekali.JSON("/~2"), message(`{"~2":"x"}`)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if key, err := c.extract(c.m); err == nil || key != "" {
				t.Errorf("got key %q and no error", key)
			}
		})
	}
}

func TestDifferentPartsNeverMakeOneKey(t *testing.T) {
	lists := [][]string{
		{"a:b", "c"}, {"a", "b:c"}, {"a", "b", "c"}, {`a\`, `b:c`}, {`a\:b`, "c"}, {`a\\`, "b:c"}, {"", "a"}, {"a", ""}, {"a"}, {"", "", "a"},
	}
	seen := map[string][]string{}
	for _, parts := range lists {
		key := sekali.JoinKey(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q both make %q", other, parts, key)
		}
		seen[key] = parts
	}
}

func FuzzJoinKeyKeepsPartsApart(f *testing.F) {
	f.Add("a:b", "c", "a", "b:c")
	f.Add(`\`, ":", `\:`, "")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		if (a != c || b != d) && sekali.JoinKey(a, b) == sekali.JoinKey(c, d) {
			t.Errorf("%q, %q and %q, %q are one key", a, b, c, d)
		}
		if sekali.JoinKey(a, b) == sekali.JoinKey(c) {
			t.Errorf("%q, %q and %q alone are one key", a, b, c)
		}
	})
}

func FuzzJSONPointer(f *testing.F) {
	f.Add("/a/0/~1", []byte(`{"a":[{"/":"x"}]}`))
	f.Add("", []byte(`"\ud83d\ude00"`))
	f.Fuzz(func(t *testing.T, pointer string, body []byte) {
		m := &sekali.Message{Message: broker.Message{Body: bytes.Clone(body)}}
		key, err := sekali.JSON(pointer)(m)
		if err == nil && strings.TrimSpace(key) == "" {
			t.Errorf("a blank key %q without an error", key)
		}
		if !bytes.Equal(m.Body, body) {
			t.Error("the body was changed")
		}
	})
}

func TestDebeziumTellsChangesApartAndRereadOnesNot(t *testing.T) {
	change := func(source, op, rowKey string) string {
		t.Helper()
		m := message(`{"payload":{"op":"` + op + `","source":` + source + `}}`)
		m.OrderingKey = []byte(rowKey)
		key, err := sekali.Debezium()(m)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	base := change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":100,"txId":7,"ts_ms":1,"snapshot":"false","version":"2.5"}`, "u", "1")
	again := change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":100,"txId":7,"ts_ms":2,"snapshot":"last","version":"2.6"}`, "u", "1")
	if base != again {
		t.Errorf("a change read again is another key: %q and %q", base, again)
	}
	for name, other := range map[string]string{
		"another position": change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":101,"txId":7}`, "u", "1"),
		"another table":    change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t2","lsn":100,"txId":7}`, "u", "1"),
		"another row":      change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":100,"txId":7}`, "u", "2"),
		"another deed":     change(`{"connector":"postgresql","name":"shop","db":"d","schema":"s","table":"t","lsn":100,"txId":7}`, "d", "1"),
		"MySQL":            change(`{"connector":"mysql","name":"shop","db":"d","table":"t","server_id":1,"file":"bin.1","pos":4,"row":0}`, "u", "1"),
		"MySQL, next row":  change(`{"connector":"mysql","name":"shop","db":"d","table":"t","server_id":1,"file":"bin.1","pos":4,"row":1}`, "u", "1"),
	} {
		if other == base {
			t.Errorf("%s has the same key", name)
		}
	}
}

func TestFingerprintsSayWhatCountsAsAnotherBody(t *testing.T) {
	same := func(f sekali.FingerprintFunc, a, b string) bool {
		return bytes.Equal(f(message(a)), f(message(b)))
	}
	if same(sekali.BodyFingerprint, `{"a":1,"b":2}`, `{"b":2,"a":1}`) {
		t.Error("BodyFingerprint: fields in another order must be another body")
	}
	if !same(sekali.JSONFingerprint, `{"a":1,"b":[1, 2]}`, ` {"b":[1,2],"a":1}`) {
		t.Error("JSONFingerprint: the order of fields and white space must not count")
	}
	for _, pair := range [][2]string{
		{`{"a":1}`, `{"a":1.0}`},
		{`[1,2]`, `[2,1]`},
		{`{"a":1}`, `{"a":1}{}`},
		{`not`, `json`},
		{"\"\xff\"", "\"\xfe\""},
		{`"\ud800"`, `"\ud801"`},
		{`null`, ``},
	} {
		if same(sekali.JSONFingerprint, pair[0], pair[1]) {
			t.Errorf("JSONFingerprint: %q and %q must be two bodies", pair[0], pair[1])
		}
	}
}
