package demo

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/sekali/sekali/internal/dburl"
)

// Report is what a demo found.
type Report struct {
	// OK tells that every idempotent consumer's effect is exactly right.
	OK        bool             `json:"ok"`
	Orders    int              `json:"orders"`
	SentTwice int              `json:"sent_twice"`
	Crashes   int              `json:"crashes"` // per consumer
	Seed      uint64           `json:"seed"`
	Database  string           `json:"database"`
	Broker    string           `json:"broker"`
	Kept      []string         `json:"kept,omitempty"`
	Consumers []ConsumerReport `json:"consumers"`
	Outages   int              `json:"courier_outages"` // how often the courier was down
}

// ConsumerReport is what a demo found of one consumer.
type ConsumerReport struct {
	Name        string `json:"name"`
	Idempotent  bool   `json:"idempotent"`
	Expected    int    `json:"expected"` // effect, by the plan
	Found       int    `json:"found"`    // effect, by SQL
	Delivered   int    `json:"delivered"`
	Processed   int    `json:"processed"`
	Duplicates  int    `json:"duplicates"`  // deliveries that were recognised and skipped
	Redelivered int    `json:"redelivered"` // deliveries of what had been delivered before
	Crashes     int    `json:"crashes"`
	DeadLetters int    `json:"dead_letters"`
	PerSecond   int    `json:"per_second"`
	Exact       bool   `json:"exact"`
}

func newReport(ctx context.Context, cfg Config, p plan, s *shop, orders feed, c *courier, runners []*runner) (*Report, error) {
	report := &Report{
		OK: true, Orders: len(p.orders), SentTwice: len(p.again), Crashes: cfg.Crashes, Seed: cfg.Seed,
		Database: string(s.db.Kind), Broker: orders.String(), Outages: c.outages(),
	}
	if cfg.Database != "" {
		report.Database = dburl.Redact(cfg.Database)
	}
	for i, service := range services {
		e, err := s.effectOf(ctx, service.name, p, c)
		if err != nil {
			return nil, err
		}
		n := runners[i].snapshot()
		r := ConsumerReport{
			Name: service.name, Idempotent: service.idempotent, Expected: e.expected, Found: e.found,
			Delivered: n.delivered, Processed: n.processed, Duplicates: n.duplicates, Crashes: n.crashes,
			// All that was sent has come once; not the broker's word for it,
			// which on Kafka is "a dead member may have had it".
			Redelivered: max(0, n.delivered-p.copies()),
			DeadLetters: e.letters, PerSecond: int(n.perSecond()), Exact: e.exact,
		}
		if service.idempotent {
			// A kill can come between a commit and the word of it, so it is the
			// table that says how many were processed.
			r.Processed = e.keys
			r.Exact = r.Exact && e.keys == len(p.orders) && e.letters == 0
			report.OK = report.OK && r.Exact
		}
		report.Consumers = append(report.Consumers, r)
	}
	return report, nil
}

// keep notes what the demo leaves behind, and how to look at it.
func (r *Report) keep(s *shop, orders feed) {
	r.Kept = append(r.Kept,
		"the shop: sekali deadletters list --database '"+dburl.Redact(s.url)+"'; tables stock, shipments, naive_stock, processed_messages",
		orders.kept(),
	)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	killed := "no consumer was killed."
	if r.Crashes > 0 {
		killed = "each consumer killed " + howOften(r.Crashes) + " between a commit and its acknowledgement."
	}
	fmt.Fprintf(w, "%s orders, %s of them sent twice; %s\n", thousands(r.Orders), thousands(r.SentTwice), killed)
	fmt.Fprintf(w, "Database: %s. Broker: %s. Seed: %d.\n\n", r.Database, r.Broker, r.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "consumer\tdelivered\tprocessed\tduplicates skipped\tredelivered\texpected effect\tfound effect\tmessages/s\tverdict\t")
	for _, c := range r.Consumers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.Name, thousands(c.Delivered), thousands(c.Processed),
			thousands(c.Duplicates), thousands(c.Redelivered), thousands(c.Expected), thousands(c.Found), thousands(c.PerSecond), c.verdict())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\n"+r.summary())
	for _, kept := range r.Kept {
		fmt.Fprintln(w, "Kept: "+kept)
	}
	return err
}

func (c ConsumerReport) verdict() string {
	switch {
	case c.Exact:
		return "exact"
	case c.DeadLetters > 0:
		return thousands(c.DeadLetters) + " dead letters"
	case c.Found > c.Expected:
		return thousands(c.Found-c.Expected) + " TOO MANY"
	case c.Found < c.Expected:
		return thousands(c.Expected-c.Found) + " MISSING"
	}
	return "WRONG in single rows"
}

func (r *Report) summary() string {
	if !r.OK {
		return "An idempotent consumer's effect is NOT exact. That must never be: please report it with the seed above."
	}
	text := "Effects are counted in the database (pieces taken from stock) and in the courier's books (labels bought: it is slow, fails, sells without\n" +
		"answering, and was down " + howOften(r.Outages) + "). Both idempotent consumers did each order exactly once.\n" +
		"Of what is delivered, duplicates are orders that the producer sent twice and messages that a killed consumer had committed; what it had in hand\n" +
		"and had not begun is delivered once more, and counted in neither column."
	for _, c := range r.Consumers {
		switch {
		case c.Idempotent || c.Exact:
		case c.Name == naiveStockService:
			text += fmt.Sprintf("\nThe naive consumers got the same messages. One took %s pieces instead of %s from stock.", thousands(c.Found), thousands(c.Expected))
		default:
			text += fmt.Sprintf(" The other bought %s labels for %s orders.", thousands(c.Found), thousands(c.Expected))
		}
	}
	return text
}

func howOften(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return thousands(n) + " times"
}

// thousands writes a number with commas.
func thousands(n int) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
