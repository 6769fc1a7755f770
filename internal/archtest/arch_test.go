// Package archtest holds the house in order: which package may import which,
// and why.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sekali/sekali"

// room is a package of the house: what it may import besides the standard
// library, and why no more. Names of our packages are relative to the module;
// a trailing "/..." takes in all below.
type room struct {
	may []string
	why string
}

// pgx, mysql and so on are the drivers and libraries that rooms may use.
const (
	pgx      = "github.com/jackc/pgx/v5/..."
	mysql    = "github.com/go-sql-driver/mysql"
	sqlite   = "modernc.org/sqlite/..."
	nats     = "github.com/nats-io/nats.go/..."
	embedded = "github.com/nats-io/nats-server/v2/..."
	franz    = "github.com/twmb/franz-go/..."
	rabbit   = "github.com/rabbitmq/amqp091-go"
	goredis  = "github.com/redis/go-redis/v9/..."
	failsafe = "github.com/failsafe-go/failsafe-go/..."
	amqp10   = "github.com/Azure/go-amqp/..."
	uuid     = "github.com/google/uuid"
	goose    = "github.com/pressly/goose/v3/..."
	analysis = "golang.org/x/tools/go/..."
	cel      = "cel.dev/cel-go/..."
	otel     = "go.opentelemetry.io/otel/..."
	prom     = "github.com/prometheus/client_golang/prometheus/..."
)

// house is every package there is. One that is not here fails the test: first
// say what it is for and what it may know.
var house = map[string]room{
	"":                  {[]string{"store", "broker", "deadletter"}, "users of the library pay for no driver and no broker that they did not choose"},
	"store":             {nil, "a leaf: whoever writes a store needs to know nothing else"},
	"broker":            {nil, "a leaf: whoever writes a broker needs to know nothing else"},
	"deadletter":        {[]string{"broker"}, "a letter holds a message; it knows no store and no consumer"},
	"effect":            {nil, "it knows keys, not messages, and no store"},
	"effect/httpeffect": {[]string{"effect", failsafe}, "who calls no HTTP links no HTTP"},
	"outbox":            {[]string{"store", "broker", uuid}, "it knows the table through a store and the way out through a broker"},
	"admin":             {[]string{"store", "deadletter", "effect", "outbox"}, "what people see of the tables; stores implement it, so it knows none"},
	"retention":         {[]string{"store", "broker"}, "a pruner drives what a store offers, so it knows none; it asks brokers how long they keep messages"},
	"otelsekali":        {[]string{"", "store", "broker", "deadletter", "outbox", "retention", "admin", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/otel/semconv/...", "go.opentelemetry.io/otel/trace/..."}, "an observer: it knows what is told and OpenTelemetry's API, and neither an SDK nor an exporter"},
	"migrate":           {[]string{"store", goose}, "users run it with a driver of their own; it knows the names of tables, and no store"},

	"store/pgxstore":                  {[]string{"store", "admin", "deadletter", "effect", "outbox", "store/internal/pgsql", "store/sqlstore", "store/sqlstore/postgres", pgx}, "stores never import sekali, and one store one client library"},
	"store/internal/pgsql":            {[]string{"store"}, "the SQL of PostgreSQL is written once, whichever client carries it, so it knows none"},
	"store/sqlstore":                  {[]string{"store", "admin", "broker", "deadletter", "effect", "outbox", "store/sqlstore/internal/..."}, "database/sql alone: a user of one database does not link the drivers of others"},
	"store/sqlstore/internal/sqltext": {[]string{"store", "store/sqlstore"}, "text that dialects share; no driver"},
	"store/sqlstore/postgres":         {[]string{"store", "admin", "store/sqlstore", "store/sqlstore/internal/...", "store/internal/pgsql", pgx}, "one driver each"},
	"store/sqlstore/mysql":            {[]string{"store", "admin", "store/sqlstore", "store/sqlstore/internal/...", mysql}, "one driver each"},
	"store/sqlstore/sqlite":           {[]string{"store", "admin", "store/sqlstore", "store/sqlstore/internal/...", sqlite}, "one driver each"},
	"store/storetest":                 {[]string{"store", "admin", "broker", "deadletter", "effect", "outbox"}, "a suite for every store, so it knows none"},

	"broker/membroker":       {[]string{"broker"}, "brokers know the contract and their client library alone"},
	"broker/natsbroker":      {[]string{"broker", nats}, "brokers know the contract and their client library alone"},
	"broker/amqpbroker":      {[]string{"broker", amqp10}, "brokers know the contract and their client library alone"},
	"broker/watermillbroker": {[]string{"broker", "github.com/ThreeDotsLabs/watermill/message"}, "brokers know the contract and their client library alone"},
	"broker/kafkabroker":     {[]string{"broker", franz}, "brokers know the contract and their client library alone"},
	"broker/redisbroker":     {[]string{"broker", goredis}, "brokers know the contract and their client library alone"},
	"broker/rabbitbroker":    {[]string{"broker", rabbit}, "brokers know the contract and their client library alone"},
	"broker/brokertest":      {[]string{"", "broker", "deadletter", "internal/memstore"}, "a suite for every broker, with a Consumer on it, so it knows none"},

	"bench":                {[]string{"", "internal/run", "store", "broker", "outbox", "github.com/google/uuid", "migrate", "store/pgxstore", "store/sqlstore", "internal/dburl", pgx}, "the benchmark is a user of the library"},
	"cmd/sekali":           {[]string{"internal/cli"}, "main hands over to the command line and does nothing else"},
	"internal/cli":         {[]string{"bench", "store", "broker", "effect", "outbox", "store/pgxstore", "internal/brokerurl", "store/sqlstore", "deadletter", "migrate", "internal/dburl", "internal/demo", "github.com/spf13/cobra", "github.com/schollz/progressbar/v3", "golang.org/x/term", "admin", "internal/run", "internal/run/config", "retention"}, "commands put public packages together"},
	"internal/demo":        {[]string{"", "store", "broker", "effect", "outbox", "effect/httpeffect", "migrate", "store/pgxstore", "store/sqlstore", "broker/natsbroker", "broker/kafkabroker", "broker/rabbitbroker", "broker/amqpbroker", "broker/redisbroker", "internal/dburl", pgx, nats, embedded, franz, rabbit, goredis, amqp10}, "the demo is a user of the library"},
	"internal/brokerurl":   {[]string{"broker", "broker/natsbroker", "broker/kafkabroker", "broker/rabbitbroker", "broker/amqpbroker", "broker/redisbroker", nats}, "opens whatever broker a URL names"},
	"internal/run":         {[]string{"", "store", "broker", "deadletter", "effect", "effect/httpeffect", "outbox", "retention", "store/pgxstore", "store/sqlstore", "broker/natsbroker", "internal/brokerurl", "internal/dburl", "internal/run/config", "internal/run/expr", "internal/run/sqltext", "admin", "otelsekali", otel, prom, pgx, nats, embedded}, "sekali run is a user of the library"},
	"internal/run/config":  {[]string{"internal/brokerurl", "internal/dburl", "go.yaml.in/yaml/v3"}, "it reads a file, and knows of brokers and databases what their URLs say"},
	"internal/run/expr":    {[]string{"", "internal/dburl", "internal/run/config", cel}, "only here is CEL known"},
	"internal/run/sqltext": {[]string{"internal/dburl"}, "it reads SQL as text"},
	"internal/dburl":       {[]string{"migrate", "store/sqlstore/...", pgx, mysql}, "opens whatever database a URL names"},
	"internal/memstore":    {[]string{"store", "broker", "deadletter", "effect"}, "a store for tests and measurements"},
	"internal/faulty":      {[]string{"store", "broker", "deadletter"}, "wraps contracts, so it knows no implementation"},
	"internal/dbtest":      {[]string{"store", "migrate", "internal/dburl", pgx, mysql, sqlite}, "test helper: a schema for each test"},
	"internal/natstest":    {[]string{nats, embedded}, "test helper: a NATS server for each test"},
	"internal/kafkatest":   {[]string{"github.com/twmb/franz-go/pkg/..."}, "test helper: a topic for each test on a real or a fake Kafka"},
	"internal/amqptest":    {[]string{"broker/amqpbroker", "internal/faulty", amqp10}, "test helper: a queue for each test on a real broker"},
	"internal/redistest":   {[]string{goredis}, "test helper: a key for each test"},
	"internal/rabbittest":  {[]string{rabbit}, "test helper: a queue for each test on a real RabbitMQ"},
	"sekalitest":           {[]string{"", "store", "broker", "deadletter", "migrate", "broker/membroker", pgx, sqlite}, "users' tests: it plays deliveries to whatever consumer they have, on databases that it makes"},
	"weakfilter":           {[]string{"store", goredis}, "it is no store: it knows what a key is, and Redis"},
	"examples/chain":       {[]string{"", "broker", "broker/natsbroker", "migrate", "outbox", "store/sqlstore", "store/sqlstore/sqlite", nats, embedded, sqlite}, "an example is a user of the library"},
	"internal/proctest":    {nil, "it has tests alone, of consumers in processes of their own"},
	"sekalivet":            {[]string{analysis}, "it knows the library by names alone, so that it looks at code of any version"},
	"cmd/sekalivet":        {[]string{"sekalivet", analysis}, "a program of its own: who runs the binary does not link the analyzer"},
	"internal/archtest":    {nil, "a test of the house is outside of it"},
	"internal/run/runtest": {nil, "it has tests alone, of the binary as a process"},
}

// testOnly are packages that must not reach a user's program.
var testOnly = map[string]string{
	"testing":             "it registers flags and is no part of a program",
	"store/storetest":     "a test suite",
	"broker/brokertest":   "a test suite",
	"sekalitest":          "for tests of users",
	"internal/dbtest":     "a test helper",
	"internal/natstest":   "a test helper",
	"internal/kafkatest":  "a test helper",
	"internal/rabbittest": "a test helper",
	"internal/amqptest":   "a test helper",
	"internal/redistest":  "a test helper",
	"internal/faulty":     "it fails on command",
	"internal/memstore":   "it loses everything with the process",
}

// isTestHelper tells whether a package of ours may import testing.
func isTestHelper(pkg string) bool {
	_, is := testOnly[pkg]
	return is || pkg == "internal/archtest"
}

// imports are the direct imports of packages without their tests; our own
// packages by their names relative to the module.
type imports map[string][]string

// check returns all breaches of the house's rules.
func check(house map[string]room, graph imports, standard func(string) bool) []string {
	var breaches []string
	for _, pkg := range slices.Sorted(maps.Keys(graph)) {
		rules, known := house[pkg]
		if !known {
			breaches = append(breaches, fmt.Sprintf("%q is in no room of the house: say in archtest what it is for and what it may import", pkg))
			continue
		}
		for _, imported := range graph[pkg] {
			if why, is := testOnly[imported]; is && !isTestHelper(pkg) {
				breaches = append(breaches, fmt.Sprintf("%q imports %q, which must not reach a user's program: %s", pkg, imported, why))
				continue
			}
			if imported == "testing" || standard(imported) || slices.ContainsFunc(rules.may, func(pattern string) bool { return matches(pattern, imported) }) {
				continue
			}
			breaches = append(breaches, fmt.Sprintf("%q imports %q and may not: %s", pkg, imported, rules.why))
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(house)) {
		if _, there := graph[pkg]; !there {
			breaches = append(breaches, fmt.Sprintf("%q has a room and is not there: take it out of archtest", pkg))
		}
	}
	return breaches
}

func matches(pattern, pkg string) bool {
	base, below := strings.CutSuffix(pattern, "/...")
	return pkg == base || below && strings.HasPrefix(pkg, base+"/")
}

// relative returns one of our packages' names relative to the module.
func relative(pkg string) string {
	if pkg == module {
		return ""
	}
	return strings.TrimPrefix(pkg, module+"/")
}

func TestEveryPackageImportsOnlyWhatItMay(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Standard,Module", module+"/...")
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	graph, standard := imports{}, map[string]bool{"C": true, "unsafe": true}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p struct {
			ImportPath string
			Imports    []string
			Standard   bool
			Module     *struct{ Path string }
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		standard[p.ImportPath] = standard[p.ImportPath] || p.Standard
		if p.Module == nil || p.Module.Path != module {
			continue
		}
		ours := []string{}
		for _, i := range p.Imports {
			ours = append(ours, relative(i))
		}
		graph[relative(p.ImportPath)] = ours
	}
	if len(graph) < 10 {
		t.Fatalf("go list knows only %d of our packages", len(graph))
	}
	for _, breach := range check(house, graph, func(pkg string) bool { return standard[pkg] }) {
		t.Error(breach)
	}
}

func TestTheCheckSeesEachKindOfBreach(t *testing.T) {
	rooms := map[string]room{"": {[]string{"store", "x.org/lib/..."}, "why"}, "store": {nil, "a leaf"}}
	standard := func(pkg string) bool { return pkg == "fmt" || pkg == "testing" }
	cases := map[string]struct {
		graph imports
		want  string
	}{
		"nothing wrong":       {imports{"": {"fmt", "store", "x.org/lib", "x.org/lib/sub"}, "store": {"fmt"}}, ""},
		"the wrong direction": {imports{"": nil, "store": {""}}, `"store" imports "" and may not: a leaf`},
		"a foreign library":   {imports{"": {"x.org/library"}, "store": nil}, `"" imports "x.org/library" and may not: why`},
		"a test helper":       {imports{"": {"internal/dbtest"}, "store": nil}, "must not reach"},
		"testing itself":      {imports{"": {"testing"}, "store": nil}, "must not reach"},
		"an unknown package":  {imports{"": nil, "store": nil, "util": nil}, `"util" is in no room`},
		"an empty room":       {imports{"": nil}, `"store" has a room and is not there`},
	}
	for name, c := range cases {
		got := strings.Join(check(rooms, c.graph, standard), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestMainIsShort(t *testing.T) {
	source, err := os.ReadFile("../../cmd/sekali/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(source, []byte("\n")); n > 20 {
		t.Errorf("cmd/sekali/main.go has %d lines, 20 at most: commands live in internal/cli", n)
	}
}
