package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sekali/sekali/internal/run"
)

func (a *app) init() *cobra.Command {
	var brokerKind, databaseKind string
	c := &cobra.Command{
		Use: "init [FILE]", Args: cobra.MaximumNArgs(1),
		Short: "Write a file for sekali run, with comments",
		Long: `Writes a file for sekali run, with comments, for a broker and a database. FILE is
sekali.yaml if it is left out, and - is the standard output. A file that is there
is not touched.`,
	}
	c.Flags().StringVar(&brokerKind, "broker", "embedded", "embedded, nats, kafka, rabbitmq, amqp10 or redis")
	c.Flags().StringVar(&databaseKind, "database", "sqlite", "postgres, mysql or sqlite")
	return a.command(c, func(_ context.Context, args []string) error {
		text, err := run.Example(brokerKind, databaseKind)
		if err != nil {
			return usageError{err}
		}
		name := "sekali.yaml"
		if len(args) == 1 {
			name = args[0]
		}
		if name == "-" {
			_, err := fmt.Fprint(a.stdout, text)
			return err
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("write %s: it is there already, and is not touched: give another name", name)
		}
		if err != nil {
			return err
		}
		if _, err := f.WriteString(text); err != nil {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "wrote %s: look at it, then: sekali run --check -c %s\n", name, name)
		return err
	})
}
