package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sekali/sekali/outbox"
	"github.com/spf13/cobra"
)

// eventDecision is a command that decides about events of the outbox.
type eventDecision struct {
	filter outbox.Filter
	key    string
	yes    bool
	how    outbox.Decision

	verb string // what is done with the events, for people
	do   func(ctx context.Context, desk outbox.Desk, id int64) error
}

func (a *app) retryEvents() *cobra.Command {
	d := &eventDecision{verb: "to be published"}
	d.do = func(ctx context.Context, desk outbox.Desk, id int64) error { return desk.Retry(ctx, id, d.how) }
	return a.eventDecision(d, &cobra.Command{
		Use: "retry [ID…]", Short: "Have parked events published again, their attempts counted anew",
		Long: "Have parked events published again, chosen by their IDs or by filters. A running relay takes them\n" +
			"within seconds. Mend first what the broker did not like: see sekali outbox show ID.",
	})
}

func (a *app) discardEvents() *cobra.Command {
	d := &eventDecision{verb: "never to be published"}
	d.do = func(ctx context.Context, desk outbox.Desk, id int64) error { return desk.Discard(ctx, id, d.how) }
	return a.eventDecision(d, &cobra.Command{
		Use: "discard [ID…]", Short: "Have events never published, for good",
		Long: "Have events never published: parked ones, chosen by their IDs or by filters, or pending ones, chosen\n" +
			"by their IDs. A pending one may be on its way already.",
	})
}

func (a *app) eventDecision(d *eventDecision, c *cobra.Command) *cobra.Command {
	eventFlags(c, &d.filter, &d.key)
	c.Flags().BoolVar(&d.yes, "yes", false, "do it with all parked events that the filters choose (IDs need no yes)")
	c.Flags().StringVar(&d.how.By, "by", whoami(), "who decides, for the audit trail")
	c.Flags().StringVar(&d.how.Note, "note", "", "why, for the audit trail")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, args []string) error {
		var err error
		if d.filter.OrderingKey, err = keyOf(c, d.key); err != nil {
			return err
		}
		filtered := d.filter.Topic != "" || d.filter.OrderingKey != nil
		switch {
		case len(args) == 0 && !filtered && !d.yes:
			return usagef("nothing is chosen: name IDs, or choose by --topic or --ordering-key, or all parked ones with --yes")
		case len(args) > 0 && filtered:
			return usagef("IDs and filters are given: use one of them")
		case d.how.By == "":
			return usagef("--by is empty: say who decides")
		}
		var ids []int64
		for _, arg := range args {
			id, err := eventID(arg)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return a.events(ctx, func(desk outbox.Desk, _ outbox.Rows) error { return a.decideEvents(ctx, desk, d, ids) })
	})
}

// eventResult is what became of one.
type eventResult struct {
	ID        int64         `json:"id"`
	MessageID string        `json:"message_id"`
	Status    outbox.Status `json:"status"` // what it is now
	Error     string        `json:"error,omitempty"`
}

func (a *app) decideEvents(ctx context.Context, desk outbox.Desk, d *eventDecision, ids []int64) error {
	named := len(ids) > 0
	if !named {
		var err error
		if ids, err = parked(ctx, desk, d.filter); err != nil {
			return err
		}
		if !d.yes {
			return usagef("%s would be chosen by filters: look at them with sekali outbox list --status parked, then add --yes", events(len(ids), "parked "))
		}
		fmt.Fprintf(a.stderr, "%s %s\n", events(len(ids), "parked "), d.verb)
	}
	results := make([]eventResult, len(ids))
	bad := 0
	for i, id := range ids {
		before, err := desk.Get(ctx, id)
		if err != nil {
			return eventError(id, err)
		}
		err = d.do(ctx, desk, id)
		if !named && errors.Is(err, outbox.ErrNotParked) {
			err = nil // any more, since the filters chose it
		}
		results[i] = eventResult{ID: id, MessageID: before.MessageID, Status: before.Status}
		if err != nil {
			bad++
			results[i].Error = oneLine(err)
		} else if now, err := desk.Get(ctx, id); err == nil {
			results[i].Status = now.Status
		}
	}
	if err := a.writeEventResults(results); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%s as before: see the error", events(bad, ""))
	}
	return nil
}

// parked returns the IDs of parked events, oldest first: in that order they
// happened.
func parked(ctx context.Context, desk outbox.Desk, f outbox.Filter) (ids []int64, err error) {
	f.Status = outbox.Parked
	for {
		page, err := desk.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			ids, f.Before = append(ids, r.ID), r.ID
		}
		if len(page) < outbox.DefaultLimit {
			slices.Reverse(ids)
			return ids, nil
		}
	}
}

func (a *app) writeEventResults(results []eventResult) error {
	if a.output == "json" {
		return writeJSON(a.stdout, results)
	}
	if len(results) == 0 {
		return nil
	}
	table := [][]string{{"ID", "MESSAGE ID", "NOW", "ERROR"}}
	for _, r := range results {
		table = append(table, []string{strconv.FormatInt(r.ID, 10), short(r.MessageID, 40), string(r.Status), short(r.Error, 100)})
	}
	return writeTable(a.stdout, table)
}

// events counts events.
func events(n int, kind string) string {
	if n == 1 {
		return "1 " + kind + "event"
	}
	return fmt.Sprintf("%d %sevents", n, kind)
}
