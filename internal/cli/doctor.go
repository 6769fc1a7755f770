package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/migrate"
	"github.com/spf13/cobra"
)

// examination is what the doctor is asked.
type examination struct {
	workers                    int
	retention, brokerRetention string
	broker, topic              string
}

func (a *app) doctor() *cobra.Command {
	var e examination
	c := &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong, or will be, with the database and what is in it", Args: cobra.NoArgs,
		Long: "Look for what is wrong, or will be, with the database and what is in it. It changes nothing and\n" +
			"reads no whole table.\n\n" +
			"Each finding says what is so, what comes of it and what mends it. The exit status is 1 if one\n" +
			"of them is an error. Give it the consumers' own database URL: it looks at their sessions.",
	}
	c.Flags().IntVar(&e.workers, "workers", 4, "how many Workers the consumers of one process have together")
	c.Flags().StringVar(&e.retention, "retention", "", "how long rows are kept, such as 30d or 720h (default for ever)")
	c.Flags().StringVar(&e.brokerRetention, "broker-retention", "", "how long the broker keeps messages, such as 7d; or unlimited")
	c.Flags().StringVar(&e.broker, "broker", "", "URL of the broker, to ask it instead, where it can tell")
	c.Flags().StringVar(&e.topic, "topic", "", "with --broker: the topic, stream or queue that is consumed")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) error {
		q, err := e.question(ctx)
		if err != nil {
			return err
		}
		return a.desk(ctx, func(desk admin.Admin, db *dburl.DB) error { return a.examine(ctx, desk, db, q) })
	})
}

// question reads the command line, and asks the broker if it is to be asked.
func (e examination) question(ctx context.Context) (q admin.Question, err error) {
	if q.Workers = e.workers; q.Workers < 1 {
		return q, usagef("--workers %d: use 1 or more", e.workers)
	}
	if q.Retention, err = span("--retention", e.retention); err != nil {
		return q, err
	}
	switch {
	case (e.broker == "") != (e.topic == ""):
		return q, usagef("--broker and --topic go together")
	case e.broker != "" && e.brokerRetention != "":
		return q, usagef("--broker and --broker-retention are given: use one of them")
	case e.brokerRetention == "unlimited":
		q.BrokerUnlimited = true
		return q, nil
	case e.broker == "":
		q.BrokerRetention, err = span("--broker-retention", e.brokerRetention)
		return q, err
	}
	source, err := brokerurl.OpenQueue(e.broker, e.topic)
	if err != nil {
		return q, err
	}
	defer closeSoon(ctx, source)
	q.BrokerRetention, q.BrokerUnlimited, err = retentionOf(ctx, source)
	if err != nil {
		return q, fmt.Errorf("broker %s: %w", brokerurl.Redact(e.broker), err)
	}
	return q, nil
}

// errNoRetention is the error of a broker that does not tell.
var errNoRetention = errors.New("it does not tell how long it keeps messages: say so with --broker-retention")

// retentionOf asks a Source how long its broker keeps messages; 0: for ever.
func retentionOf(ctx context.Context, source broker.Source) (_ time.Duration, unlimited bool, err error) {
	keeper, ok := broker.As[interface {
		Retention(ctx context.Context) (time.Duration, error)
	}](source)
	if !ok {
		return 0, false, errNoRetention
	}
	keeps, err := keeper.Retention(ctx)
	return keeps, err == nil && keeps == 0, err
}

// span reads a time above zero, in days too; 0 for an empty text.
func span(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if number, is := strings.CutSuffix(text, "d"); is {
		var n int
		n, err = strconv.Atoi(number)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d <= 0 {
		return 0, usagef("%s %q: write a time, such as 30d or 720h", flag, text)
	}
	return d, nil
}

// findingJSON is a finding.
type findingJSON struct {
	Check    string         `json:"check"`
	Severity admin.Severity `json:"severity"`
	About    string         `json:"about,omitempty"`
	Found    string         `json:"found"`
	Means    string         `json:"means"`
	Mend     string         `json:"mend"`
}

func (a *app) examine(ctx context.Context, desk admin.Admin, db *dburl.DB, q admin.Question) error {
	facts, err := desk.Health.Facts(ctx)
	if err != nil {
		return err
	}
	findings := admin.Diagnose(facts, q)
	if len(facts.Unfit) == 0 && !facts.Confused {
		pending, err := pendingMigrations(ctx, db)
		if err != nil {
			return err
		}
		findings = append(findings, pending...)
	}
	broken := 0
	for _, f := range findings {
		if f.Severity == admin.Error {
			broken++
		}
	}
	if a.output == "json" {
		report := struct {
			Database string        `json:"database"`
			OK       bool          `json:"ok"`
			Findings []findingJSON `json:"findings"`
		}{facts.Database, broken == 0, make([]findingJSON, len(findings))}
		for i, f := range findings {
			report.Findings[i] = findingJSON(f)
		}
		err = writeJSON(a.stdout, report)
	} else {
		err = a.printFindings(facts, findings, broken)
	}
	if err == nil && broken > 0 {
		err = fmt.Errorf("the doctor found %s", many(broken, "error"))
	}
	return err
}

// pendingMigrations is the finding that only migrations are missing, while
// every table does.
func pendingMigrations(ctx context.Context, db *dburl.DB) ([]admin.Finding, error) {
	states, err := migrate.Status(ctx, db.SQL, db.Migrations())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range states {
		if s.Pending() {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return []admin.Finding{{
		Check: "migrations", Severity: admin.Warning, Found: many(len(names), "migration") + " not applied: " + strings.Join(names, ", "),
		Means: "all tables are there, but what was improved on them since is not", Mend: "sekali migrate up",
	}}, nil
}

// many is a number of things.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func (a *app) printFindings(facts admin.Facts, findings []admin.Finding, broken int) error {
	name := facts.Database
	if name == "" {
		name = "the database"
	}
	if len(findings) == 0 {
		_, err := fmt.Fprintf(a.stdout, "%s: all is well (%s)\n", plain(name), many(len(admin.Checks()), "check"))
		return err
	}
	fmt.Fprintf(a.stdout, "%s: %s, %s\n", plain(name), many(broken, "error"), many(len(findings)-broken, "warning"))
	for _, f := range findings {
		head := string(f.Severity) + "  " + f.Check
		if f.About != "" {
			head += ": " + plain(f.About)
		}
		fmt.Fprintf(a.stdout, "\n%s\n  %s\n  so    %s\n  mend  %s\n", head, plain(f.Found), plain(f.Means), indented(f.Mend))
	}
	return nil
}

// indented is plain text of several lines below the first one's beginning.
func indented(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
	for i, line := range lines {
		lines[i] = plain(line)
	}
	return strings.Join(lines, "\n        ")
}
