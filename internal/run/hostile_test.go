package run_test

import (
	"strings"
	"testing"

	"github.com/sekali/sekali/broker"
)

// publishRaw publishes with any bytes as key and body.
func (s *shop) publishRaw(key, body []byte) {
	s.t.Helper()
	m := broker.Message{Topic: "orders", Body: body}
	if key != nil {
		m.Headers = broker.Headers{{Name: "key", Value: key}}
	}
	if err := s.broker.Publish(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

// Whatever comes is processed, or becomes a dead letter; what is around it goes
// on, and everything has its effect once.
func TestHostileMessagesHarmNobodyElse(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		long := []byte(strings.Repeat("k", 300))
		good := []byte(`{"type":"paid","n":1,"sku":"KOPI"}`)
		hostile := []struct{ key, body []byte }{
			{[]byte("not json"), []byte("\x00\xff")},
			{[]byte("null"), []byte("null")},
			{[]byte("no body"), nil},
			{[]byte("empty"), []byte{}},
			{[]byte("deep"), []byte(`{"type":"paid","n":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}`)},
			{[]byte("wrong types"), []byte(`{"type":["paid"],"n":"x","sku":7}`)},
			{[]byte("text for a number"), []byte(`{"type":"paid","n":"x","sku":"KOPI"}`)},
			{[]byte("huge"), []byte(`{"type":"paid","n":1e400,"sku":"KOPI"}`)},
			{[]byte("huger"), []byte(`{"type":"paid","n":` + strings.Repeat("9", 5000) + `,"sku":"KOPI"}`)},
			{[]byte("nul in a text"), []byte(`{"type":"paid","n":1,"sku":"\u0000"}`)},
			{[]byte("half a surrogate"), []byte(`{"type":"paid","n":1,"sku":"\ud800"}`)},
			{nil, good},
			{[]byte("  "), good},
		}
		for range 2 {
			for _, m := range hostile {
				s.publishRaw([]byte("good"), good)
				s.publishRaw(m.key, m.body)
			}
			s.publishRaw(long, good)
			s.publishRaw([]byte("big"), []byte(`{"type":"paid","n":1,"sku":"KOPI","note":"`+strings.Repeat("x", 10<<20)+`"}`))
			s.publishRaw([]byte("twice"), []byte(`{"type":"sent","n":900,"sku":"KOPI","type":"paid","n":1}`))
		}
		for _, key := range []string{"nul\x00", "nul", "bytes\xff", "bytes\xfe"} {
			s.publishRaw([]byte(key), good)
			s.publishRaw([]byte(key), good)
		}
		seen := strings.Join(s.run(`
when: body.type == "paid"
handle:
  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
    rows: 1
`, nil), "\n")
		// good, long, big, twice, and the four that differ by one byte. Wrong types
		// are not "paid", which is recorded; each message without a key is a letter
		// of its own. To SQLite a text is the number 0.
		processed, dead := "9", "14"
		if strings.HasPrefix(s.db.URL, "sqlite") {
			processed, dead = "10", "13"
		}
		equal(t, s.texts(`SELECT CAST(CAST(quantity AS DECIMAL(10)) AS CHAR(10)) FROM stock WHERE sku = 'KOPI'`), []string{pad(s, "992")})
		equal(t, s.texts(`SELECT CAST(COUNT(*) AS CHAR(10)) FROM processed_messages`), []string{pad(s, processed)})
		equal(t, s.texts(`SELECT CAST(COUNT(*) AS CHAR(10)) FROM dead_letters`), []string{pad(s, dead)})
		if strings.Contains(seen, "interrupted") {
			t.Errorf("a message was taken for a database that is not there:\n%s", seen)
		}
	})
}
