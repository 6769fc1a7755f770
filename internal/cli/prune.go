package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/retention"
	"github.com/sekali/sekali/store/sqlstore"
)

// age is a flag's time that may be said in days, or "ever".
type age time.Duration

var errAge = errors.New(`say it as 30d, 36h, 1d12h or, for no limit, "ever"`)

// Set implements pflag.Value.
func (a *age) Set(text string) error {
	if text == "ever" {
		*a = age(retention.Forever)
		return nil
	}
	var total time.Duration
	if days, rest, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return errAge
		}
		total, text = time.Duration(n)*24*time.Hour, rest
	}
	if text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return errAge
		}
		total += d
	}
	if total <= 0 {
		return errAge
	}
	*a = age(total)
	return nil
}

// String implements pflag.Value.
func (a *age) String() string {
	if *a == 0 {
		return ""
	}
	return retention.Days(time.Duration(*a))
}

// Type implements pflag.Value.
func (a *age) Type() string { return "time" }

// pruning is what the flags of sekali prune say.
type pruning struct {
	retention.Config
	broker string
	queues []string
	dryRun bool
}

func (a *app) prune() *cobra.Command {
	var p pruning
	c := &cobra.Command{
		Use: "prune", Short: "Remove what is old: keys of processed messages, resolved dead letters and the like", Args: cobra.NoArgs,
		Example: "  sekali prune --keep 30d --broker kafka://localhost:9092 --queue orders --dry-run",
	}
	f := c.Flags()
	for _, flag := range []struct {
		to          *time.Duration
		name, about string
	}{
		{&p.Policy.Keys, "keep", "how long keys of processed messages are kept, as 30d, 36h or ever (required)"},
		{&p.Policy.DeadLetters, "dead-letters", "how long resolved dead letters are kept (default 90d, or --keep if that is longer)"},
		{&p.Policy.Effects, "effects", "how long finished effects are kept (default --keep)"},
		{&p.Policy.Outbox, "outbox", "how long published events of the outbox are kept (default 7d)"},
		{&p.Policy.Versions, "versions", "how long versions of entities are kept (default --keep)"},
		{&p.Policy.Starts, "starts", "how long starts of handlers that died are kept (default --keep)"},
		{&p.Policy.Statistics, "statistics", "how long statistics of consumers are kept (default 90d)"},
		{&p.Policy.Audit, "audit", "how long the trail of what people decided is kept (default ever)"},
		{&p.Policy.MaxDuplicateAge, "max-duplicate-age", "how long after its publication a message can come again, where the broker does not say"},
		{&p.Policy.LettersElsewhere, "letters-elsewhere", "how long dead letters in a broker's queue can be sent back"},
		{&p.Policy.Margin, "margin", "what is added to all that (default 3d)"},
	} {
		f.Var((*age)(flag.to), flag.name, flag.about)
	}
	f.StringVar(&p.broker, "broker", "", "URL of the broker, which is asked how long it keeps messages")
	f.StringArrayVar(&p.queues, "queue", nil, "the topic, stream or queue of --broker that the consumers receive; may be given several times")
	f.IntVar(&p.Batch, "batch", 1000, "how many rows go in one transaction at most")
	f.DurationVar(&p.Pause, "pause", 20*time.Millisecond, "pause between two batches, at least: it is never shorter than the batch took")
	f.BoolVar(&p.dryRun, "dry-run", false, "count the rows, and remove none")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) error { return a.runPrune(ctx, p) })
}

func (p *pruning) check() error {
	switch {
	case p.Policy.Keys == 0:
		return usagef("how long are keys kept? Give --keep, such as --keep 30d")
	case (p.broker == "") != (len(p.queues) == 0):
		return usagef("give --broker and --queue together, or neither")
	case p.Batch < 1:
		return usagef("--batch %d: use 1 or more", p.Batch)
	case p.Pause < 0:
		return usagef("--pause %v: use a time above zero", p.Pause)
	}
	return nil
}

func (a *app) runPrune(ctx context.Context, p pruning) error {
	if err := p.check(); err != nil {
		return err
	}
	for _, queue := range p.queues {
		// It is asked for its retention alone: nothing is received.
		source, err := brokerurl.OpenQueue(p.broker, queue)
		if err != nil {
			return err
		}
		defer closeSoon(ctx, source)
		p.Policy.Sources = append(p.Policy.Sources, source)
	}
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	defer db.Close()
	progress, finish := a.bar("rows removed")
	defer finish()
	if progress != nil {
		p.Progress = func(now retention.Progress) { progress(int(now.Total), -1) }
	}
	pruner, err := retention.New(sqlstore.New(db.SQL, db.Dialect()), p.Config)
	if err != nil {
		return usageError{err}
	}
	run := pruner.Run
	if p.dryRun {
		run = pruner.DryRun
	}
	report, err := run(ctx)
	finish()
	if len(report.Results) > 0 { // what was done before an error, too
		err = errors.Join(err, a.writePruned(report, p.dryRun))
	}
	if errors.Is(err, retention.ErrTooShort) || errors.Is(err, retention.ErrUnlimited) {
		err = fmt.Errorf("%w: see --keep, --broker and --max-duplicate-age", err)
	}
	return err
}

// prunedJSON is what became of rows of a kind.
type prunedJSON struct {
	Rows    string   `json:"rows"`
	KeptFor *float64 `json:"kept_for_seconds"` // null: for ever
	Removed int64    `json:"removed"`
	Took    float64  `json:"took_seconds"`
}

func (a *app) writePruned(report retention.Report, dryRun bool) error {
	list := make([]prunedJSON, len(report.Results))
	verb := "REMOVED"
	if dryRun {
		verb = "TO BE REMOVED"
	}
	rows := [][]string{{"ROWS", "KEPT FOR", verb, "TOOK"}}
	for i, r := range report.Results {
		list[i] = prunedJSON{Rows: string(r.Rows), Removed: r.Removed, Took: r.Took.Seconds()}
		if r.Keep != retention.Forever {
			seconds := r.Keep.Seconds()
			list[i].KeptFor = &seconds
		}
		rows = append(rows, []string{
			string(r.Rows), retention.Days(r.Keep), strconv.FormatInt(r.Removed, 10), r.Took.Round(time.Millisecond).String(),
		})
	}
	if a.output == "json" {
		return writeJSON(a.stdout, map[string]any{"dry_run": dryRun, "results": list})
	}
	return writeTable(a.stdout, rows)
}
