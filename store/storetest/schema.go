package storetest

import (
	"errors"
	"slices"
	"strings"

	"github.com/sekali/sekali/store"
)

func schemaTests[Tx any]() []test[Tx] {
	tests := []test[Tx]{
		{name: "the tables of sekali migrate pass the check", f: migratedPasses[Tx]},
		{name: "a missing table is an error that says how to make it", f: missingTable[Tx], empty: true},
		{name: "a table that appears later is found", f: appearsLater[Tx], empty: true},
		{name: "a table that vanishes is an error that says so", f: vanishes[Tx]},
		{name: "the three columns made by hand work", f: threeColumns[Tx], empty: true},
	}
	for _, u := range unfitTables {
		tests = append(tests, test[Tx]{
			name: "refused: " + u.name, empty: true, on: u.on,
			f: func(b *bench[Tx]) { refusedTable(b, u) },
		})
	}
	return tests
}

func migratedPasses[Tx any](b *bench[Tx]) {
	for range 2 {
		if err := b.One.Store.Check(b.ctx); err != nil {
			b.t.Error(err)
		}
	}
	b.wantIdle()
}

// wantSchemaError fails unless err is a SchemaError that names the mend, and
// returns it.
func (b *bench[Tx]) wantSchemaError(doing string, err error) *store.SchemaError {
	b.t.Helper()
	var schema *store.SchemaError
	if !errors.As(err, &schema) {
		b.t.Fatalf("%s: the error is %v, want a SchemaError", doing, err)
	}
	b.wantClass(b.One, err, store.ClassMisconfigured)
	if schema.Table == "" || schema.Cause == "" || schema.Mend == "" {
		b.t.Errorf("%s: the error lacks the thing, the cause or the mend: %q", doing, schema)
	}
	return schema
}

func missingTable[Tx any](b *bench[Tx]) {
	tx, _, err := b.One.Store.Begin(b.ctx, claimOf("order-42"))
	if err == nil {
		_ = b.One.Store.Rollback(b.ctx, tx)
	}
	b.wantSchemaError("begin", err)
	_, err = b.One.Store.Seen(b.ctx, claimOf("order-42"))
	b.wantSchemaError("seen", err)
	b.ownTx(b.One, false, func(tx Tx) {
		_, err := b.One.Store.Claim(b.ctx, tx, claimOf("order-42"))
		b.wantSchemaError("claim", err)
	})
	schema := b.wantSchemaError("check", b.One.Store.Check(b.ctx))
	if !strings.Contains(schema.Mend, "sekali migrate up") || !strings.Contains(schema.Error(), schema.SQL) {
		b.t.Errorf("the error does not name `sekali migrate up` and its SQL: %q", schema)
	}
	b.mend(schema)
	b.commit(b.One, b.begin(b.One, claimOf("order-42"), store.Fresh))
	b.wantState("order-42", store.Duplicate)
	b.wantIdle()
}

// mend runs the SQL of an error as it is printed, after which the check must
// pass and keys must be apart.
func (b *bench[Tx]) mend(schema *store.SchemaError) {
	b.t.Helper()
	if strings.TrimSpace(schema.SQL) == "" {
		b.t.Fatalf("the error has no SQL: %v", schema)
	}
	for statement := range strings.SplitSeq(schema.SQL, ";\n") {
		b.run(statement)
	}
	if err := b.One.Store.Check(b.ctx); err != nil {
		b.t.Fatalf("after its SQL was run: %v", err)
	}
	apart := claimOf("apart", "APART", "apart ", "ápart", strings.Repeat("k", 200))
	apart.Consumer = strings.Repeat("n", 100)
	b.rollback(b.One, b.begin(b.One, apart, make([]store.State, len(apart.Keys))...))
}

func appearsLater[Tx any](b *bench[Tx]) {
	schema := b.wantSchemaError("check", b.One.Store.Check(b.ctx))
	b.wantSchemaError("check", b.Two.Store.Check(b.ctx))
	b.mend(schema)
	// The other process finds it too, without a check.
	b.commit(b.Two, b.begin(b.Two, claimOf("order-42"), store.Fresh))
	b.wantRows(1)
}

func vanishes[Tx any](b *bench[Tx]) {
	b.commit(b.One, b.begin(b.One, claimOf("order-42"), store.Fresh))
	b.run("DROP TABLE processed_messages")
	tx, _, err := b.One.Store.Begin(b.ctx, claimOf("order-43"))
	if err == nil {
		_ = b.One.Store.Rollback(b.ctx, tx)
	}
	b.wantSchemaError("begin", err)
	_, err = b.One.Store.Seen(b.ctx, claimOf("order-43"))
	b.wantSchemaError("seen", err)
	b.wantIdle()
}

func threeColumns[Tx any](b *bench[Tx]) {
	b.createWith("", "consumer_name VARCHAR(100)", "message_key VARCHAR(200)", "processed_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP")
	if b.h.Database == MySQL {
		// Its usual collations fold case; the error has the ALTER.
		b.mend(b.wantSchemaError("check", b.One.Store.Check(b.ctx)))
	} else if err := b.One.Store.Check(b.ctx); err != nil {
		b.t.Fatal(err)
	}
	raw := slices.DeleteFunc(differentKeys(), func(s string) bool { return len(s) > 1000 })
	b.commit(b.One, b.begin(b.One, claimOf(raw...), make([]store.State, len(raw))...))
	b.wantRows(len(raw))
	b.wantState("order-42", store.Duplicate)
}

// unfitTable is a table that would lose messages or take them twice.
type unfitTable struct {
	name       string
	on         databases
	statements []string
	mends      bool // its SQL mends it
}

const threeRest = ", processed_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (consumer_name, message_key))"

// inBytes are options of a MySQL table that compares byte for byte.
const inBytes = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin *//*M! utf8mb4_nopad_bin */"

var unfitTables = []unfitTable{
	{
		name: "PostgreSQL: a narrow key", on: databases{Postgres}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(100)" + threeRest},
	}, {
		name: "PostgreSQL: a narrow consumer", on: databases{Postgres}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(50), message_key VARCHAR(200)" + threeRest},
	}, {
		name: "PostgreSQL: a padding type", on: databases{Postgres}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key CHAR(200)" + threeRest},
	}, {
		name: "PostgreSQL: a nondeterministic collation", on: databases{Postgres}, mends: true,
		statements: []string{
			"CREATE COLLATION folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
			"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200) COLLATE folding" + threeRest,
		},
	}, {
		name: "PostgreSQL: a table that a crash empties", on: databases{Postgres}, mends: true,
		statements: []string{"CREATE UNLOGGED TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest},
	}, {
		name: "PostgreSQL: a primary key that is checked at COMMIT", on: databases{Postgres},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200)," +
			" processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key) DEFERRABLE INITIALLY DEFERRED)"},
	}, {
		name: "MySQL: a collation that folds case", on: databases{MySQL}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest +
			" DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"},
	}, {
		name: "MySQL: a collation that pads", on: databases{MySQL}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest +
			" DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"},
	}, {
		name: "MySQL: a character set without most characters", on: databases{MySQL}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest +
			" DEFAULT CHARACTER SET latin1 COLLATE latin1_bin"},
	}, {
		name: "MySQL: a narrow key", on: databases{MySQL}, mends: true,
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(100)" + threeRest + inBytes},
	}, {
		name: "MySQL: an engine without transactions", on: databases{MySQL},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(50), message_key VARCHAR(100)" + threeRest +
			" ENGINE=MyISAM DEFAULT CHARACTER SET utf8mb4"},
	}, {
		name: "SQLite: a collation that folds case", on: databases{SQLite},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200) COLLATE NOCASE" + threeRest},
	}, {
		name: "SQLite: a collation that pads", on: databases{SQLite},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100) COLLATE RTRIM, message_key VARCHAR(200)" + threeRest},
	}, {
		name: "SQLite: a type that turns text into numbers", on: databases{SQLite},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key NUMERIC" + threeRest},
	}, {
		name: "no primary key", on: databases{Postgres, MySQL, SQLite},
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200), processed_at TIMESTAMP)"},
	}, {
		name: "a primary key of the message alone",
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200) PRIMARY KEY," +
			" processed_at TIMESTAMP)"},
	}, {
		name: "a primary key with another column",
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200), instance INT DEFAULT 1," +
			" processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key, instance))"},
	}, {
		name:       "no time",
		statements: []string{"CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200), PRIMARY KEY (consumer_name, message_key))"},
	}, {
		name: "a view",
		statements: []string{
			"CREATE TABLE elsewhere (consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest,
			"CREATE VIEW processed_messages AS SELECT * FROM elsewhere",
		},
	}, {
		name: "a further column that must have a value",
		statements: []string{"CREATE TABLE processed_messages (tenant VARCHAR(10) NOT NULL," +
			" consumer_name VARCHAR(100), message_key VARCHAR(200)" + threeRest},
	},
}

func refusedTable[Tx any](b *bench[Tx], u unfitTable) {
	b.run(u.statements...)
	schema := b.wantSchemaError("check", b.One.Store.Check(b.ctx))
	tx, _, err := b.Two.Store.Begin(b.ctx, claimOf("order-42"))
	if err == nil {
		_ = b.Two.Store.Rollback(b.ctx, tx)
	}
	b.wantSchemaError("begin", err)
	b.wantIdle()
	if u.mends {
		b.mend(schema)
	}
}
