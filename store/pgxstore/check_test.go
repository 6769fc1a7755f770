//go:build !fast

package pgxstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
)

func TestATableMadeByHandIsFit(t *testing.T) {
	for name, ddl := range map[string]string{
		"three columns":  schemaTable,
		"as in the text": createdBySekali,
		"text columns":   `CREATE TABLE processed_messages (consumer_name TEXT, message_key TEXT, processed_at TIMESTAMPTZ, PRIMARY KEY (message_key, consumer_name))`,
		"wider and more": `CREATE TABLE processed_messages (consumer_name VARCHAR(255), message_key VARCHAR(255), processed_at TIMESTAMP(3), host TEXT NOT NULL DEFAULT 'h', n INT GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (consumer_name, message_key) INCLUDE (host))`,
		"partitioned":    `CREATE TABLE processed_messages (consumer_name VARCHAR(100), message_key VARCHAR(200), processed_at TIMESTAMP, PRIMARY KEY (consumer_name, message_key)) PARTITION BY RANGE (message_key); CREATE TABLE p PARTITION OF processed_messages DEFAULT`,
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, ddl)
			s := pgxstore.New(pool)
			if err := s.Check(context.Background()); err != nil {
				t.Fatal(err)
			}
			commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
			rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
		})
	}
}

const createdBySekali = `CREATE TABLE processed_messages (
    consumer_name VARCHAR(100) COLLATE "C" NOT NULL,
    message_key   VARCHAR(200) COLLATE "C" NOT NULL,
    processed_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_name, message_key));`

func TestAMissingTableIsAnErrorThatMendsIt(t *testing.T) {
	pool := newPool(t, "")
	s := pgxstore.New(pool)
	ctx := context.Background()
	_, _, beginErr := s.Begin(ctx, claimOf("k"))
	_, seenErr := s.Seen(ctx, claimOf("k"))
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, claimErr := s.Claim(ctx, tx, claimOf("k"))
	mustExec(t, tx, "SELECT 1") // not even aborted
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	var schema *store.SchemaError
	for _, err := range []error{beginErr, seenErr, claimErr, s.Check(ctx)} {
		if !errors.As(err, &schema) || s.Classify(err) != store.ClassMisconfigured {
			t.Fatalf("the error is %v", err)
		}
		if !strings.Contains(err.Error(), "sekali migrate up") || schema.SQL != createdBySekali {
			t.Errorf("the error does not tell how to mend it: %v", err)
		}
	}
	mustExec(t, pool, schema.SQL)
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	mustExec(t, pool, "ALTER TABLE processed_messages RENAME TO old")
	_, _, err = s.Begin(ctx, claimOf("l"))
	if !errors.As(err, &schema) || schema.SQL != createdBySekali {
		t.Fatalf("the error is %v", err)
	}
	mustExec(t, pool, "ALTER TABLE old RENAME TO processed_messages")
	rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
	wantKeys(t, pool, 1)
}

func TestAnUnfitTableIsRefusedBeforeAnythingIsClaimed(t *testing.T) {
	table := func(columns string) string { return "CREATE TABLE processed_messages (" + columns + ")" }
	const primary, at = ", PRIMARY KEY (consumer_name, message_key)", ", processed_at TIMESTAMP"
	const names, keys = "consumer_name VARCHAR(100)", ", message_key VARCHAR(200)"
	insensitive := `CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); `
	for name, ddl := range map[string]string{
		"consumer too narrow": table("consumer_name VARCHAR(99)" + keys + at + primary),
		"key too narrow":      table(names + ", message_key VARCHAR(199)" + at + primary),
		"padded":              table(names + ", message_key CHAR(200)" + at + primary),
		"bytes":               table(names + ", message_key BYTEA" + at + primary),
		"own type":            "CREATE DOMAIN text200 AS TEXT; " + table(names+", message_key text200"+at+primary),
		"a name borrowed":     `CREATE DOMAIN "text" AS pg_catalog.text; SELECT set_config('search_path', current_schema || ', pg_catalog', false); ` + table(names+", message_key text"+at+primary),
		"case-folding":        insensitive + table(names+", message_key VARCHAR(200) COLLATE ci"+at+primary),
		"consumer folded":     insensitive + table(names+" COLLATE ci"+keys+at+primary),
		"no key column":       table(names + at + ", PRIMARY KEY (consumer_name)"),
		"no time":             table(names + keys + primary),
		"time as text":        table(names + keys + ", processed_at TEXT" + primary),
		"no primary key":      table(names + keys + at),
		"another primary key": table(names + keys + at + ", PRIMARY KEY (consumer_name, message_key, processed_at)"),
		"only unique":         table(names + keys + at + ", UNIQUE (consumer_name, message_key)"),
		"deferred":            table(names + keys + at + primary + " DEFERRABLE"),
		"needs more":          table(names + keys + at + ", host TEXT NOT NULL" + primary),
		"unlogged":            "CREATE UNLOGGED " + strings.TrimPrefix(table(names+keys+at+primary), "CREATE "),
		"a view":              "CREATE VIEW processed_messages AS SELECT 'a' AS consumer_name, 'b' AS message_key, now() AS processed_at",
		"fingerprint as text": table(names + keys + at + ", fingerprint TEXT" + primary),
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, ddl)
			s := pgxstore.New(pool)
			var schema *store.SchemaError
			if err := s.Check(context.Background()); !errors.As(err, &schema) {
				t.Fatalf("Check = %v", err)
			}
			if schema.Cause == "" || schema.Mend == "" || schema.Table != "processed_messages" {
				t.Errorf("the error lacks something: %v", schema)
			}
			if _, _, err := s.Begin(context.Background(), claimOf("k")); !errors.As(err, &schema) {
				t.Errorf("Begin = %v", err)
			}
			wantIdle(t, pool)
		})
	}
}

func TestFingerprintsNeedTheirColumnAndFindItWhenItComes(t *testing.T) {
	pool := newPool(t, schemaTable)
	s := pgxstore.New(pool)
	ctx := context.Background()
	commit(t, s, begin(t, s, claimOf("old"), store.Fresh))
	var schema *store.SchemaError
	if _, _, err := s.Begin(ctx, fingerprinted(claimOf("k"), 1)); !errors.As(err, &schema) {
		t.Fatalf("the error is %v", err)
	}
	if _, err := s.Seen(ctx, fingerprinted(claimOf("k"), 1)); !errors.As(err, &schema) {
		t.Fatalf("the error is %v", err)
	}
	mustExec(t, pool, schema.SQL)
	commit(t, s, begin(t, s, fingerprinted(claimOf("k", "old"), 1), store.Fresh, store.Duplicate))
	rollBack(t, s, begin(t, s, fingerprinted(claimOf("k", "old"), 2), store.Conflict, store.Duplicate))
}

func TestTablesCanHaveOtherNamesEvenKeyWords(t *testing.T) {
	pool := newPool(t, strings.ReplaceAll(schemaTable, "processed_messages", `"order"`))
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	s := pgxstore.New(pool, pgxstore.WithTables(store.Tables{ProcessedMessages: "order"}))
	commit(t, s, begin(t, s, claimOf("k"), store.Fresh))
	elsewhere := newPoolBeside(t, pool, param("search_path", "public"))
	s = pgxstore.New(elsewhere, pgxstore.WithTables(store.Tables{Schema: schema, ProcessedMessages: "order"}))
	rollBack(t, s, begin(t, s, claimOf("k"), store.Duplicate))
	if got := value[int](t, pool, `SELECT count(*) FROM "order"`); got != 1 {
		t.Errorf("%d rows", got)
	}
	bad := pgxstore.New(pool, pgxstore.WithTables(store.Tables{ProcessedMessages: `x"; DROP TABLE stock; --`}))
	if err := bad.Check(context.Background()); err == nil {
		t.Error("a bad name must be refused")
	}
	if _, _, err := bad.Begin(context.Background(), claimOf("k")); err == nil {
		t.Error("a bad name must be refused")
	}
}

func TestARoleThatMayNotWriteIsToldAtOnce(t *testing.T) {
	pool := newPool(t, schemaTable)
	reader := pgxstore.New(newPoolBeside(t, pool, param("role", "pg_read_all_data")))
	err := reader.Check(context.Background())
	var schema *store.SchemaError
	if !errors.As(err, &schema) || !strings.HasPrefix(schema.SQL, "GRANT ") {
		t.Fatalf("the error is %v", err)
	}
	mustExec(t, pool, schema.SQL)
	if err := reader.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
}
