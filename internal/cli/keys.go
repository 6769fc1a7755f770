package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/spf13/cobra"
)

func (a *app) keys() *cobra.Command {
	return group(
		"keys", "Look at the keys of messages that were processed, and change which are taken for processed",
		a.findKey(), a.keyStats(), a.forgetKeys(), a.seedKeys(),
	)
}

func (a *app) findKey() *cobra.Command {
	c := &cobra.Command{
		Use: "find KEY", Short: "Tell which consumers have processed a key, and when",
		Long: "Tell which consumers have processed a key, and when, and which dead letters bear it.\n\n" +
			"KEY is as it came with the message, or as it is stored: sha256: and 64 digits for a long one.\n" + escapes,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one key, in quotes if it holds blanks")
			}
			return nil
		},
	}
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, args []string) error {
		keys, err := keysOf(args)
		if err != nil {
			return err
		}
		return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error {
			rows, err := desk.Keys.Find(ctx, keys[0])
			if err != nil {
				return err
			}
			letters, err := lettersOf(ctx, desk, keys[0])
			if err != nil {
				return err
			}
			return a.writeFound(rows, letters)
		})
	})
}

// lettersOf returns the dead letters that bear a key, of the consumers that are
// known: their index begins with the consumer.
func lettersOf(ctx context.Context, desk admin.Admin, key string) (letters []deadletter.Letter, err error) {
	o, err := desk.Health.Overview(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range o.Consumers {
		some, err := desk.DeadLetters.List(ctx, deadletter.Filter{Consumer: c.Name, Key: key})
		var schema *store.SchemaError
		if errors.As(err, &schema) {
			return nil, nil // there are none without the table
		}
		if err != nil {
			return nil, err
		}
		letters = append(letters, some...)
	}
	return letters, nil
}

// keyJSON is a row of processed_messages without loss.
type keyJSON struct {
	Consumer    string     `json:"consumer"`
	Stored      string     `json:"stored_key"`
	ProcessedAt *time.Time `json:"processed_at"`
	Fingerprint string     `json:"fingerprint,omitempty"`
}

func keyAsJSON(k admin.Key) keyJSON {
	return keyJSON{Consumer: k.Consumer, Stored: k.Stored, ProcessedAt: known(k.ProcessedAt), Fingerprint: hex.EncodeToString(k.Fingerprint)}
}

// keyLetterJSON is what find tells of a dead letter.
type keyLetterJSON struct {
	ID       int64             `json:"id"`
	Consumer string            `json:"consumer"`
	Status   deadletter.Status `json:"status"`
	Reason   deadletter.Reason `json:"reason"`
	LastAt   time.Time         `json:"last_at"`
}

func (a *app) writeFound(rows []admin.Key, letters []deadletter.Letter) error {
	if a.output == "json" {
		value := struct {
			Processed   []keyJSON       `json:"processed"`
			DeadLetters []keyLetterJSON `json:"dead_letters"`
		}{make([]keyJSON, len(rows)), make([]keyLetterJSON, len(letters))}
		for i, k := range rows {
			value.Processed[i] = keyAsJSON(k)
		}
		for i, l := range letters {
			value.DeadLetters[i] = keyLetterJSON{l.ID, l.Consumer, l.Status, l.Reason, l.LastAt.UTC()}
		}
		return writeJSON(a.stdout, value)
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.stderr, "no consumer has processed it, or its row was pruned or forgotten")
	}
	if len(rows)+len(letters) == 0 {
		return nil
	}
	table := [][]string{{"CONSUMER", "WHAT", "AT (UTC)", "STORED AS"}}
	for _, k := range rows {
		table = append(table, []string{plain(k.Consumer), "processed", at(k.ProcessedAt), escapeKey(k.Stored)})
	}
	for _, l := range letters {
		table = append(table, []string{
			plain(l.Consumer), fmt.Sprintf("dead letter %d, %s (%s)", l.ID, l.Status, l.Reason), at(l.LastAt), escapeKey(store.StoredKey(l.Key)),
		})
	}
	return writeTable(a.stdout, table)
}

// at is a time for people, in UTC.
func at(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}

func (a *app) keyStats() *cobra.Command {
	var consumer string
	var back int
	var rows bool
	c := &cobra.Command{
		Use: "stats", Short: "Count what consumers did, day by day", Args: cobra.NoArgs,
		Long: "Count what consumers did, day by day in UTC, from the table consumer_stats, which they write.\n\n" +
			"--rows counts the rows of processed_messages instead, which reads the whole table.",
	}
	textFlag(c, &consumer, "consumer", "only this consumer")
	c.Flags().IntVar(&back, "days", 7, "how many days, today included")
	c.Flags().BoolVar(&rows, "rows", false, "count rows by the day they were written: reads the whole table, and takes its time")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, _ []string) error {
		if back < 1 {
			return usagef("--days %d: use 1 or more", back)
		}
		if rows && c.Flags().Changed("days") {
			return usagef("--rows counts all days: leave --days out")
		}
		return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error {
			if rows {
				return a.countRows(ctx, desk, consumer)
			}
			return a.writeActivity(ctx, desk, consumer, back)
		})
	})
}

func (a *app) countRows(ctx context.Context, desk admin.Admin, consumer string) error {
	days, err := desk.Keys.Days(ctx, consumer)
	if err != nil {
		return err
	}
	if a.output == "json" {
		type dayJSON struct {
			Consumer string     `json:"consumer"`
			Day      *time.Time `json:"day"`
			Rows     int64      `json:"rows"`
		}
		list := make([]dayJSON, len(days))
		for i, d := range days {
			list[i] = dayJSON{d.Consumer, known(d.Day), d.Rows}
		}
		return writeJSON(a.stdout, list)
	}
	if len(days) == 0 {
		fmt.Fprintln(a.stderr, "no rows")
		return nil
	}
	table := [][]string{{"DAY (UTC)", "CONSUMER", "ROWS"}}
	for _, d := range days {
		day := "unknown"
		if !d.Day.IsZero() {
			day = d.Day.Format(time.DateOnly)
		}
		table = append(table, []string{day, plain(d.Consumer), strconv.FormatInt(d.Rows, 10)})
	}
	return writeTable(a.stdout, table)
}

// activityJSON is what a consumer did on a day.
type activityJSON struct {
	Day         string   `json:"day"`
	Consumer    string   `json:"consumer"`
	Processed   int64    `json:"processed"`
	Duplicates  int64    `json:"duplicates"`
	Redelivered int64    `json:"duplicates_redelivered"`
	Repeated    int64    `json:"duplicates_repeated"`
	LostRaces   int64    `json:"duplicates_lost_races"`
	Redriven    int64    `json:"duplicates_redriven"`
	Stale       int64    `json:"stale"`
	Conflicts   int64    `json:"conflicts"`
	Retries     int64    `json:"retries"`
	DeadLetters int64    `json:"dead_letters"`
	Within      *float64 `json:"duplicates_within_seconds"` // 99.9% of them; null: not known, or longer than 30 days
}

func (a *app) writeActivity(ctx context.Context, desk admin.Admin, consumer string, back int) error {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	buckets, err := desk.Health.Activity(ctx, admin.Span{
		Consumer: consumer, From: today.AddDate(0, 0, 1-back), To: today.AddDate(0, 0, 2), Step: 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	if a.output == "json" {
		list := make([]activityJSON, len(buckets))
		for i, b := range buckets {
			list[i] = activityJSON{
				b.At.Format(time.DateOnly), b.Consumer, b.Processed, b.Duplicates(), b.Redelivered, b.Repeated, b.LostRaces, b.Redriven,
				b.Stale, b.Conflicts, b.Retries, b.DeadLetters, nil,
			}
			if within, ok := b.Within(mostDuplicates); ok {
				seconds := within.Seconds()
				list[i].Within = &seconds
			}
		}
		return writeJSON(a.stdout, list)
	}
	if len(buckets) == 0 {
		fmt.Fprintln(a.stderr, "no statistics of these days: consumers write them unless StatsEvery is below 0; --rows counts rows")
		return nil
	}
	table := [][]string{{"DAY (UTC)", "CONSUMER", "PROCESSED", "DUPLICATES", "99.9% WITHIN", "STALE", "CONFLICTS", "RETRIES", "DEAD LETTERS"}}
	for _, b := range buckets {
		within := "-"
		if d, ok := b.Within(mostDuplicates); ok {
			within = d.String()
		} else if b.Ages[store.NumAges-1] > 0 {
			within = "more than 30 days"
		}
		row := []string{b.At.Format(time.DateOnly), plain(b.Consumer), strconv.FormatInt(b.Processed, 10), strconv.FormatInt(b.Duplicates(), 10), within}
		for _, n := range []int64{b.Stale, b.Conflicts, b.Retries, b.DeadLetters} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		table = append(table, row)
	}
	return writeTable(a.stdout, table)
}

// mostDuplicates is the share of duplicates whose age tells how long rows must
// be kept.
const mostDuplicates = 0.999

func (a *app) forgetKeys() *cobra.Command {
	var consumer string
	var yes bool
	var how admin.Decision
	c := &cobra.Command{
		Use: "forget KEY…", Short: "Remove the rows of keys, so that messages with them are processed again",
		Long: "Remove the rows of keys, so that the next message with such a key is processed like a new one.\n\n" +
			"Nobody sends it for that: a dead letter is redriven with --force instead. Effects outside the\n" +
			"database that succeeded keep their results and do not happen again.\n\n" + escapes,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("name the keys, in quotes if they hold blanks: see sekali keys find")
			}
			return nil
		},
	}
	textFlag(c, &consumer, "consumer", "only rows of this consumer (default all)")
	c.Flags().BoolVar(&yes, "yes", false, "do it: without, the rows are only counted and shown")
	c.Flags().StringVar(&how.By, "by", whoami(), "who decides, for the audit trail")
	c.Flags().StringVar(&how.Note, "note", "", "why, for the audit trail")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, args []string) error {
		if how.By == "" {
			return usagef("--by is empty: say who decides")
		}
		named, err := keysOf(args)
		if err != nil {
			return err
		}
		return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error {
			keys, err := chooseKeys(ctx, desk.Keys, consumer, named)
			if err != nil {
				return err
			}
			return a.forget(ctx, desk.Keys, keys, yes, how)
		})
	})
}

func chooseKeys(ctx context.Context, desk admin.Keys, consumer string, args []string) ([]admin.Key, error) {
	chosen := map[[2]string]admin.Key{}
	for _, arg := range args {
		found, err := desk.Find(ctx, arg)
		if err != nil {
			return nil, err
		}
		for _, k := range found {
			if row := [2]string{k.Consumer, k.Stored}; consumer == "" || k.Consumer == consumer {
				if _, there := chosen[row]; !there || k.Raw != "" {
					chosen[row] = k
				}
			}
		}
	}
	keys := make([]admin.Key, 0, len(chosen))
	for _, k := range chosen {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y admin.Key) int {
		if order := strings.Compare(x.Consumer, y.Consumer); order != 0 {
			return order
		}
		return strings.Compare(x.Stored, y.Stored)
	})
	return keys, nil
}

func (a *app) forget(ctx context.Context, desk admin.Keys, keys []admin.Key, yes bool, how admin.Decision) error {
	what := "1 row"
	if len(keys) != 1 {
		what = strconv.Itoa(len(keys)) + " rows"
	}
	fmt.Fprintln(a.stderr, what+" to be forgotten")
	if err := a.writeKeys(keys); err != nil {
		return err
	}
	switch {
	case len(keys) == 0:
		return nil
	case !yes:
		return usagef("%s would be forgotten: look at them, then add --yes", what)
	}
	gone := 0
	for some := range slices.Chunk(keys, admin.MaxForget) {
		n, err := desk.Forget(ctx, some, how)
		if err != nil {
			return fmt.Errorf("%w (%d rows were forgotten before)", err, gone)
		}
		gone += n
	}
	if gone < len(keys) {
		fmt.Fprintf(a.stderr, "%d of them were gone by then\n", len(keys)-gone)
	}
	return nil
}

func (a *app) writeKeys(keys []admin.Key) error {
	if a.output == "json" {
		list := make([]keyJSON, len(keys))
		for i, k := range keys {
			list[i] = keyAsJSON(k)
		}
		return writeJSON(a.stdout, list)
	}
	if len(keys) == 0 {
		return nil
	}
	table := [][]string{{"CONSUMER", "PROCESSED (UTC)", "STORED AS"}}
	for _, k := range keys {
		table = append(table, []string{plain(k.Consumer), at(k.ProcessedAt), escapeKey(k.Stored)})
	}
	return writeTable(a.stdout, table)
}
