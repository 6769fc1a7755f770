package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/spf13/cobra"
)

func (a *app) outbox() *cobra.Command {
	var f outbox.Filter
	list := &cobra.Command{Use: "list", Short: "List events of the outbox, newest first", Args: cobra.NoArgs}
	var status string
	var key string
	eventFlags(list, &f, &key)
	list.Flags().StringVar(&f.MessageID, "message-id", "", "only the one with this id")
	list.Flags().StringVar(&status, "status", "unpublished", "only those of this status: "+texts(outbox.Statuses())+"; unpublished (the pending and the parked), or all")
	list.Flags().IntVar(&f.Limit, "limit", outbox.DefaultLimit, "how many at most")
	list.Flags().Int64Var(&f.Before, "before", 0, "only IDs below this one: the next page")
	show := &cobra.Command{Use: "show ID", Short: "Show one event with its headers and body", Args: oneEvent}
	stats := &cobra.Command{Use: "stats", Short: "Tell how much is to be published and how long the oldest has waited", Args: cobra.NoArgs}
	for _, c := range []*cobra.Command{list, show, stats} {
		a.databaseFlag(c)
		a.outputFlag(c)
	}
	return group(
		"outbox", "Look at events that are to be published, publish them, and decide about those that a broker refuses",
		a.command(list, func(ctx context.Context, _ []string) error {
			var err error
			if f.OrderingKey, err = keyOf(list, key); err != nil {
				return err
			}
			return a.listEvents(ctx, f, status)
		}),
		a.command(show, func(ctx context.Context, args []string) error { return a.showEvent(ctx, args[0]) }),
		a.command(stats, func(ctx context.Context, _ []string) error { return a.outboxStats(ctx) }),
		a.retryEvents(), a.discardEvents(), a.relay(),
	)
}

func oneEvent(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("name the ID of one event: see sekali outbox list")
	}
	return nil
}

func eventFlags(c *cobra.Command, f *outbox.Filter, key *string) {
	textFlag(c, &f.Topic, "topic", "only those for this topic")
	c.Flags().StringVar(key, "ordering-key", "", "only those of this ordering key, as lists print it")
}

// keyOf is the ordering key of a flag: an empty one is a key too.
func keyOf(c *cobra.Command, key string) ([]byte, error) {
	if !c.Flags().Changed("ordering-key") {
		return nil, nil
	}
	keys, err := keysOf([]string{key})
	if err != nil {
		return nil, err
	}
	return []byte(keys[0]), nil
}

// events calls work with the database's outbox.
func (a *app) events(ctx context.Context, work func(outbox.Desk, outbox.Rows) error) error {
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	defer db.Close()
	rows := sqlstore.New(db.SQL, db.Dialect()).Outbox()
	return work(rows.(outbox.Desk), rows)
}

// eventJSON is an event without loss.
type eventJSON struct {
	ID          int64         `json:"id"`
	MessageID   string        `json:"message_id"`
	Topic       string        `json:"topic"`
	OrderingKey any           `json:"ordering_key"`
	Status      outbox.Status `json:"status"`
	Attempts    int           `json:"attempts"`
	Error       string        `json:"error,omitempty"`
	Lane        int           `json:"lane"`
	NotBefore   *time.Time    `json:"not_before,omitempty"`
	CreatedAt   time.Time     `json:"created_at"`
	PublishedAt *time.Time    `json:"published_at,omitempty"`
	Headers     any           `json:"headers,omitempty"`
	Body        any           `json:"body,omitempty"`
}

func eventAsJSON(r outbox.Row, whole bool) eventJSON {
	e := eventJSON{
		ID: r.ID, MessageID: r.MessageID, Topic: r.Topic, OrderingKey: jsonBytes(r.OrderingKey), Status: r.Status, Attempts: r.Attempts,
		Error: r.Error, Lane: r.Lane, NotBefore: known(r.NotBefore), CreatedAt: r.CreatedAt, PublishedAt: known(r.PublishedAt),
	}
	if whole {
		e.Headers, e.Body = headersOf(r), jsonBytes(r.Body)
	}
	return e
}

func known(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

// headersOf returns an event's headers as pairs, or as the text that they are
// if they cannot be read.
func headersOf(r outbox.Row) any {
	headers, err := outbox.UnmarshalHeaders(r.Headers)
	if err != nil {
		return string(r.Headers)
	}
	pairs := make([][2]any, len(headers))
	for i, h := range headers {
		pairs[i] = [2]any{h.Name, jsonBytes(h.Value)}
	}
	return pairs
}

func (a *app) listEvents(ctx context.Context, f outbox.Filter, status string) error {
	var of []outbox.Status
	switch {
	case f.Limit < 1:
		return usagef("--limit %d: use 1 or more", f.Limit)
	case f.Before < 0:
		return usagef("--before %d: use an ID from a list", f.Before)
	case status == "all" || f.MessageID != "":
		of = []outbox.Status{""}
	case status == "unpublished":
		of = []outbox.Status{outbox.Pending, outbox.Parked}
	case slices.Contains(outbox.Statuses(), outbox.Status(status)):
		of = []outbox.Status{outbox.Status(status)}
	default:
		return usagef("--status %q: use one of %s, unpublished, all", status, texts(outbox.Statuses()))
	}
	return a.events(ctx, func(desk outbox.Desk, _ outbox.Rows) error {
		var rows []outbox.Row
		for _, s := range of {
			f.Status = s
			some, err := desk.List(ctx, f)
			if err != nil {
				return err
			}
			rows = append(rows, some...)
		}
		slices.SortFunc(rows, func(x, y outbox.Row) int { return int(y.ID - x.ID) })
		return a.writeEvents(rows[:min(len(rows), f.Limit)])
	})
}

func (a *app) writeEvents(rows []outbox.Row) error {
	if a.output == "json" {
		list := make([]eventJSON, len(rows))
		for i, r := range rows {
			list[i] = eventAsJSON(r, false)
		}
		return writeJSON(a.stdout, list)
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.stderr, "no events")
		return nil
	}
	table := [][]string{{"ID", "MESSAGE ID", "TOPIC", "ORDERING KEY", "STATUS", "ATTEMPTS", "CREATED (UTC)", "ERROR"}}
	for _, r := range rows {
		table = append(table, []string{
			strconv.FormatInt(r.ID, 10), short(r.MessageID, 40), short(r.Topic, 40), keyText(r.OrderingKey, 40), string(r.Status),
			strconv.Itoa(r.Attempts), r.CreatedAt.Format(time.DateTime), short(r.Error, 60),
		})
	}
	return writeTable(a.stdout, table)
}

// keyText is an ordering key for people.
func keyText(key []byte, n int) string {
	switch {
	case key == nil:
		return "(none)"
	case len(key) == 0:
		return "(empty)"
	}
	return shortKey(string(key), n)
}

func (a *app) showEvent(ctx context.Context, arg string) error {
	id, err := eventID(arg)
	if err != nil {
		return err
	}
	return a.events(ctx, func(desk outbox.Desk, _ outbox.Rows) error {
		r, err := desk.Get(ctx, id)
		if err != nil {
			return eventError(id, err)
		}
		if a.output == "json" {
			return writeJSON(a.stdout, eventAsJSON(r, true))
		}
		return a.printEvent(r)
	})
}

func (a *app) printEvent(r outbox.Row) error {
	rows := [][]string{
		{"id", strconv.FormatInt(r.ID, 10)},
		{"message id", plain(r.MessageID)},
		{"topic", plain(r.Topic)},
		{"ordering key", keyText(r.OrderingKey, outbox.MaxID)},
		{"status", string(r.Status)},
		{"attempts", strconv.Itoa(r.Attempts)},
		{"lane", strconv.Itoa(r.Lane)},
		{"created", r.CreatedAt.Format(time.DateTime) + " UTC"},
	}
	if !r.NotBefore.IsZero() {
		rows = append(rows, []string{"not before", r.NotBefore.Format(time.DateTime) + " UTC"})
	}
	if !r.PublishedAt.IsZero() {
		rows = append(rows, []string{"published", r.PublishedAt.Format(time.DateTime) + " UTC"})
	}
	if r.Error != "" {
		rows = append(rows, []string{"error", plain(r.Error)})
	}
	if err := writeTable(a.stdout, rows); err != nil {
		return err
	}
	headers, err := outbox.UnmarshalHeaders(r.Headers)
	if err != nil {
		fmt.Fprintf(a.stdout, "\nheaders that cannot be read (%v):\n  %s\n", err, plain(string(r.Headers)))
	} else if len(headers) > 0 {
		fmt.Fprintln(a.stdout, "\nheaders:")
		for _, h := range headers {
			fmt.Fprintf(a.stdout, "  %s: %s\n", plain(h.Name), plain(string(h.Value)))
		}
	}
	fmt.Fprintf(a.stdout, "\nbody (%d bytes):\n%s\n", len(r.Body), body(r.Body))
	return nil
}

func (a *app) outboxStats(ctx context.Context) error {
	return a.events(ctx, func(_ outbox.Desk, rows outbox.Rows) error {
		s, err := rows.Stats(ctx)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return writeJSON(a.stdout, map[string]any{"pending": s.Pending, "parked": s.Parked, "lag_seconds": s.Lag.Seconds()})
		}
		lag := "nothing waits"
		if s.Lag > 0 {
			lag = s.Lag.Round(time.Second).String()
		}
		return writeTable(a.stdout, [][]string{{"pending", upTo(s.Pending)}, {"parked", upTo(s.Parked)}, {"lag", lag}})
	})
}

// upTo is a count that ends at outbox.MaxCount.
func upTo(n int) string {
	if n >= outbox.MaxCount {
		return strconv.Itoa(n) + " or more"
	}
	return strconv.Itoa(n)
}

func eventID(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, usagef("event %q: an ID is a number: see sekali outbox list", arg)
	}
	return id, nil
}

func eventError(id int64, err error) error {
	if errors.Is(err, outbox.ErrNotFound) {
		return fmt.Errorf("event %d: there is none with this ID: see sekali outbox list", id)
	}
	return err
}
