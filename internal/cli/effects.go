package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/spf13/cobra"
)

func (a *app) effects() *cobra.Command {
	var f effect.Filter
	list := &cobra.Command{Use: "list", Short: "List effects outside the database, newest first", Args: cobra.NoArgs}
	textFlag(list, &f.Consumer, "consumer", "only those of this consumer")
	keyFlag(list, &f.MessageKey, "key", "only those of this message key, as lists print it")
	textFlag(list, &f.Name, "name", "only those of this name")
	list.Flags().StringVar((*string)(&f.State), "status", "", "only those of this status: "+texts(effect.States()))
	list.Flags().IntVar(&f.Limit, "limit", effect.DefaultLimit, "how many at most")
	list.Flags().Int64Var(&f.Before, "before", 0, "only IDs below this one: the next page")
	show := &cobra.Command{Use: "show ID", Short: "Show one effect with its result or error", Args: oneEffect}
	for _, c := range []*cobra.Command{list, show} {
		a.databaseFlag(c)
		a.outputFlag(c)
	}
	return group(
		"effects", "Look at effects outside the database, and resolve those whose outcome is unknown",
		a.command(list, func(ctx context.Context, _ []string) error { return a.listEffects(ctx, f) }),
		a.command(show, func(ctx context.Context, args []string) error { return a.showEffect(ctx, args[0]) }),
		a.resolveEffect(),
	)
}

func oneEffect(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("name the ID of one effect: see sekali effects list")
	}
	return nil
}

// ledger calls work with the database's effects.
func (a *app) ledger(ctx context.Context, work func(admin.Effects) error) error {
	return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error { return work(desk.Effects) })
}

// effectJSON is an effect without loss.
type effectJSON struct {
	ID             int64           `json:"id"`
	Consumer       string          `json:"consumer"`
	Key            any             `json:"key"`
	Name           string          `json:"name"`
	Status         effect.State    `json:"status"`
	GivenUp        bool            `json:"given_up,omitempty"`
	Owned          bool            `json:"owned"` // somebody's call is under way
	IdempotencyKey string          `json:"idempotency_key"`
	Attempts       int             `json:"attempts"`
	Error          string          `json:"error,omitempty"`
	Decided        string          `json:"decided,omitempty"` // by whom, and why
	Result         json.RawMessage `json:"result,omitempty"`
	UpdatedAt      time.Time       `json:"updated_at"`
}

func effectAsJSON(r effect.Row) effectJSON {
	text, decision := errorOf(r)
	return effectJSON{
		ID: r.Number, Consumer: r.Consumer, Key: jsonBytes([]byte(r.MessageKey)), Name: r.Name, Status: r.State, GivenUp: r.Final,
		Owned: r.LeaseLeft > 0, IdempotencyKey: r.IdempotencyKey, Attempts: r.Attempt, Error: text, Decided: decision, Result: r.Result, UpdatedAt: r.UpdatedAt.UTC(),
	}
}

// errorOf returns why an effect is as it is: the error of its last call, or the
// decision of a person.
func errorOf(r effect.Row) (text, decision string) {
	if d := r.Decision(); d != "" {
		return "", d
	}
	return r.Error, ""
}

// statusOf says more than the state where that is needed.
func statusOf(r effect.Row) string {
	switch {
	case r.State == effect.Started && r.LeaseLeft == 0:
		return "started, its process ended"
	case r.Final:
		return string(r.State) + ", given up"
	}
	return string(r.State)
}

func (a *app) listEffects(ctx context.Context, f effect.Filter) error {
	switch {
	case f.Limit < 1:
		return usagef("--limit %d: use 1 or more", f.Limit)
	case f.Before < 0:
		return usagef("--before %d: use an ID from a list", f.Before)
	case f.State != "" && !slices.Contains(effect.States(), f.State):
		return usagef("--status %q: use one of %s", f.State, texts(effect.States()))
	}
	return a.ledger(ctx, func(desk admin.Effects) error {
		rows, err := desk.List(ctx, f)
		if err != nil {
			return err
		}
		if a.output == "json" {
			list := make([]effectJSON, len(rows))
			for i, r := range rows {
				list[i] = effectAsJSON(r)
			}
			return writeJSON(a.stdout, list)
		}
		if len(rows) == 0 {
			fmt.Fprintln(a.stderr, "no effects")
			return nil
		}
		table := [][]string{{"ID", "CONSUMER", "KEY", "NAME", "STATUS", "ATTEMPTS", "UPDATED (UTC)", "ERROR"}}
		for _, r := range rows {
			text, decision := errorOf(r)
			if decision != "" {
				text = "resolved " + decision
			}
			table = append(table, []string{
				strconv.FormatInt(r.Number, 10), plain(r.Consumer), shortKey(r.MessageKey, 40), plain(r.Name), statusOf(r),
				strconv.Itoa(r.Attempt), r.UpdatedAt.UTC().Format(time.DateTime), short(text, 60),
			})
		}
		return writeTable(a.stdout, table)
	})
}

func effectID(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, usagef("effect %q: an ID is a number: see sekali effects list", arg)
	}
	return id, nil
}

func effectError(id int64, err error) error {
	if errors.Is(err, effect.ErrNotFound) {
		return fmt.Errorf("effect %d: there is none with this ID: see sekali effects list", id)
	}
	return err
}

func (a *app) showEffect(ctx context.Context, arg string) error {
	id, err := effectID(arg)
	if err != nil {
		return err
	}
	return a.ledger(ctx, func(desk admin.Effects) error {
		r, err := desk.Get(ctx, id)
		if err != nil {
			return effectError(id, err)
		}
		return a.writeEffect(r)
	})
}

func (a *app) writeEffect(r effect.Row) error {
	if a.output == "json" {
		return writeJSON(a.stdout, effectAsJSON(r))
	}
	rows := [][]string{
		{"id", strconv.FormatInt(r.Number, 10)},
		{"consumer", plain(r.Consumer)},
		{"key", keyOrNone(r.MessageKey)},
		{"name", plain(r.Name)},
		{"status", statusOf(r)},
		{"attempts", strconv.Itoa(r.Attempt)},
		{"idempotency key", r.IdempotencyKey},
		{"first attempt", r.SinceFirst.Round(time.Second).String() + " ago"},
		{"last attempt", r.SinceStart.Round(time.Second).String() + " ago"},
		{"updated", r.UpdatedAt.UTC().Format(time.DateTime) + " UTC"},
	}
	if r.LeaseLeft > 0 {
		rows = append(rows, []string{"under way", "its owner has " + r.LeaseLeft.Round(time.Millisecond).String() + " left"})
	}
	text, decision := errorOf(r)
	if decision != "" {
		rows = append(rows, []string{"decided", plain(decision)})
	}
	if text != "" {
		rows = append(rows, []string{"error", plain(text)})
	}
	if r.Result != nil {
		rows = append(rows, []string{"result", plain(string(r.Result))})
	}
	return writeTable(a.stdout, rows)
}

func (a *app) resolveEffect() *cobra.Command {
	var succeeded, retry, giveUp bool
	var result string
	how := effect.Resolution{}
	c := &cobra.Command{
		Use: "resolve ID", Short: "Say what became of an effect whose outcome is unknown", Args: oneEffect,
		Long: "Say what became of an effect whose outcome is unknown or that is parked: ask the provider first.\n\n" +
			"A message that waits for it goes on by itself, within seconds, where its consumer runs.\n\n" +
			"It may be said again, and otherwise, until the message is processed; of a call that succeeded only\n" +
			"the result can be corrected, with --succeeded --result. A message that became a dead letter over\n" +
			"it is redriven: sekali deadletters redrive.",
	}
	c.Flags().BoolVar(&succeeded, "succeeded", false, "it has happened: it is never called again")
	c.Flags().StringVar(&result, "result", "", "with --succeeded: the call's result in JSON, as the handler needs it (default null)")
	c.Flags().BoolVar(&retry, "retry", false, "it has not happened, or may happen again: call again, under the same key")
	c.Flags().BoolVar(&giveUp, "failed", false, "it has not happened and shall not: its message becomes a dead letter")
	c.Flags().StringVar(&how.By, "by", whoami(), "who decides, for the audit trail")
	c.Flags().StringVar(&how.Note, "note", "", "why, for the audit trail")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, args []string) error {
		id, err := effectID(args[0])
		if err != nil {
			return err
		}
		switch n := count(succeeded, retry, giveUp); {
		case n != 1:
			return usagef("say what became of it: one of --succeeded, --retry and --failed")
		case result != "" && !succeeded:
			return usagef("--result goes with --succeeded")
		case result != "" && !json.Valid([]byte(result)):
			return usagef("--result is not JSON: a text needs quotes, such as --result '\"PX-1\"'")
		case how.By == "":
			return usagef("--by is empty: say who decides")
		}
		how.To, how.GiveUp = effect.Failed, giveUp
		if succeeded {
			how.To = effect.Succeeded
		}
		if result != "" {
			how.Result = []byte(result)
		}
		return a.ledger(ctx, func(desk admin.Effects) error {
			if err := desk.Resolve(ctx, id, how); err != nil {
				return effectError(id, err)
			}
			r, err := desk.Get(ctx, id)
			if err != nil {
				return err
			}
			return a.writeEffect(r)
		})
	})
}

func count(flags ...bool) (n int) {
	for _, is := range flags {
		if is {
			n++
		}
	}
	return n
}
