package otelsekali

import (
	"github.com/sekali/sekali/store"
)

// Kind says what a metric's numbers are.
type Kind string

// The kinds.
const (
	// Counter only grows, while the process lives.
	Counter Kind = "counter"
	// UpDownCounter grows and shrinks.
	UpDownCounter Kind = "up-down counter"
	// Histogram counts values by how large they are.
	Histogram Kind = "histogram"
	// Gauge is as it is at the moment.
	Gauge Kind = "gauge"
)

// Metric describes one.
type Metric struct {
	Name string
	// Unit in the notation of UCUM, such as s or {message}; empty: none.
	Unit string
	Kind Kind
	// Attributes that its values have. Each has few values: those of a consumer
	// are the names of consumers, those of the others are in the docs of the
	// types that they come from.
	Attributes []string
	// Help says what it tells.
	Help string

	bounds []float64 // of a histogram
}

// The names of attributes.
const (
	consumerKey    = "consumer"
	outcomeKey     = "outcome"
	causeKey       = "cause"
	reasonKey      = "reason"
	kindKey        = "kind"
	redeliveredKey = "redelivered"
	statusKey      = "status"
	stateKey       = "state"
	rowsKey        = "rows"
	resultKey      = "result"
)

var (
	// handling and commits are mostly of milliseconds; effects of seconds.
	quick = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	sizes = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
)

// table is the one list of all metrics. docs/telemetry.md has the same.
var table = []Metric{
	{"sekali.received", "{message}", Counter, []string{consumerKey, redeliveredKey}, "Deliveries that came in, redrives among them. redelivered: the broker says that it delivered the message before, or may have.", nil},
	{"sekali.messages", "{message}", Counter, []string{consumerKey, outcomeKey}, "Messages whose outcome is durable: processed, duplicate, stale, conflict.", nil},
	{"sekali.duplicates", "{message}", Counter, []string{consumerKey, causeKey}, "Duplicates by cause: redelivery, lost race, redrive, repeat.", nil},
	{"sekali.duplicate.age", "s", Histogram, []string{consumerKey}, "How long after its first processing a duplicate came, where the database tells: what retention is sized by.", seconds()},
	{"sekali.handler.duration", "s", Histogram, []string{consumerKey}, "Time of the handler for a processed message, Prepare included; of a HandleBatch its share.", quick},
	{"sekali.commit.duration", "s", Histogram, []string{consumerKey}, "Time of a transaction's commit.", quick},
	{"sekali.batch.size", "{message}", Histogram, []string{consumerKey}, "Messages that shared a transaction, duplicates among them.", sizes},
	{"sekali.retries", "{message}", Counter, []string{consumerKey, causeKey}, "Attempts after which a message was tried again: attempt failed (the handler), conflicted (deadlock and the like), interrupted (the database).", nil},
	{"sekali.dead_letters", "{message}", Counter, []string{consumerKey, reasonKey}, "Dead letters written, further copies of a letter among them.", nil},
	{"sekali.held", "{message}", Counter, []string{consumerKey}, "Messages held behind a dead letter of their ordering key.", nil},
	{"sekali.settled", "{message}", Counter, []string{consumerKey}, "Acknowledgements that the broker confirmed.", nil},
	{"sekali.troubles", "{event}", Counter, []string{consumerKey, kindKey}, "What went wrong beside attempts: dead letter failed, settle failed, receive failed, check failed, stats failed, expired, suspected.", nil},
	{"sekali.consumers", "{consumer}", UpDownCounter, []string{consumerKey}, "Consumers of this process that run.", nil},

	{"sekali.outbox.published", "{event}", Counter, nil, "Events that a Relay of this process published and recorded.", nil},
	{"sekali.outbox.publish.duration", "s", Histogram, nil, "Time to publish and record a batch of events.", quick},
	{"sekali.outbox.retries", "{event}", Counter, nil, "Events that the broker refused or did not confirm, and that are tried again.", nil},
	{"sekali.outbox.given_up", "{event}", Counter, nil, "Events that were parked.", nil},
	{"sekali.outbox.interruptions", "{event}", Counter, nil, "Times that a Relay found the broker or the database not there.", nil},
	{"sekali.outbox.lanes", "{lane}", Gauge, nil, "Lanes that the Relay of this process has; of several in one process that of the last that spoke.", nil},

	{"sekali.pruned", "{row}", Counter, []string{rowsKey}, "Rows that the pruner of this process removed, by kind.", nil},
	{"sekali.prune.runs", "{run}", Counter, []string{resultKey}, "Runs of the pruner of this process: done, failed.", nil},
	{"sekali.prune.duration", "s", Histogram, []string{rowsKey}, "Time that a run took for rows of a kind, pauses included.", []float64{.01, .1, 1, 10, 60, 600, 3600}},

	{"sekali.dead_letters.waiting", "{letter}", Gauge, []string{statusKey}, "Unresolved dead letters in the database: open, held, requested, waiting. Counted to 100,000.", nil},
	{"sekali.dead_letters.oldest", "s", Gauge, []string{statusKey}, "Age of the oldest of them; 0: there is none.", nil},
	{"sekali.effects.waiting", "{effect}", Gauge, []string{stateKey}, "Unfinished effects in the database: unknown, parked, started (by a process that ended). Counted to 100,000.", nil},
	{"sekali.effects.oldest", "s", Gauge, []string{stateKey}, "Time since the oldest of them changed; 0: there is none.", nil},
	{"sekali.outbox.depth", "{event}", Gauge, []string{statusKey}, "Events in the outbox: pending, parked. Counted to 100,000.", nil},
	{"sekali.outbox.lag", "s", Gauge, nil, "Age of the oldest event that is due to be published; 0: there is none.", nil},
	{"sekali.database.up", "", Gauge, nil, "1 if the database told of what waits, 0 if it did not: then the gauges above are missing.", nil},
}

// Metrics returns all metrics that there are.
func Metrics() []Metric { return append([]Metric(nil), table...) }

// seconds are the bounds by which consumer_stats counts ages.
func seconds() []float64 {
	var all []float64
	for _, b := range store.AgeBounds() {
		all = append(all, b.Seconds())
	}
	return all
}
