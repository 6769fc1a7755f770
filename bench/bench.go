// Package bench measures Sekali against the idempotent consumer that people
// write by hand, and against the limit of the same SQL. All of it runs side by
// side, in rounds that take turns, so that its figures can be compared with
// each other; not with those of another run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/migrate"
)

// Mode is a way to process messages.
type Mode string

// The modes. All take stock for each message: UPDATE stock SET quantity =
// quantity - 1 WHERE sku = ….
const (
	// Handwritten is the pattern as people write it: BEGIN, INSERT the key,
	// UPDATE, COMMIT; one message a transaction.
	Handwritten Mode = "handwritten"
	// Check looks for the key first, and then does the same.
	Check Mode = "check"
	// Process is Inbox.Process.
	Process Mode = "process"
	// Handle is a Consumer with Handle: the same UPDATE for each message.
	Handle Mode = "handle"
	// Pipelined is a Consumer with pgxstore.Pipelined; PostgreSQL alone.
	Pipelined Mode = "pipelined"
	// Batch is a Consumer with HandleBatch: one UPDATE for all messages.
	Batch Mode = "batch"
	// FromFile is sekali run: the same UPDATE from a file, with the sku from a body
	// in JSON.
	FromFile Mode = "run"
	// Limit is what Batch does, written by hand: the keys in one INSERT, one
	// UPDATE, COMMIT, for messages that are known to be of one worker.
	Limit Mode = "limit"
)

// Case is one thing that is measured.
type Case struct {
	Mode       Mode    `json:"mode"`
	Batch      int     `json:"batch"`
	Workers    int     `json:"workers"`
	Duplicates float64 `json:"duplicates"` // share of messages that came before
	KeptRows   int     `json:"kept_rows"`  // in processed_messages beforehand
	TimeOrder  bool    `json:"time_ordered_keys"`
	HotRows    int     `json:"hot_rows,omitempty"` // rows that all messages change, without an ordering key
}

// Run is a Case with what was measured.
type Run struct {
	Case
	PerSecond        float64 `json:"per_second"` // messages, the median of the rounds
	Lowest           float64 `json:"lowest"`
	Highest          float64 `json:"highest"`
	RatioHandwritten float64 `json:"ratio_handwritten,omitempty"`  // to the same workers, duplicates and rows
	RatioLimit       float64 `json:"ratio_limit,omitempty"`        // to the same batch, too
	RatioHandle      float64 `json:"ratio_handle,omitempty"`       // to the same batch with Handle
	RatioAlone       float64 `json:"ratio_handle_alone,omitempty"` // to Handle with one message a transaction
}

// Report is what a benchmark found.
type Report struct {
	Database string            `json:"database"`
	Settings map[string]string `json:"settings"`
	Rounds   int               `json:"rounds"`
	Seconds  float64           `json:"seconds_each"`
	Runs     []Run             `json:"runs"`
}

// Config says what to measure.
type Config struct {
	Database string // URL
	Cases    []Case
	Rounds   int
	Each     time.Duration // of each case in each round
	// RoundTrip to a server is made so long, as if a network were between. Defaults
	// to none.
	RoundTrip time.Duration
	// Progress is told what is done, of how much.
	Progress func(done, of int)
}

// errNotDurable: figures of a database that may forget commits compare nothing.
var errNotDurable = errors.New("it does not make commits durable")

// Measure runs a benchmark in a place of its own, and drops it afterwards.
func Measure(ctx context.Context, cfg Config) (_ *Report, err error) {
	place, drop, err := place(ctx, cfg.Database)
	if err != nil {
		return nil, err
	}
	defer func() {
		tidying, done := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer done()
		err = errors.Join(err, drop(tidying))
	}()
	if cfg.RoundTrip > 0 {
		kind, err := dburl.KindOf(place)
		if err != nil {
			return nil, err
		}
		away, network, err := farAway(kind, place, cfg.RoundTrip)
		if err != nil {
			return nil, err
		}
		defer network.close()
		place = away
	}
	db, err := dburl.Open(ctx, place, true)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	settings, err := durable(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", dburl.Redact(cfg.Database), err)
	}
	if _, err := migrate.Up(ctx, db.SQL, db.Migrations()); err != nil {
		return nil, err
	}
	b, err := newTarget(ctx, db, place)
	if err != nil {
		return nil, err
	}
	report := &Report{Database: string(db.Kind), Settings: settings, Rounds: cfg.Rounds, Seconds: cfg.Each.Seconds()}
	if cfg.RoundTrip > 0 {
		settings["round_trip"] = cfg.RoundTrip.String()
	}
	rates, err := rounds(ctx, cfg, b)
	if err != nil {
		return nil, err
	}
	for i, c := range cfg.Cases {
		slices.Sort(rates[i])
		n := len(rates[i])
		report.Runs = append(report.Runs, Run{Case: c, PerSecond: rates[i][n/2], Lowest: rates[i][0], Highest: rates[i][n-1]})
	}
	report.ratios()
	return report, nil
}

// place makes the place: a file for SQLite.
func place(ctx context.Context, raw string) (string, func(context.Context) error, error) {
	kind, err := dburl.KindOf(raw)
	if err != nil {
		return "", nil, err
	}
	if kind == dburl.SQLite {
		return temporary(raw)
	}
	return dburl.MakePlace(ctx, withConnections(kind, raw), "sekali_bench_"+strconv.FormatInt(time.Now().UnixNano(), 36))
}

// rounds measures every case in each round, in turns. Cases that need kept rows
// come together, for those take long to make.
func rounds(ctx context.Context, cfg Config, t target) ([][]float64, error) {
	rates := make([][]float64, len(cfg.Cases))
	order := make([]int, len(cfg.Cases))
	for i := range order {
		order[i] = i
	}
	type rows struct {
		n       int
		ordered bool
	}
	of := func(i int) rows {
		return rows{cfg.Cases[i].KeptRows, cfg.Cases[i].KeptRows > 0 && cfg.Cases[i].TimeOrder}
	}
	slices.SortStableFunc(order, func(a, b int) int { return of(a).n - of(b).n })
	done := 0
	for from := 0; from < len(order); {
		to := from
		for to < len(order) && of(order[to]) == of(order[from]) {
			to++
		}
		kept := of(order[from])
		if err := t.keep(ctx, kept.n, kept.ordered); err != nil {
			return nil, fmt.Errorf("make %d rows: %w", kept.n, err)
		}
		for range cfg.Rounds {
			for _, i := range order[from:to] {
				rate, err := measure(ctx, t, cfg.Cases[i], cfg.Each)
				if err != nil {
					return nil, fmt.Errorf("measure %s: %w", cfg.Cases[i], err)
				}
				rates[i] = append(rates[i], rate)
				done++
				if cfg.Progress != nil {
					cfg.Progress(done, cfg.Rounds*len(cfg.Cases))
				}
			}
		}
		from = to
	}
	return rates, nil
}

// String names a case for people.
func (c Case) String() string {
	return fmt.Sprintf("%s, batches of %d, %d workers", c.Mode, c.Batch, c.Workers)
}

// ratios compares each run with the hand-written pattern and the limit of the
// same circumstances.
func (r *Report) ratios() {
	find := func(c Case) float64 {
		for _, x := range r.Runs {
			if x.Case == c {
				return x.PerSecond
			}
		}
		return 0
	}
	for i := range r.Runs {
		c := r.Runs[i].Case
		base, top := c, c
		base.Mode, base.Batch = Handwritten, 1
		top.Mode = Limit
		own := c
		own.Mode = Handle
		alone := own
		alone.Batch = 1
		if rate := find(base); rate > 0 {
			r.Runs[i].RatioHandwritten = round(r.Runs[i].PerSecond / rate)
		}
		if rate := find(top); rate > 0 {
			r.Runs[i].RatioLimit = round(r.Runs[i].PerSecond / rate)
		}
		if rate := find(own); rate > 0 {
			r.Runs[i].RatioHandle = round(r.Runs[i].PerSecond / rate)
		}
		if rate := find(alone); rate > 0 {
			r.Runs[i].RatioAlone = round(r.Runs[i].PerSecond / rate)
		}
	}
}

func round(x float64) float64 { return float64(int(x*100+0.5)) / 100 }
