package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sekali/sekali/internal/run"
	"github.com/sekali/sekali/internal/run/config"
)

func (a *app) run() *cobra.Command {
	var file string
	var check bool
	c := &cobra.Command{
		Use: "run", Args: cobra.NoArgs,
		Short: "Consume messages with a handler of SQL and HTTP from a file; no Go needed",
		Long: `Consumes messages as a file says: from which broker, into which database, where
the message key is, and which statements of SQL run in the transaction of the
key. sekali init writes such a file, with comments; docs/run.md has all fields.

The whole file is checked first: every expression is compiled, and every
statement is prepared by the database. With --check that is all.

SIGTERM and SIGINT stop it: it finishes what is in work, commits, acknowledges.`,
	}
	c.Flags().StringVarP(&file, "config", "c", "sekali.yaml", "the file")
	c.Flags().BoolVar(&check, "check", false, "only check the file, with the database, and say what is wrong")
	return a.command(c, func(ctx context.Context, _ []string) error {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the file of the consumer: %w: give another one with -c; sekali init writes one", err)
		}
		plan, err := run.Load(string(text), nil)
		if plan == nil {
			return err
		}
		a.stderr = hiding(a.stderr, plan.File.Secrets)
		switch {
		case err == nil && check:
			err = run.Check(ctx, plan)
		case err == nil:
			err = run.Run(ctx, plan, run.Options{Log: a.log(plan.File.LogJSON)})
		}
		if problems := config.Problems(nil); errors.As(err, &problems) {
			return a.problems(file, problems)
		}
		if err == nil && check {
			_, err = fmt.Fprintf(a.stdout, "%s: nothing is wrong\n", file)
		}
		if err != nil {
			return errors.New(hide(err.Error(), plan.File.Secrets))
		}
		return nil
	})
}

// problems prints what is wrong with a file, a line for each.
func (a *app) problems(file string, all config.Problems) error {
	for _, p := range all {
		place := fmt.Sprintf("%s:%d", file, p.Line)
		if p.Column > 0 {
			place += fmt.Sprintf(":%d", p.Column)
		}
		_, text, _ := strings.Cut(p.Error(), ": ")
		fmt.Fprintln(a.stderr, plain(place+": "+text))
	}
	if len(all) == 1 {
		return fmt.Errorf("%s: 1 thing is wrong with it", file)
	}
	return fmt.Errorf("%s: %d things are wrong with it", file, len(all))
}

// log returns where the consumer's events go: stderr.
func (a *app) log(asJSON bool) *slog.Logger {
	if asJSON {
		return slog.New(slog.NewJSONHandler(a.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(a.stderr, nil))
}

// hidden writes what it is given without secrets.
type hidden struct {
	w       io.Writer
	secrets []string
}

func hiding(w io.Writer, secrets []string) io.Writer {
	if len(secrets) == 0 {
		return w
	}
	return hidden{w, secrets}
}

// Write implements io.Writer. A log writes a line at a time.
func (h hidden) Write(b []byte) (int, error) {
	if _, err := io.WriteString(h.w, hide(string(b), h.secrets)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func hide(text string, secrets []string) string {
	for _, s := range secrets {
		instead := "xxxxx"
		if strings.HasPrefix(s, ":") && strings.HasSuffix(s, "@") { // of a URL
			instead = ":xxxxx@"
		}
		text = strings.ReplaceAll(text, s, instead)
	}
	return text
}
