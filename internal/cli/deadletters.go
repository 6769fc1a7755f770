package cli

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/spf13/cobra"
)

func (a *app) deadletters() *cobra.Command {
	var f deadletter.Filter
	var status string
	list := &cobra.Command{Use: "list", Short: "List dead letters, newest first", Args: cobra.NoArgs}
	filterFlags(list, &f)
	list.Flags().StringVar(&status, "status", "unresolved", "only those of this status: "+texts(deadletter.Statuses())+"; unresolved (the first four), or all")
	list.Flags().IntVar(&f.Limit, "limit", deadletter.DefaultLimit, "how many at most")
	list.Flags().Int64Var(&f.Before, "before", 0, "only IDs below this one: the next page")
	show := &cobra.Command{Use: "show ID", Short: "Show one dead letter with its headers, its body and what was decided about it", Args: oneID}
	for _, c := range []*cobra.Command{list, show} {
		a.databaseFlag(c)
		a.outputFlag(c)
	}
	return group(
		"deadletters", "Read messages that could not be processed, and decide about them",
		a.command(list, func(ctx context.Context, _ []string) error { return a.listLetters(ctx, f, status) }),
		a.command(show, func(ctx context.Context, args []string) error { return a.showLetter(ctx, args[0]) }),
		a.redrive(), a.discard(),
	)
}

func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("name the ID of one dead letter: see sekali deadletters list")
	}
	return nil
}

func filterFlags(c *cobra.Command, f *deadletter.Filter) {
	textFlag(c, &f.Consumer, "consumer", "only those of this consumer")
	keyFlag(c, &f.Key, "key", "only those of this message key, as lists print it")
	keyFlag(c, &f.OrderingKey, "ordering-key", "only those of this ordering key, as lists print it")
	textFlag(c, &f.Topic, "topic", "only those that came from this topic")
	textFlag(c, (*string)(&f.Reason), "reason", "only those of this reason: "+texts(deadletter.Reasons()))
}

func checkFilter(f deadletter.Filter) error {
	if f.Reason != "" && !slices.Contains(deadletter.Reasons(), f.Reason) {
		return usagef("--reason %q: use one of %s", f.Reason, texts(deadletter.Reasons()))
	}
	return nil
}

// texts lists values with commas between them.
func texts[T ~string](values []T) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = string(v)
	}
	return strings.Join(list, ", ")
}

// letters calls work with the database's dead letters.
func (a *app) letters(ctx context.Context, work func(admin.DeadLetters) error) error {
	return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error { return work(desk.DeadLetters) })
}

func (a *app) listLetters(ctx context.Context, f deadletter.Filter, status string) error {
	if f.Limit < 1 {
		return usagef("--limit %d: use 1 or more", f.Limit)
	}
	if err := checkFilter(f); err != nil {
		return err
	}
	switch {
	case status == "unresolved":
		f.Unresolved = true
	case slices.Contains(deadletter.Statuses(), deadletter.Status(status)):
		f.Status = deadletter.Status(status)
	case status != "all":
		return usagef("--status %q: use one of %s, unresolved, all", status, texts(deadletter.Statuses()))
	}
	if f.Before < 0 {
		return usagef("--before %d: use an ID from a list", f.Before)
	}
	return a.letters(ctx, func(q admin.DeadLetters) error {
		letters, err := q.List(ctx, f)
		if err != nil {
			return err
		}
		if a.output == "json" {
			list := make([]letterJSON, len(letters))
			for i, l := range letters {
				if list[i], err = asJSON(l); err != nil {
					return err
				}
			}
			return writeJSON(a.stdout, list)
		}
		if len(letters) == 0 {
			fmt.Fprintln(a.stderr, "no dead letters")
			return nil
		}
		rows := [][]string{{"ID", "CONSUMER", "KEY", "REASON", "STATUS", "ATTEMPTS", "COPIES", "LAST (UTC)", "ERROR"}}
		for _, l := range letters {
			text, _, _ := strings.Cut(l.Error, "\n")
			rows = append(rows, []string{
				strconv.FormatInt(l.ID, 10), plain(l.Consumer), shortKey(l.Key, 40), string(l.Reason), string(l.Status),
				strconv.Itoa(l.Attempts), strconv.Itoa(l.Copies), l.LastAt.UTC().Format(time.DateTime), short(text, 60),
			})
		}
		return writeTable(a.stdout, rows)
	})
}

func (a *app) showLetter(ctx context.Context, arg string) error {
	ids, err := idsOf([]string{arg})
	if err != nil {
		return err
	}
	return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error {
		q := desk.DeadLetters
		l, err := q.Get(ctx, ids[0])
		if err != nil {
			return letterError(ids[0], err)
		}
		rows, err := effectsOf(ctx, desk.Effects, l.Consumer, l.Key)
		if err != nil {
			return err
		}
		trail, err := q.Trail(ctx, ids[0], 0)
		if err != nil {
			return err
		}
		if a.output == "json" {
			value, err := asJSON(l)
			if err != nil {
				return err
			}
			for _, r := range rows {
				value.Effects = append(value.Effects, letterEffectJSON{r.Number, r.Name, r.State})
			}
			for _, entry := range trail {
				value.Trail = append(value.Trail, auditJSON{entry.At.UTC(), entry.By, entry.Action, entry.Detail})
			}
			return writeJSON(a.stdout, value)
		}
		return a.printLetter(l, rows, trail)
	})
}

// idsOf reads IDs.
func idsOf(args []string) (ids []int64, err error) {
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return nil, usagef("dead letter %q: an ID is a number: see sekali deadletters list", arg)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// letterError says what is wrong with one letter.
func letterError(id int64, err error) error {
	if errors.Is(err, deadletter.ErrNotFound) {
		return fmt.Errorf("dead letter %d: there is none with this ID: see sekali deadletters list", id)
	}
	return err
}

// letterJSON is a dead letter without loss.
type letterJSON struct {
	ID       int64           `json:"id"`
	Consumer string          `json:"consumer"`
	Key      any             `json:"key"`
	Reason   string          `json:"reason"`
	Status   string          `json:"status"`
	Error    string          `json:"error"`
	Attempts int             `json:"attempts"`
	Copies   int             `json:"copies"`
	FirstAt  time.Time       `json:"first_at"`
	LastAt   time.Time       `json:"last_at"`
	Message  json.RawMessage `json:"message"`
	Body     any             `json:"body"`
	// Effects outside the database that its message has.
	Effects []letterEffectJSON `json:"effects,omitempty"`
	Trail   []auditJSON        `json:"trail,omitempty"`
}

// letterEffectJSON names an effect.
type letterEffectJSON struct {
	ID     int64        `json:"id"`
	Name   string       `json:"name"`
	Status effect.State `json:"status"`
}

// auditJSON is what somebody decided about a letter.
type auditJSON struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Action string    `json:"action"`
	Detail string    `json:"detail"`
}

func asJSON(l deadletter.Letter) (letterJSON, error) {
	envelope, err := deadletter.MarshalEnvelope(l.Message)
	if err != nil {
		return letterJSON{}, err
	}
	var key []byte
	if l.Key != "" {
		key = []byte(l.Key)
	}
	return letterJSON{
		ID: l.ID, Consumer: l.Consumer, Key: jsonBytes(key), Reason: string(l.Reason), Status: string(l.Status),
		Error: l.Error, Attempts: l.Attempts, Copies: l.Copies, FirstAt: l.FirstAt.UTC(), LastAt: l.LastAt.UTC(),
		Message: envelope, Body: jsonBytes(l.Message.Body),
	}, nil
}

func (a *app) printLetter(l deadletter.Letter, effects []effect.Row, trail []deadletter.Audit) error {
	rows := [][]string{
		{"id", strconv.FormatInt(l.ID, 10)},
		{"consumer", plain(l.Consumer)},
		{"key", keyOrNone(l.Key)},
		{"reason", string(l.Reason)},
		{"status", string(l.Status)},
		{"attempts", strconv.Itoa(l.Attempts)},
		{"copies", strconv.Itoa(l.Copies)},
		{"first", l.FirstAt.UTC().Format(time.DateTime) + " UTC"},
		{"last", l.LastAt.UTC().Format(time.DateTime) + " UTC"},
		{"topic", orNone(l.Message.Topic)},
		{"message id", orNone(l.Message.ID)},
		{"ordering key", keyOrNone(string(l.Message.OrderingKey))},
	}
	if !l.Message.PublishedAt.IsZero() {
		rows = append(rows, []string{"published", l.Message.PublishedAt.UTC().Format(time.RFC3339Nano)})
	}
	for _, h := range l.Message.Headers {
		rows = append(rows, []string{"header " + plain(h.Name), plain(string(h.Value))})
	}
	if err := writeTable(a.stdout, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, "\nerror")
	for line := range strings.SplitSeq(l.Error, "\n") {
		fmt.Fprintln(a.stdout, "  "+plain(strings.ReplaceAll(line, "\t", "  ")))
	}
	if len(effects) > 0 {
		fmt.Fprintln(a.stdout, "\neffects")
		for _, r := range effects {
			fmt.Fprintf(a.stdout, "  %d  %s  %s\n", r.Number, plain(r.Name), statusOf(r))
		}
	}
	if len(trail) > 0 {
		fmt.Fprintln(a.stdout, "\ndecided")
		for _, e := range trail {
			fmt.Fprintf(a.stdout, "  %s UTC  %s by %s  %s\n", e.At.UTC().Format(time.DateTime), e.Action, plain(e.By), plain(e.Detail))
		}
	}
	_, err := fmt.Fprintln(a.stdout, body(l.Message.Body))
	return err
}

func body(b []byte) string {
	switch {
	case b == nil:
		return "\nbody: none (null)"
	case len(b) == 0:
		return "\nbody: empty"
	case printable(b):
		return fmt.Sprintf("\nbody (%d bytes)\n%s", len(b), strings.ReplaceAll(string(b), "\r", `\r`))
	}
	return fmt.Sprintf("\nbody (%d bytes, not text)\n%s", len(b), strings.TrimSuffix(hex.Dump(b), "\n"))
}

func keyOrNone(key string) string {
	if key == "" {
		return "(none)"
	}
	return escapeKey(key)
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return plain(text)
}
