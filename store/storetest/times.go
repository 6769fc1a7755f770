package storetest

import (
	"time"

	"github.com/sekali/sekali/store"
)

func timeTests[Tx any]() []test[Tx] {
	var tests []test[Tx]
	for database, columns := range timeColumns {
		for _, column := range columns {
			tests = append(tests, test[Tx]{
				name: "processed_at is UTC whatever the session's zone: " + column.definition,
				f:    func(b *bench[Tx]) { processedAt(b, column) },
				on:   databases{database}, empty: true,
			})
		}
	}
	return tests
}

// timeColumn is a definition of processed_at, and the expression for its
// seconds since 1970, if it is in UTC.
type timeColumn struct{ definition, seconds string }

var timeColumns = map[Database][]timeColumn{
	Postgres: {
		{"TIMESTAMPTZ NOT NULL DEFAULT now()", "extract(epoch FROM processed_at)::bigint"},
		{"TIMESTAMP DEFAULT now()", "extract(epoch FROM processed_at AT TIME ZONE 'UTC')::bigint"},
		{"TIMESTAMP(0)", "extract(epoch FROM processed_at AT TIME ZONE 'UTC')::bigint"},
	},
	MySQL: {
		{"TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)", "round(UNIX_TIMESTAMP(processed_at))"},
		{"TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "UNIX_TIMESTAMP(processed_at)"},
		{"DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)", "TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', processed_at)"},
		{"DATETIME", "TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', processed_at)"},
	},
	SQLite: {
		{"TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "CAST(strftime('%s', processed_at) AS INTEGER)"},
		{"DATETIME", "CAST(strftime('%s', processed_at) AS INTEGER)"},
		{"TEXT NOT NULL", "CAST(strftime('%s', processed_at) AS INTEGER)"},
	},
}

// zones are settings of sessions far from UTC, on both sides.
func (b *bench[Tx]) zones() []map[string]string {
	switch b.h.Database {
	case Postgres: // the signs of POSIX are the other way round
		return []map[string]string{nil, {"timezone": "Etc/GMT-7"}, {"timezone": "Etc/GMT+8"}}
	case MySQL:
		return []map[string]string{nil, {"time_zone": "'+07:00'"}, {"time_zone": "'-08:00'"}}
	}
	return []map[string]string{nil} // SQLite knows no zones
}

// slack allows for columns that round to the second.
const slack = 2 * time.Second

func processedAt[Tx any](b *bench[Tx], column timeColumn) {
	b.makeTable("consumer_name VARCHAR(100)", "message_key VARCHAR(200)", "processed_at "+column.definition)
	for _, zone := range b.zones() {
		c := b.with(zone)
		before := time.Now()
		b.commit(c, b.begin(c, claimOf("one"), store.Fresh))
		b.commit(c, b.begin(c, claimOf("two", "three"), store.Fresh, store.Fresh))
		b.ownTx(c, true, func(tx Tx) {
			if _, err := c.Store.Claim(b.ctx, tx, claimOf("four")); err != nil {
				b.t.Fatal(err)
			}
		})
		after := time.Now()
		for _, of := range []string{"min", "max"} {
			seconds := b.number("SELECT " + of + "(" + column.seconds + ") FROM processed_messages")
			at := time.Unix(int64(seconds), 0)
			if at.Before(before.Add(-slack)) || at.After(after.Add(slack)) {
				b.t.Errorf("with %v processed_at is %v off", zone, at.Sub(before).Round(time.Second))
			}
		}
		if n := b.number("SELECT count(*) FROM processed_messages WHERE processed_at IS NULL"); n != 0 {
			b.t.Errorf("%d rows have no time", n)
		}
		b.run("DELETE FROM processed_messages")
	}
}

// makeTable makes processed_messages by hand, with key columns that compare
// byte for byte.
func (b *bench[Tx]) makeTable(columns ...string) {
	b.t.Helper()
	b.createWith(b.byteForByte(), columns...)
}

// byteForByte are options of a table whose text compares byte for byte.
func (b *bench[Tx]) byteForByte() string {
	if b.h.Database != MySQL {
		return ""
	}
	return " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */"
}

func (b *bench[Tx]) createWith(options string, columns ...string) {
	b.t.Helper()
	statement := "CREATE TABLE processed_messages ("
	for _, c := range columns {
		statement += c + ", "
	}
	b.run(statement + "PRIMARY KEY (consumer_name, message_key))" + options)
}
