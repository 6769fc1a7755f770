package storetest

import (
	"strings"
	"time"

	"github.com/sekali/sekali/store"
)

func ageTests[Tx any]() []test[Tx] {
	tests := []test[Tx]{{name: "a row without a time has no age", f: noAge[Tx], empty: true}}
	for database, columns := range timeColumns {
		for _, column := range columns {
			tests = append(tests, test[Tx]{
				name: "a row's age is told by the database's clock: " + column.definition,
				f:    func(b *bench[Tx]) { agesOfRows(b, column) },
				on:   databases{database}, empty: true,
			})
		}
	}
	return tests
}

func (b *bench[Tx]) ages(c Client[Tx], raw ...string) []time.Duration {
	b.t.Helper()
	ager, ok := store.As[store.Ager](c.Store)
	if !ok {
		b.t.Fatalf("a %T is no store.Ager", c.Store)
	}
	ages, err := ager.Ages(b.ctx, claimOf(raw...))
	b.ok(err)
	if len(ages) != len(raw) {
		b.t.Fatalf("%d ages for %d keys", len(ages), len(raw))
	}
	return ages
}

// hourAgo moves every row's time back by an hour.
func (b *bench[Tx]) hourAgo() {
	b.run("UPDATE processed_messages SET processed_at = " + map[Database]string{
		Postgres: "processed_at - INTERVAL '1 hour'", MySQL: "processed_at - INTERVAL 1 HOUR",
		SQLite: "strftime('%Y-%m-%d %H:%M:%f', processed_at, '-1 hour')",
	}[b.h.Database])
}

func agesOfRows[Tx any](b *bench[Tx], column timeColumn) {
	b.makeTable("consumer_name VARCHAR(100)", "message_key VARCHAR(200)", "processed_at "+column.definition)
	for _, zone := range b.zones() {
		c := b.with(zone)
		long := strings.Repeat("k", 300)
		b.commit(c, b.begin(c, claimOf("one", "ONE", long), store.Fresh, store.Fresh, store.Fresh))
		for _, past := range []time.Duration{0, time.Hour} {
			for i, age := range b.ages(c, long, "one", "none", "ONE") {
				switch {
				case i == 2 && age != 0:
					b.t.Errorf("with %v a key without a row is %v old", zone, age)
				case i != 2 && (age <= 0 || age < past-slack || age > past+Patience):
					b.t.Errorf("with %v a row that is %v old is said to be %v old", zone, past, age)
				}
			}
			b.hourAgo()
		}
		b.run("DELETE FROM processed_messages")
	}
}

func noAge[Tx any](b *bench[Tx]) {
	b.makeTable("consumer_name VARCHAR(100)", "message_key VARCHAR(200)", "processed_at TIMESTAMP NULL")
	b.run("INSERT INTO processed_messages (consumer_name, message_key) VALUES ('" + consumer + "', 'one')")
	if ages := b.ages(b.One, "one"); ages[0] != 0 {
		b.t.Errorf("it is %v old", ages[0])
	}
}
