package config

import (
	"os"
	"strings"
	"time"

	"github.com/sekali/sekali/internal/dburl"
)

// File is what a file says: one consumer.
type File struct {
	// Consumer is its name: whose effect it is.
	Consumer Text
	Source   Source
	// Database is the URL of the one that holds keys and business data.
	Database Text
	// Kind of the database.
	Kind dburl.Kind
	// Connections to it at most; 0: as many as the workers need.
	Connections int
	Key         Key
	// When is an expression that says which messages have an effect.
	When Text
	// Vars are values for expressions.
	Vars    map[string]string
	Handle  []Statement
	Effects []Effect
	Publish []Event
	Outbox  Outbox

	// Order is an expression for the ordering key.
	Order              Text
	OrderInProcessOnly bool
	HoldKey            bool
	// Entity and Version are expressions.
	Entity, Version Text
	// Fingerprint is "", "body" or "json".
	Fingerprint string

	BatchSize    int
	BatchMaxOpen time.Duration
	Workers      int
	Retries      Retries
	DeadLetters  Queue
	Retention    Retention

	// HTTP is where metrics, health and pages are; its Listen not given: nowhere.
	HTTP         HTTP
	DrainTimeout time.Duration
	// LogJSON has the log written in JSON.
	LogJSON bool

	// Secrets are values that must not be shown.
	Secrets []string
}

// Source is where messages come from.
type Source struct {
	URL Text
	// Kind is nats, kafka, rabbitmq, amqp10, redis or embedded.
	Kind string
	// Stream, Topics, Queue: what to receive, of which the broker knows one.
	Stream, Queue Text
	Topics        []Text
	// Group is that of consumers that share the work, or the durable consumer.
	Group string
	// Subjects that are received; embedded: that the stream has.
	Subjects []string
	// Directory and Listen are those of the embedded broker.
	Directory, Listen string

	OnlyNew, Ordered, ServerSide, DelayedRetry  bool
	SingleActive, Exclusive                     bool
	AckWait, SessionTimeout                     time.Duration
	MaxAckPending, Prefetch, Credit             int
	OrderingKeyHeader                           string
	OrderingKeyToken                            int
	Declare, Capability                         string
	BodyField, OrderingKeyField, MessageIDField string
}

// Statement is one of SQL.
type Statement struct {
	SQL    Text
	Params map[string]Text // expressions
	When   Text
	// Rows is how many rows it has to change; below 0: any number.
	Rows   int
	RowsAt Pos
}

// Effect is an HTTP request that goes through the ledger.
type Effect struct {
	Name    Text
	When    Text
	Method  string
	URL     Text
	Params  map[string]Text // expressions for {name} in the URL
	Headers []Pair
	Body    Body
	// RepeatFor is how long the provider knows an idempotency key; 0: what is
	// unknown is parked.
	RepeatFor time.Duration
	// Header of the idempotency key.
	Header   string
	Timeout  time.Duration
	Attempts int
}

// Pair is a name and its value, as text.
type Pair struct {
	Name  string
	Value Text
}

// Event is one that goes to the outbox.
type Event struct {
	Topic   Text
	When    Text
	ID, Key Text // expressions
	Headers map[string]Text
	Body    Body
}

// Body of a request or an event.
type Body struct {
	// JSON is a structure whose values are expressions; nil: none.
	JSON any // Text, map[string]any, []any
	// Text is an expression whose text or bytes are the body.
	Text Text
}

// Given tells whether there is a body.
func (b Body) Given() bool { return b.JSON != nil || b.Text.Given() }

// Outbox says where events go.
type Outbox struct {
	URL     Text
	HoldKey bool
	// Relay has this process publish them.
	Relay bool
}

// Retries says how often, and how long between.
type Retries struct {
	Attempts, Crashes int
	Initial, Max      time.Duration
}

// Queue is one at a broker.
type Queue struct{ URL, Topic Text }

// Retention says how long rows are kept.
type Retention struct {
	Pos
	Given bool
	// Keep is how long keys are kept.
	Keep time.Duration
	// MaxDuplicateAge is how late a duplicate can come; 0: what the broker says.
	MaxDuplicateAge time.Duration
	// LettersElsewhere is how long letters at a broker can be sent back.
	LettersElsewhere time.Duration
	// Every is how often rows are removed.
	Every time.Duration
}

// HTTP is what this process serves.
type HTTP struct {
	// Listen is the address, host:port.
	Listen Text
}

// Key says where the message key is.
type Key struct {
	Pos
	// Kind is header, json, message_id, cloud_event, debezium, literal, business,
	// first_of, scoped or fold_uuid.
	Kind string
	// Value of header, json, literal; the scope of scoped.
	Value Text
	// Parts of business, first_of, scoped and fold_uuid.
	Parts []Key
}

// mends say what to give where something is missing.
var mends = map[string]string{
	"consumer": "give the consumer a name, such as stock-service",
	"source":   "say where messages come from: source: {url: …}",
	"database": "give the URL of the database, such as ${SEKALI_DATABASE_URL}",
	"key":      "say where the message key is, such as key: {header: idempotency-key}",
	"url":      "give the URL",
	"stream":   "name the stream to receive from",
	"topics":   "name the topics to receive",
	"queue":    "name the queue to receive from",
	"subjects": "name the subjects that the stream has, such as orders.>",
	"sql":      "give one statement of SQL",
	"topic":    "name the topic",
	"name":     "give the effect a name, such as label",
	"entity":   "give an expression for the entity, such as body.sku",
	"version":  "give an expression for its version, a number that grows",
	"scope":    "give the scope, such as a tenant",
	"keep":     "say how long keys are kept, such as 336h",
	"listen":   "give an address of this machine, such as 127.0.0.1:9464",
}

var topFields = []string{
	"consumer", "source", "database", "key", "when", "vars", "handle", "effects", "publish", "outbox", "order",
	"order_in_process_only", "on_blocked", "version", "fingerprint", "batch", "workers", "retries", "dead_letters",
	"retention", "http", "drain_timeout", "log",
}

// Read reads a file's text. lookup finds variables of the environment; nil:
// os.LookupEnv. The error is Problems: all that can be seen without the
// database. What could be read is returned beside them.
func Read(text string, lookup func(name string) (string, bool)) (*File, error) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	f := &file{lookup: lookup}
	c := &File{}
	if root := f.parse(strings.TrimPrefix(text, "\uFEFF")); root != nil {
		c.read(node{root, f, ""})
	}
	c.Secrets = f.secrets
	return c, f.problems.Err()
}

func (c *File) read(root node) {
	n := root.fields("write fields, such as consumer: stock-service", topFields, "consumer", "source", "database", "key")
	if n == nil {
		return
	}
	c.Consumer = n["consumer"].text(mends["consumer"])
	if c.Consumer.Given() && len(c.Consumer.Value) > 100 {
		n["consumer"].bad("it is longer than 100 bytes", "shorten it")
	}
	c.readDatabase(n["database"])
	if n["source"].given() {
		c.readSource(n["source"])
	}
	if n["key"].given() {
		c.Key = readKey(n["key"])
	}
	c.readVars(n["vars"])
	c.When = n["when"].expression()
	for _, i := range n["handle"].items("give a list of statements, each with - sql: …") {
		c.Handle = append(c.Handle, readStatement(i))
	}
	c.readEffects(n["effects"])
	for _, i := range n["publish"].items("give a list of events, each with - topic: …") {
		c.Publish = append(c.Publish, readEvent(i))
	}
	if len(c.Handle)+len(c.Effects)+len(c.Publish) == 0 && c.noneGiven(n, "handle", "effects", "publish") {
		root.file.problem(Problem{Pos: root.pos(), Cause: "nothing is done with a message", Mend: "give handle: with SQL, effects: or publish:"})
	}
	c.readOutbox(n["outbox"])
	c.readOrder(n)
	c.readWork(n)
}

// noneGiven tells whether fields that are there were not read because of a
// problem of their own.
func (c *File) noneGiven(n map[string]node, names ...string) bool {
	for _, name := range names {
		if n[name].given() && len(n[name].Content) == 0 && n[name].Value != "" {
			return false
		}
	}
	return true
}

func (c *File) readDatabase(n node) {
	if !n.given() {
		return
	}
	at := n
	if n.Tag == "!!map" {
		d := n.fields("give the URL of the database", []string{"url", "connections"}, "url")
		c.Connections = d["connections"].number(1, 10_000)
		at = d["url"]
	}
	if !at.given() {
		return
	}
	c.Database = at.text(mends["database"])
	if !c.Database.Given() || c.Database.Value == "" {
		return
	}
	n.file.hidePassword(c.Database.Value)
	kind, err := dburl.KindOf(c.Database.Value)
	if err != nil {
		at.bad("its kind is unknown", dburl.ErrURL.Error())
		return
	}
	c.Kind = kind
}

func (c *File) readVars(n node) {
	if !n.given() {
		return
	}
	c.Vars = map[string]string{}
	for name, v := range n.fields("write names with values, such as warehouse: ${WAREHOUSE}", nil) {
		if !identifier.MatchString(name) {
			v.bad("the name cannot be used in an expression", "use letters, digits and _, and begin with a letter")
			continue
		}
		c.Vars[name] = v.text("give a single value").Value
	}
}

func (c *File) readOrder(n map[string]node) {
	c.Order = n["order"].expression()
	c.OrderInProcessOnly = n["order_in_process_only"].yes()
	c.HoldKey = n["on_blocked"].choice("pass", "hold_key") == "hold_key"
	if n["version"].given() {
		v := n["version"].fields("give entity and version: two expressions", []string{"entity", "version"}, "entity", "version")
		c.Entity, c.Version = v["entity"].expression(), v["version"].expression()
	}
	if n["fingerprint"].given() {
		c.Fingerprint = n["fingerprint"].choice("body", "json")
	}
}

func (c *File) readWork(n map[string]node) {
	if n["batch"].given() {
		b := n["batch"].fields("give size and max_open", []string{"size", "max_open"})
		c.BatchSize, c.BatchMaxOpen = b["size"].number(1, 10_000), b["max_open"].time(time.Millisecond)
	}
	c.Workers = n["workers"].number(1, 1000)
	if n["retries"].given() {
		r := n["retries"].fields("give attempts, initial, max and crashes", []string{"attempts", "initial", "max", "crashes"})
		c.Retries = Retries{r["attempts"].number(1, 1_000_000), r["crashes"].number(1, 1000), r["initial"].time(time.Millisecond), r["max"].time(time.Millisecond)}
		if c.Retries.Max > 0 && c.Retries.Max < c.Retries.Initial {
			r["max"].bad("it is shorter than initial", "raise it")
		}
	}
	if d := n["dead_letters"]; d.given() {
		q := d.fields("give url and topic of a queue at a broker, or leave it out: the database keeps them", []string{"url", "topic"}, "url", "topic")
		c.DeadLetters = Queue{q["url"].brokerURL(), q["topic"].text(mends["topic"])}
	}
	if r := n["retention"]; r.given() {
		k := r.fields("give keep and, where the broker keeps messages without a limit, max_duplicate_age",
			[]string{"keep", "max_duplicate_age", "letters_elsewhere", "every"}, "keep")
		c.Retention = Retention{
			r.pos(), true, k["keep"].time(time.Hour), k["max_duplicate_age"].time(time.Minute), k["letters_elsewhere"].time(time.Minute),
			k["every"].time(time.Second),
		}
		if c.Retention.Every == 0 {
			c.Retention.Every = time.Hour
		}
		if c.DeadLetters.Topic.Given() && !k["letters_elsewhere"].given() {
			r.bad("dead letters are at a broker, and nothing says for how long they can be sent back", "add letters_elsewhere")
		}
	}
	if n["http"].given() {
		h := n["http"].fields("give the address: {listen: \"127.0.0.1:9464\"}", []string{"listen"}, "listen")
		c.HTTP.Listen = h["listen"].address()
	}
	c.DrainTimeout = n["drain_timeout"].time(time.Millisecond)
	c.LogJSON = n["log"].choice("text", "json") == "json"
}
