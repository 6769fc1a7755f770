package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/spf13/cobra"
)

// decision is a command that decides about letters.
type decision struct {
	filter deadletter.Filter
	yes    bool
	dryRun bool
	how    deadletter.Decision
	wait   time.Duration // for the consumer

	verb      string         // what is done with the letters, for people
	again     bool           // with force, also with those that were sent before
	undecided []effect.State // effects of the letters in these are told
	over      []deadletter.Status
	do        func(ctx context.Context, desk admin.DeadLetters, l chosen) error
}

// chosen is what is kept of a letter that was chosen.
type chosen struct {
	id            int64
	consumer, key string
	reason        deadletter.Reason
	no            error // why nothing is done with it, if it was named
}

// result is what became of one.
type result struct {
	ID     int64             `json:"id"`
	Key    any               `json:"key"`
	Reason deadletter.Reason `json:"reason"`
	Status string            `json:"status,omitempty"` // what it is now
	Error  string            `json:"error,omitempty"`
	// Effects of it, by their IDs, about which a person must decide.
	Effects []int64 `json:"effects,omitempty"`
}

func (a *app) decisionFlags(c *cobra.Command, d *decision) {
	filterFlags(c, &d.filter)
	c.Flags().BoolVar(&d.yes, "yes", false, "do it with all that the filters choose (IDs need no yes)")
	c.Flags().BoolVar(&d.dryRun, "dry-run", false, "only count and list what would be chosen")
	c.Flags().StringVar(&d.how.By, "by", whoami(), "who decides, for the audit trail")
	c.Flags().StringVar(&d.how.Note, "note", "", "why, for the audit trail")
	a.databaseFlag(c)
	a.outputFlag(c)
}

// whoami names the user and the machine.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

func (a *app) redrive() *cobra.Command {
	d := &decision{verb: "to be processed again", over: []deadletter.Status{deadletter.Open, deadletter.Requested}}
	d.undecided = []effect.State{effect.Parked}
	d.do = func(ctx context.Context, desk admin.DeadLetters, l chosen) error {
		return desk.Redrive(ctx, l.id, d.how)
	}
	c := &cobra.Command{
		Use: "redrive [ID…]", Short: "Have the running consumer process dead letters again",
		Long: "Have the running consumer process dead letters again, chosen by their IDs or by filters.\n\n" +
			"The consumer takes them within seconds, in the order of their ordering key. What never\n" +
			"succeeded runs; what succeeded meanwhile is found to be a duplicate and does not.",
	}
	a.decisionFlags(c, d)
	c.Flags().BoolVar(&d.how.Force, "force", false, "process them even if their keys are recorded: what had its effect has it once more; with --to or --to-origin, send again what was sent before")
	keyFlag(c, &d.how.Key, "as-key", "process it under this message key: for a conflict (one letter)")
	c.Flags().BoolVar(&d.how.Effects, "effects", false, "have their effects outside the database happen again, under new idempotency keys")
	c.Flags().DurationVar(&d.wait, "wait", 10*time.Second, "how long to wait for the consumer, to report what became of them; 0: not at all")
	var p place
	c.Flags().StringVar(&p.broker, "broker", "", "URL of a broker, to send them by way of it: nats://…, kafka://…, rabbitmq://…, amqp10://…, redis://…")
	c.Flags().StringVar(&p.from, "from-queue", "", "take letters from this dead letter queue at the broker, not from the database: a stream of NATS (not the subject) or Redis, a topic of Kafka, a queue of RabbitMQ or AMQP 1.0")
	c.Flags().StringVar(&p.to, "to", "", "send them to this topic at the broker, which their consumer receives and nobody else")
	c.Flags().BoolVar(&p.toOrigin, "to-origin", false, "send them to the topics that they came from: other consumers see them too")
	c.Flags().DurationVar(&p.idle, "idle", 5*time.Second, "with --from-queue: how long nothing comes until the queue is taken to be empty")
	return a.command(c, func(ctx context.Context, args []string) error { return a.redriveFrom(ctx, d, p, args) })
}

func (a *app) redriveFrom(ctx context.Context, d *decision, p place, args []string) error {
	if !p.used() {
		return a.decide(ctx, d, args)
	}
	if err := errors.Join(p.check(d.dryRun), checkFilter(d.filter)); err != nil {
		return err
	}
	if p.from != "" {
		return a.sendFromQueue(ctx, d, p, args)
	}
	if d.how.Effects || d.how.Key != "" {
		return usagef("--effects and --as-key are for redrives without a broker")
	}
	return a.sendFromDatabase(ctx, d, p, args)
}

func (a *app) discard() *cobra.Command {
	d := &decision{verb: "to be discarded", over: []deadletter.Status{deadletter.Open, deadletter.Held, deadletter.Requested}}
	d.undecided = []effect.State{effect.Parked, effect.Unknown, effect.Started}
	d.do = func(ctx context.Context, desk admin.DeadLetters, l chosen) error {
		return desk.Discard(ctx, l.id, d.how)
	}
	c := &cobra.Command{
		Use: "discard [ID…]", Short: "Resolve dead letters without their effect, for good",
		Long: "Resolve dead letters without their effect, for good, chosen by their IDs or by filters.\n\n" +
			"Their keys are recorded as processed, so that late copies have no effect either. What became\n" +
			"of their effects outside the database is said apart: sekali effects resolve.",
	}
	a.decisionFlags(c, d)
	return a.command(c, func(ctx context.Context, args []string) error { return a.decide(ctx, d, args) })
}

// check finds what is wrong with the command line.
func (d *decision) check(ids []int64) error {
	filtered := d.filter != deadletter.Filter{}
	switch {
	case len(ids) == 0 && !filtered:
		return usagef("nothing is chosen: name IDs, or choose by --consumer, --key, --ordering-key, --topic or --reason")
	case len(ids) > 0 && filtered:
		return usagef("IDs and filters are given: use one of them")
	case d.how.Key != "" && store.IsBlank(d.how.Key):
		return usagef("--as-key is blank: a blank key is no key")
	case d.how.Key != "" && len(ids) != 1:
		return usagef("--as-key is for one letter: name its ID")
	case d.how.By == "":
		return usagef("--by is empty: say who decides")
	case d.wait < 0:
		return usagef("--wait %v: use 0 or more", d.wait)
	}
	return checkFilter(d.filter)
}

func (a *app) decide(ctx context.Context, d *decision, args []string) error {
	ids, err := idsOf(args)
	if err != nil {
		return err
	}
	if err := d.check(ids); err != nil {
		return err
	}
	return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error {
		letters, err := d.choose(ctx, desk.DeadLetters, ids)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "%s %s\n", counted(letters), d.verb)
		if len(ids) == 0 && !d.yes && !d.dryRun && len(letters) > 0 {
			return usagef("%s would be chosen by filters: look at them with --dry-run, then add --yes", counted(letters))
		}
		results := d.carryOut(ctx, desk.DeadLetters, letters, len(ids) > 0)
		broken := d.await(ctx, desk.DeadLetters, letters, results)
		if broken == nil {
			broken = a.tellEffects(ctx, desk.Effects, d, letters, results)
		}
		if err := a.writeResults(d, letters, results); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: what is not told to be done is as before: %w", ctx.Err())
		}
		return errors.Join(broken, failures(results))
	})
}

// carryOut does to the letters what was decided, unless it is only to be looked
// at. An interruption ends it between two letters.
func (d *decision) carryOut(ctx context.Context, desk admin.DeadLetters, letters []chosen, named bool) []result {
	results := make([]result, len(letters))
	for i, l := range letters {
		err := l.no
		switch {
		case err != nil || d.dryRun:
		case ctx.Err() != nil:
			err = errors.New("not done")
		default:
			err = d.do(ctx, desk, l)
		}
		if !named && errors.Is(err, deadletter.ErrResolved) {
			err = nil // since the filters chose it
		}
		if err != nil {
			results[i].Error = oneLine(letterError(l.id, err))
		}
	}
	return results
}

// refuses tells why nothing can be done with a letter that was named.
func (d *decision) refuses(s deadletter.Status) error {
	if s.Unresolved() || d.again && d.how.Force && s == deadletter.Sent {
		return nil
	}
	return fmt.Errorf("%w: it is %s", deadletter.ErrResolved, s)
}

// choose returns the letters, oldest first: in that order they happened.
func (d *decision) choose(ctx context.Context, desk admin.DeadLetters, ids []int64) (letters []chosen, err error) {
	for _, id := range ids {
		l, err := desk.Get(ctx, id)
		if err != nil {
			return nil, letterError(id, err)
		}
		letters = append(letters, chosen{l.ID, l.Consumer, l.Key, l.Reason, d.refuses(l.Status)})
	}
	if len(ids) > 0 {
		return letters, nil
	}
	for f := d.filter; ; {
		f.Unresolved = true
		page, err := desk.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			if slices.Contains(d.over, l.Status) {
				letters = append(letters, chosen{l.ID, l.Consumer, l.Key, l.Reason, nil})
			}
			f.Before = l.ID
		}
		if len(page) < deadletter.DefaultLimit {
			slices.Reverse(letters)
			return letters, nil
		}
	}
}

// counted says how many there are, of which reasons.
func counted(letters []chosen) string {
	letters = slices.DeleteFunc(slices.Clone(letters), func(l chosen) bool { return l.no != nil })
	counts := map[deadletter.Reason]int{}
	for _, l := range letters {
		counts[l.reason]++
	}
	var parts []string
	for _, r := range deadletter.Reasons() {
		if n := counts[r]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, r))
		}
	}
	switch len(letters) {
	case 0:
		return "no dead letter"
	case 1:
		return fmt.Sprintf("1 dead letter (%s)", letters[0].reason)
	}
	return fmt.Sprintf("%d dead letters (%s)", len(letters), strings.Join(parts, ", "))
}

// await waits until the consumer has dealt with what was requested, or the
// time is over, and notes what the letters are then.
func (d *decision) await(ctx context.Context, desk admin.DeadLetters, letters []chosen, results []result) error {
	const look = 100 * time.Millisecond
	if d.dryRun {
		return nil
	}
	for end := time.Now().Add(d.wait); ; {
		waiting := 0
		for i, l := range letters {
			if results[i].Error != "" || results[i].Status != "" && results[i].Status != string(deadletter.Requested) {
				continue
			}
			now, err := desk.Get(ctx, l.id)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return letterError(l.id, err)
			}
			results[i].Status = string(now.Status)
			switch now.Status {
			case deadletter.Requested:
				waiting++
			case deadletter.Open:
				text, _, _ := strings.Cut(now.Error, "\n")
				results[i].Error = "it failed again: " + string(now.Reason) + ": " + text
			}
		}
		if waiting == 0 || time.Now().After(end) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // the caller tells
		case <-time.After(look):
		}
	}
}

// writeResults writes what was chosen, and what became of it.
func (a *app) writeResults(d *decision, letters []chosen, results []result) error {
	for i, l := range letters {
		results[i].ID, results[i].Reason, results[i].Key = l.id, l.reason, nil
		if l.key != "" {
			results[i].Key = jsonBytes([]byte(l.key))
		}
	}
	if a.output == "json" {
		return writeJSON(a.stdout, results)
	}
	if len(letters) == 0 {
		return nil
	}
	head := []string{"ID", "KEY", "REASON", "NOW", "ERROR"}
	if d.dryRun {
		head[3] = "" // nothing has changed
	}
	rows := [][]string{head}
	for i, r := range results {
		rows = append(rows, []string{strconv.FormatInt(r.ID, 10), shortKey(letters[i].key, 40), string(r.Reason), r.Status, short(r.Error, 100)})
	}
	if err := writeTable(a.stdout, rows); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r result) bool { return r.Status == string(deadletter.Requested) }) {
		fmt.Fprintln(a.stderr, "requested: a consumer takes it as soon as it runs")
	}
	return nil
}

// failures is the error of those that did not work.
func failures(results []result) error {
	n := 0
	for _, r := range results {
		if r.Error != "" {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case 1:
		return errors.New("1 dead letter is as before: see its error")
	}
	return fmt.Errorf("%d dead letters are as before: see their errors", n)
}
