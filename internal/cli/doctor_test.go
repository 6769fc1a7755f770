package cli_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/mysql"
	"github.com/sekali/sekali/store/sqlstore/postgres"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// patient is a database on which the doctor is tried.
type patient struct {
	t *testing.T
	*dbtest.DB
	store    *sqlstore.Store
	settings map[string]string // of the URL that the doctor is given
	args     []string
}

func (p *patient) run(statements ...string) {
	p.t.Helper()
	for _, s := range statements {
		if _, err := p.SQL.ExecContext(p.t.Context(), s); err != nil {
			p.t.Fatalf("%s: %v", s, err)
		}
	}
}

func (p *patient) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// set gives the doctor's sessions a setting.
func (p *patient) set(name, value string) { p.settings[name] = value }

// shadow has the doctor's sessions find another function than PostgreSQL's own.
func (p *patient) shadow(function, as string) {
	p.t.Helper()
	p.run("CREATE FUNCTION " + function + " LANGUAGE sql AS '" + as + "'")
	p.set("search_path", p.Schema+",pg_catalog")
}

// pooled has the doctor come by way of a pooler in transaction mode.
func (p *patient) pooled() {
	p.t.Helper()
	db := *p.DB
	db.URL = p.Pooler()
	p.DB = &db
}

// ago moves a table's times into the past.
func (p *patient) ago(table, column string) {
	p.t.Helper()
	p.run("UPDATE " + table + " SET " + column + " = " + map[migrate.Dialect]string{
		migrate.Postgres: column + " - interval '1 hour'",
		migrate.MySQL:    column + " - INTERVAL 1 HOUR",
		migrate.SQLite:   "strftime('%Y-%m-%d %H:%M:%f', " + column + ", '-1 hour')",
	}[p.Dialect])
}

// healthy fills a database as consumers do that have nothing to complain of.
func (p *patient) healthy() {
	p.t.Helper()
	ctx := p.t.Context()
	for _, consumer := range []string{"stock", "courier"} {
		tx, _, err := p.store.Begin(ctx, store.Claim{Consumer: consumer, Keys: []store.Key{{Raw: "order-1"}}})
		p.ok(err)
		p.ok(p.store.Commit(ctx, tx))
		p.ok(p.store.Stats().Add(ctx, consumer, store.Counts{Processed: 1, Redelivered: 1}))
	}
	letter := p.letter("order-2")
	p.ok(p.store.DeadLetters().(deadletter.Desk).Discard(ctx, letter, deadletter.Decision{By: "ayu"}))
	p.effect("order-1", effect.Succeeded)
	p.effect("order-2", effect.Unknown) // at this moment
	p.event("published")
	p.run("UPDATE outbox_messages SET status = 'published'")
	p.event("pending")
}

// letter writes an open dead letter.
func (p *patient) letter(key string) (id int64) {
	p.t.Helper()
	letters := p.store.DeadLetters()
	p.ok(letters.Put(p.t.Context(), deadletter.Letter{Consumer: "stock", Key: key, Reason: deadletter.Exhausted, Message: broker.Message{Body: []byte("b")}}))
	list, err := letters.List(p.t.Context(), deadletter.Filter{Key: key})
	p.ok(err)
	return list[0].ID
}

func (p *patient) effect(key string, end effect.State) {
	p.t.Helper()
	row, _, err := p.store.Effects().Start(p.t.Context(), effect.ID{Consumer: "courier", MessageKey: key, Name: "label"}, key, 0)
	p.ok(err)
	if end != effect.Started {
		p.ok(p.store.Effects().End(p.t.Context(), row, end, []byte("1"), "no answer"))
	}
}

func (p *patient) event(id string) {
	p.t.Helper()
	tx, err := p.SQL.BeginTx(p.t.Context(), nil)
	p.ok(err)
	p.ok(p.store.Outbox().Add(p.t.Context(), tx, []outbox.Row{{MessageID: id, Topic: "orders"}}, false))
	p.ok(tx.Commit())
}

type plant = func(*patient)

// sqls plants by statements.
func sqls(statements ...string) plant { return func(p *patient) { p.run(statements...) } }

func setting(name, value string) plant { return func(p *patient) { p.set(name, value) } }

func args(args ...string) plant { return func(p *patient) { p.args = args } }

// fault is something that the doctor must find.
type fault struct {
	name string
	// all plants it on every database; or each on its own. cannot says why there
	// is none.
	all                     plant
	postgres, mysql, sqlite plant
	cannot                  map[migrate.Dialect]string
	// find is the finding: its severity and check, and a part of its text. Where
	// a database sees it in another way, that is in other.
	find, text string
	other      map[migrate.Dialect]string
}

const (
	pg   = migrate.Postgres
	my   = migrate.MySQL
	lite = migrate.SQLite
)

// remade is SQLite's processed_messages, made anew.
func remade(columns string) plant {
	return sqls("DROP TABLE processed_messages", "CREATE TABLE processed_messages ("+columns+")",
		"CREATE INDEX processed_messages_processed_at ON processed_messages (processed_at)")
}

var faults = []fault{
	{name: "processed_messages is missing", find: "error schema", text: "does not exist", all: sqls("DROP TABLE processed_messages")},
	{name: "a table beside it is missing", find: "warning schema", text: "missing", all: sqls("DROP TABLE dead_letters")},
	{
		name: "a table beside it lacks a column", find: "warning schema", text: "lacks a column", all: sqls("ALTER TABLE dead_letters DROP COLUMN copies"),
		other: map[migrate.Dialect]string{lite: "no such column: copies"},
	},
	{
		name: "a key column folds letter case", find: "error schema", text: "different bytes",
		postgres: sqls("CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
			"ALTER TABLE processed_messages ALTER COLUMN message_key TYPE VARCHAR(200) COLLATE folded"),
		mysql: sqls("ALTER TABLE processed_messages MODIFY message_key VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"),
		sqlite: remade("consumer_name VARCHAR(100) NOT NULL, message_key VARCHAR(200) COLLATE NOCASE NOT NULL, processed_at TIMESTAMP, fingerprint BLOB," +
			" PRIMARY KEY (consumer_name, message_key)"),
	},
	{
		name: "a key column is narrow", find: "error schema", text: "narrower than 200",
		postgres: sqls(`ALTER TABLE processed_messages ALTER COLUMN message_key TYPE VARCHAR(50) COLLATE "C"`),
		mysql:    sqls("ALTER TABLE processed_messages MODIFY message_key VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL"),
		cannot:   map[migrate.Dialect]string{lite: "a width is a word to SQLite: every column takes every key"},
	},
	{
		name: "there is no primary key", find: "error schema", text: "primary key is not",
		postgres: sqls("ALTER TABLE processed_messages DROP CONSTRAINT processed_messages_pkey"),
		mysql:    sqls("ALTER TABLE processed_messages DROP PRIMARY KEY"),
		sqlite:   remade("consumer_name VARCHAR(100) NOT NULL, message_key VARCHAR(200) NOT NULL, processed_at TIMESTAMP, fingerprint BLOB"),
	},
	{
		name: "the table does not outlive a crash, or has no transactions", find: "error schema", text: "unlogged",
		postgres: sqls("ALTER TABLE processed_messages SET UNLOGGED"),
		mysql:    sqls("ALTER TABLE processed_messages ENGINE=Aria"),
		other:    map[migrate.Dialect]string{my: "no transactions"},
		cannot:   map[migrate.Dialect]string{lite: "a journal is a file's: sekali's own sessions have one"},
	},
	{
		name: "nothing can be written", find: "error writable", text: "read_only is",
		postgres: setting("default_transaction_read_only", "on"),
		mysql:    setting("tx_read_only", "1"),
		cannot:   map[migrate.Dialect]string{lite: "a file that may not be written to is refused when it is opened"},
	},
	{
		name: "the server is a replica", find: "error writable", text: "read replica",
		postgres: func(p *patient) { p.shadow("pg_is_in_recovery() RETURNS boolean", "SELECT true") },
		cannot:   map[migrate.Dialect]string{my: "read_only is the server's: it would stop everybody's tests", lite: "it has no replicas"},
	},
	{
		name: "a commit may be lost", find: "warning durability", text: "last commits",
		postgres: setting("synchronous_commit", "off"),
		cannot: map[migrate.Dialect]string{
			my:   "the setting is the server's: see the unit test of package mysql",
			lite: "sekali's own sessions are durable: see the suite of stores",
		},
	},
	{
		name: "transactions see what is not committed, or get in each other's way", find: "warning isolation", text: "serializable",
		postgres: setting("default_transaction_isolation", "serializable"),
		mysql:    setting("tx_isolation", "'SERIALIZABLE'"),
		cannot:   map[migrate.Dialect]string{lite: "it has one isolation"},
	},
	{
		name: "transactions see what is not committed", find: "error isolation", text: "have not committed",
		mysql:  setting("tx_isolation", "'READ-UNCOMMITTED'"),
		cannot: map[migrate.Dialect]string{pg: "its read uncommitted is read committed", lite: "it has one isolation"},
	},
	{
		name: "a pooler in transaction mode is between", find: "warning pooler", text: "transaction mode",
		postgres: func(p *patient) {
			p.pooled()
			p.set("default_query_exec_mode", "exec")
		},
		cannot: map[migrate.Dialect]string{my: "there is no pooler for it here: the code is PostgreSQL's", lite: "it has no server"},
	},
	{
		name: "a pooler in transaction mode is between, and statements are prepared", find: "error pooler", text: "in the wrong one",
		postgres: func(p *patient) { p.pooled() },
		cannot:   map[migrate.Dialect]string{my: "poolers for it prepare by themselves", lite: "it has no server"},
	},
	{
		name: "the pool is smaller than the workers", find: "warning pool", text: "2 connections at most for 8 workers",
		postgres: func(p *patient) {
			p.set("pool_max_conns", "2")
			p.args = []string{"--workers", "8"}
		},
		cannot: map[migrate.Dialect]string{my: "its URL sets no limit: see the test of Diagnose", lite: "its URL sets no limit"},
	},
	{
		name: "the server takes fewer connections than there are workers", find: "error connections", text: "100000 workers",
		postgres: func(p *patient) {
			p.set("pool_max_conns", "100000")
			p.args = []string{"--workers", "100000"}
		},
		mysql:  args("--workers", "100000"),
		cannot: map[migrate.Dialect]string{lite: "it has no server"},
	},
	{
		name: "the database's clock is behind", find: "error clock", text: "behind",
		postgres: func(p *patient) {
			p.shadow("clock_timestamp() RETURNS timestamptz", "SELECT pg_catalog.clock_timestamp() - interval ''1 hour''")
		},
		mysql:  setting("timestamp", fmt.Sprint(time.Now().Add(-time.Hour).Unix())),
		cannot: map[migrate.Dialect]string{lite: "its clock is the process's own"},
	},
	{name: "rows are kept shorter than messages", find: "error retention", text: "kept for 2 days, and the broker", all: args("--retention", "48h", "--broker-retention", "7d")},
	{name: "messages are kept for ever", find: "warning retention", text: "for ever", all: args("--retention", "30d", "--broker-retention", "unlimited")},
	{
		name: "the index on the time is missing", find: "warning index", text: "no index on processed_at",
		postgres: sqls("DROP INDEX processed_messages_processed_at"),
		mysql:    sqls("DROP INDEX processed_messages_processed_at ON processed_messages"),
		sqlite:   sqls("DROP INDEX processed_messages_processed_at"),
	},
	{
		name: "most of the table is empty", find: "warning bloat", text: "of it is empty",
		postgres: sqls("ALTER TABLE processed_messages SET (autovacuum_enabled = false)",
			"INSERT INTO processed_messages SELECT 'stock', i::text FROM generate_series(1, 20000) AS i",
			"DELETE FROM processed_messages WHERE message_key <> '1' AND consumer_name = 'stock'", "SELECT pg_stat_force_next_flush()"),
		mysql: func(p *patient) {
			// What is deleted is purged later; what is rolled back is gone.
			tx, err := p.SQL.BeginTx(p.t.Context(), nil)
			p.ok(err)
			_, err = tx.Exec("INSERT INTO processed_messages (consumer_name, message_key) SELECT 'stock', CONCAT(REPEAT('k', 180), seq) FROM seq_1_to_50000")
			p.ok(err)
			p.ok(tx.Rollback())
			p.run("ANALYZE TABLE processed_messages")
		},
		sqlite: sqls("INSERT INTO processed_messages (consumer_name, message_key) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"+
			" SELECT 'stock', printf('%0180d', i) FROM n", "DELETE FROM processed_messages WHERE message_key LIKE '000%'"),
	},
	{name: "a dead letter is open", find: "warning dead letters", text: "1 dead letters are open", all: func(p *patient) { p.letter("k") }},
	{name: "nobody takes what is to be processed again", find: "warning dead letters", text: "nobody takes them", all: func(p *patient) {
		p.ok(p.store.DeadLetters().(deadletter.Desk).Redrive(p.t.Context(), p.letter("k"), deadletter.Decision{By: "ayu"}))
		p.ago("dead_letters", "first_at")
	}},
	{name: "the outcome of an effect has long been unknown", find: "warning effects", text: "outcome of 1 effects is unknown", all: func(p *patient) {
		p.ago("external_effects", "updated_at")
	}},
	{name: "an effect's process ended", find: "warning effects", text: "by processes that ended", all: func(p *patient) {
		p.run("DELETE FROM external_effects")
		p.effect("k", effect.Started)
		p.ago("external_effects", "updated_at")
	}},
	{name: "an effect is parked", find: "warning effects", text: "1 effects are parked", all: func(p *patient) { p.effect("k", effect.Parked) }},
	{name: "the outbox lags", find: "error outbox", text: "1h0m", all: func(p *patient) { p.ago("outbox_messages", "created_at") }},
	{name: "an event is parked", find: "warning outbox", text: "refuses 1 events", all: sqls("UPDATE outbox_messages SET status = 'parked' WHERE message_id = 'pending'")},
	{name: "rows are of a name that nobody uses", find: "warning names", text: "did nothing", all: sqls("DELETE FROM consumer_stats WHERE consumer_name = 'courier'")},
	{name: "a migration was not applied", find: "warning migrations", text: "00009_consumer_stats", all: sqls("DELETE FROM sekali_migrations WHERE version_id = 9")},
	{
		name: "the connection sends another character set", find: "error schema", text: "latin1",
		mysql:  setting("charset", "latin1"),
		cannot: map[migrate.Dialect]string{pg: "its client encodes UTF-8", lite: "it has no server"},
	},
}

func (f fault) on(d migrate.Dialect) plant {
	if f.all != nil {
		return f.all
	}
	return map[migrate.Dialect]plant{pg: f.postgres, my: f.mysql, lite: f.sqlite}[d]
}

type examined struct {
	Database string `json:"database"`
	OK       bool   `json:"ok"`
	Findings []struct {
		Check    string `json:"check"`
		Severity string `json:"severity"`
		About    string `json:"about"`
		Found    string `json:"found"`
		Means    string `json:"means"`
		Mend     string `json:"mend"`
	} `json:"findings"`
}

func (p *patient) examined() (e examined, text result) {
	p.t.Helper()
	command := append([]string{"doctor", "--database", p.url()}, p.args...)
	text = run(p.t, command...)
	r := run(p.t, append(command, "--output", "json")...)
	status := r.status
	r.status = 0
	into(p.t, r, &e)
	if status != text.status || e.OK != (status == 0) || e.Database == "" != (len(e.Findings) == 1 && e.Findings[0].Check == "pooler" && !e.OK) {
		p.t.Errorf("status %d and %d, ok %v on %q", status, text.status, e.OK, e.Database)
	}
	return e, text
}

func (p *patient) url() string {
	if len(p.settings) == 0 {
		return p.URL
	}
	return p.With(p.settings)
}

func newPatient(t *testing.T, open database) *patient {
	db := open(t)
	dialect := map[migrate.Dialect]sqlstore.Dialect{pg: postgres.Dialect, my: mysql.Dialect, lite: sqlite.Dialect}[db.Dialect]
	p := &patient{t: t, DB: db, store: sqlstore.New(db.SQL, dialect), settings: map[string]string{}}
	p.healthy()
	return p
}

func TestTheDoctorOnSQLite(t *testing.T) { doctorOn(t, dbtest.SQLite) }

// doctorOn plants each fault in a healthy database of a kind.
func doctorOn(t *testing.T, open database) {
	t.Run("a healthy one", func(t *testing.T) {
		t.Parallel()
		p := newPatient(t, open)
		p.args = []string{"--retention", "30d", "--broker-retention", "7d"}
		e, text := p.examined()
		if len(e.Findings) != 0 || !e.OK || text.stderr != "" || !strings.HasSuffix(text.stdout, ": all is well (15 checks)\n") {
			t.Errorf("%+v: %s", e, text.stdout)
		}
	})
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, open)
			plant := f.on(p.Dialect)
			if (plant == nil) != (f.cannot[p.Dialect] != "") {
				t.Fatal("it is neither planted here nor said why it cannot be")
			}
			if plant == nil {
				return // f.cannot says why
			}
			plant(p)
			e, text := p.examined()
			p.wantFinding(f, e, text)
		})
	}
}

// wantFinding wants that finding, told whole, and no other.
func (p *patient) wantFinding(f fault, e examined, text result) {
	p.t.Helper()
	part := f.text
	if other := f.other[p.Dialect]; other != "" {
		part = other
	}
	if len(e.Findings) != 1 {
		p.t.Fatalf("%d findings: %s%s", len(e.Findings), text.stdout, text.stderr)
	}
	got := e.Findings[0]
	if got.Severity+" "+got.Check != f.find || !strings.Contains(got.About+": "+got.Found, part) || got.Means == "" || got.Mend == "" {
		p.t.Errorf("found %+v, want %s with %q", got, f.find, part)
	}
	broken := strings.HasPrefix(f.find, "error")
	if text.status != map[bool]int{true: 1, false: 0}[broken] || strings.Contains(text.stderr, "1 error") != broken {
		p.t.Errorf("status %d, %q", text.status, text.stderr)
	}
	if !strings.Contains(text.stdout, part) || !strings.Contains(text.stdout, "\n  mend  ") || !strings.Contains(text.stdout, got.Severity+"  "+got.Check) {
		p.t.Errorf("the text does not say it: %s", text.stdout)
	}
}

func TestTheDoctorIsAskedWhatItCanAnswer(t *testing.T) {
	url := dbtest.SQLite(t).URL
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--workers", "0"}, 2, "--workers 0"},
		{[]string{"--retention", "soon"}, 2, `--retention "soon"`},
		{[]string{"--broker-retention", "-7d"}, 2, `--broker-retention "-7d"`},
		{[]string{"--topic", "orders"}, 2, "go together"},
		{[]string{"--broker", "nats://127.0.0.1:1", "--topic", "orders", "--broker-retention", "7d"}, 2, "one of them"},
		{[]string{"--broker", "smtp://u:geheim@h", "--topic", "orders"}, 2, "smtp://"},
		{[]string{"now"}, 2, "now"},
	} {
		r := run(t, append([]string{"doctor", "--database", url}, c.args...)...)
		if r.status != c.status || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, c.says) || strings.Contains(r.stderr, "geheim") {
			t.Errorf("%q: %+v, want %q", c.args, r, c.says)
		}
	}
}

func TestTheDoctorSendsNoCommandsToTheTerminal(t *testing.T) {
	p := newPatient(t, dbtest.SQLite)
	p.run("INSERT INTO processed_messages (consumer_name, message_key) VALUES ('gone \x1b[2J', 'k')")
	if _, text := p.examined(); !strings.Contains(text.stdout, `gone \x1b[2J`) || strings.Contains(text.stdout, "\x1b") {
		t.Errorf("%q", text.stdout)
	}
}
