package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/store"
	"github.com/spf13/cobra"
)

// seeding is a command that records keys.
type seeding struct {
	seed  admin.Seed
	at    string
	batch int
	null  bool // keys end with NUL
	how   admin.Decision
}

func (a *app) seedKeys() *cobra.Command {
	s := &seeding{}
	c := &cobra.Command{
		Use: "seed [FILE]", Short: "Record keys as processed, before deduplication is switched on",
		Long: "Record keys as processed, from FILE or from standard input, one in a line, as the consumer's\n" +
			"Key function returns them: before deduplication is switched on for a topic that is live.\n\n" +
			"Keys that are there stay as they are, so that it can be run again after an error.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("name one file, or none for standard input")
			}
			return nil
		},
	}
	c.Flags().StringVar(&s.seed.Consumer, "consumer", "", "the consumer that is said to have processed them (required)")
	c.Flags().StringVar(&s.at, "processed-at", "", "when, such as 2026-03-01 or 2026-03-01T12:00:00Z: their retention counts from it (default now)")
	c.Flags().IntVar(&s.batch, "batch", 1000, fmt.Sprintf("how many in one transaction, %d at most", admin.MaxSeed))
	c.Flags().BoolVar(&s.null, "null", false, "keys end with a NUL byte, not with a line, so that they can hold line ends")
	c.Flags().StringVar(&s.how.By, "by", whoami(), "who decides, for the audit trail")
	c.Flags().StringVar(&s.how.Note, "note", "", "why, for the audit trail")
	a.databaseFlag(c)
	a.outputFlag(c)
	return a.command(c, func(ctx context.Context, args []string) error {
		if err := s.check(); err != nil {
			return err
		}
		input := a.stdin
		if len(args) == 1 && args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			input = file
		}
		return a.desk(ctx, func(desk admin.Admin, _ *dburl.DB) error { return a.seed(ctx, desk.Keys, s, input) })
	})
}

// check finds what is wrong with the command line.
func (s *seeding) check() error {
	if s.seed.Consumer == "" {
		return usagef("--consumer is missing: name the consumer, as it is stored")
	}
	if err := store.CheckConsumer(s.seed.Consumer); err != nil {
		return usagef("--consumer: %w", err)
	}
	switch {
	case s.batch < 1 || s.batch > admin.MaxSeed:
		return usagef("--batch %d: use 1 to %d", s.batch, admin.MaxSeed)
	case s.how.By == "":
		return usagef("--by is empty: say who decides")
	case s.at == "":
		return nil
	}
	var err error
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if s.seed.ProcessedAt, err = time.Parse(layout, s.at); err == nil {
			break
		}
	}
	switch {
	case err != nil:
		return usagef("--processed-at %q: write a date or a time, such as 2026-03-01 or 2026-03-01T12:00:00Z", s.at)
	case time.Until(s.seed.ProcessedAt) > time.Minute:
		return usagef("--processed-at %s is to come: use a time that has passed", s.at)
	}
	return nil
}

// seeded is what became of the keys.
type seeded struct {
	Read     int `json:"read"`
	Recorded int `json:"recorded"`
	Repeated int `json:"were_there"`
}

func (a *app) seed(ctx context.Context, desk admin.Keys, s *seeding, input io.Reader) error {
	var sum seeded
	keys := newKeyReader(input, s.null)
	for {
		var err error
		s.seed.Keys, err = keys.next(s.batch)
		if len(s.seed.Keys) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			n, err := desk.Seed(ctx, s.seed, s.how)
			if err != nil {
				return fmt.Errorf("%w: %d keys were recorded before: run it again for the rest", err, sum.Recorded)
			}
			sum.Read += len(s.seed.Keys)
			sum.Recorded += n
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %d keys were recorded before: mend it and run it again", err, sum.Recorded)
		}
	}
	sum.Repeated = sum.Read - sum.Recorded
	if a.output == "json" {
		return writeJSON(a.stdout, sum)
	}
	_, err := fmt.Fprintf(a.stdout, "%d keys read, %d recorded for %s, %d were there already or came twice\n", sum.Read, sum.Recorded, plain(s.seed.Consumer), sum.Repeated)
	return err
}

// keyReader reads keys.
type keyReader struct {
	from *bufio.Reader
	end  byte
	line int
}

// maxLine bounds a key: what is longer is no list of keys.
const maxLine = 1 << 20

func newKeyReader(from io.Reader, null bool) *keyReader {
	end := byte('\n')
	if null {
		end = 0
	}
	return &keyReader{from: bufio.NewReaderSize(from, maxLine), end: end}
}

// next reads up to most keys; io.EOF comes with the last ones.
func (r *keyReader) next(most int) (keys []string, err error) {
	for len(keys) < most {
		line, err := r.from.ReadSlice(r.end)
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("line %d is longer than %d bytes: write one key in a line", r.line+1, maxLine)
		}
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return keys, io.EOF
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the keys: %w", err)
		}
		r.line++
		key := string(bytes.TrimSuffix(line, []byte{r.end}))
		switch {
		case store.IsBlank(key):
			return nil, fmt.Errorf("line %d is blank: a blank key is no key", r.line)
		case r.end == '\n' && key[len(key)-1] == '\r':
			return nil, fmt.Errorf("line %d ends with a carriage return, which would be part of the key: convert the file (tr -d '\\r')", r.line)
		}
		keys = append(keys, key)
		if err != nil {
			return keys, err
		}
	}
	return keys, nil
}
