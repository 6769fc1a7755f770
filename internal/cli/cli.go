// Package cli is the command line of the binary sekali. Commands take their
// input and outputs as arguments, so that tests run them like a shell does.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/internal/brokerurl"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/pgxstore"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/spf13/cobra"
)

// The exit statuses.
const (
	well   = 0
	failed = 1 // the check or the work failed
	usage  = 2 // the command line is wrong
)

// usageError marks an error of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is what commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	database       string // --database
	output         string // --output
	began          bool   // a command's work has begun: errors are its own
}

// Run runs one command line and returns the exit status. An error is one line
// on stderr: the thing, the cause, the mend.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return well
	}
	fmt.Fprintln(stderr, "sekali: "+oneLine(err))
	if bad := (usageError{}); errors.As(err, &bad) || !a.began || errors.Is(err, dburl.ErrURL) || errors.Is(err, brokerurl.ErrURL) {
		return usage
	}
	return failed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sekali",
		Short:         "Makes duplicates from message brokers harmless",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w: see %s --help", err, c.CommandPath())
	})
	root.AddCommand(
		a.demo(), a.demoChild(),
		a.init(), a.run(), a.publish(),
		a.migrate(),
		a.keys(), a.deadletters(), a.effects(), a.outbox(),
		a.prune(), a.doctor(),
		a.bench(),
	)
	root.AddCommand(a.command(
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs},
		func(context.Context, []string) error {
			_, err := fmt.Fprintln(a.stdout, "sekali version "+version())
			return err
		},
	))
	return root
}

// group is a command that has only commands below it.
func group(name, short string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, RunE: func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("unknown command %q of %s: see %s --help", args[0], c.CommandPath(), c.CommandPath())
		}
		return c.Help()
	}}
	c.AddCommand(below...)
	return c
}

// command is a command that works: its errors are failures, not bad usage.
func (a *app) command(c *cobra.Command, work func(ctx context.Context, args []string) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		if a.output != "" && a.output != "table" && a.output != "json" {
			return usagef("--output %q: use table or json", a.output)
		}
		a.began = true
		return work(c.Context(), args)
	}
	return c
}

func (a *app) databaseFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.database, "database", "", "URL of the database: postgres://…, mysql://… or sqlite:path (default $SEKALI_DATABASE_URL)")
}

func (a *app) outputFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.output, "output", "table", "table, for people, or json")
}

// databaseURL returns the URL that --database or the environment names.
func (a *app) databaseURL() (string, error) {
	raw := a.database
	if raw == "" {
		raw = os.Getenv("SEKALI_DATABASE_URL")
	}
	if raw == "" {
		return "", usagef("no database is named: give --database or set SEKALI_DATABASE_URL: %w", dburl.ErrURL)
	}
	return raw, nil
}

// open opens the database that --database or the environment names.
func (a *app) open(ctx context.Context, create dburl.Create) (*dburl.DB, error) {
	raw, err := a.databaseURL()
	if err != nil {
		return nil, err
	}
	return dburl.Open(ctx, raw, create)
}

// desk calls work with what people look at in the database, and decide about.
func (a *app) desk(ctx context.Context, work func(admin.Admin, *dburl.DB) error) error {
	db, err := a.open(ctx, false)
	if err != nil {
		return err
	}
	defer db.Close()
	if db.Pool != nil {
		return work(pgxstore.New(db.Pool).Admin(), db)
	}
	return work(sqlstore.New(db.SQL, db.Dialect()).Admin(), db)
}

// oneLine returns an error's text in one line without control characters. The
// SQL of a schema error is left out: its mend names the command that runs it.
func oneLine(err error) string {
	text := err.Error()
	if schema := (*store.SchemaError)(nil); errors.As(err, &schema) && schema.SQL != "" {
		text = strings.ReplaceAll(text, "\n"+schema.SQL, "")
	}
	var lines []string
	for line := range strings.Lines(text) {
		// A driver that tried twice says the same thing twice.
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return plain(strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": "))
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
