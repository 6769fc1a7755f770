// Package demo plays a coffee shop: orders come from a broker, some of them
// twice, to consumers that are killed at the worst moment, and the database
// says in the end whether anything was done twice.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// childEnv is set for the demo's own child processes.
const childEnv = "SEKALI_DEMO_CHILD"

// IsChild tells whether this process was started by a demo as a consumer.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// Config says how to play.
type Config struct {
	Orders     int
	Duplicates float64 // share of the orders that are published twice
	Crashes    int     // kills per consumer
	Seed       uint64
	Database   string // URL; empty: an SQLite file
	Broker     string // URL; empty: an embedded NATS server
	Keep       bool   // leave the folder, the schema and the broker's part
	// Command starts a child process.
	Command []string
	// Progress is told how many of all deliveries are done.
	Progress func(done, of int)

	randomKeys bool // for tests: the idempotent consumers are broken
}

// tidyTime is how long taking something back may take.
const tidyTime = time.Minute

// Play plays the demo and returns what the database says. It leaves nothing
// behind, unless Keep is set, also when ctx ends in the middle; what it could
// not take back it names, in the error or else among what the report says is
// kept.
func Play(ctx context.Context, cfg Config) (*Report, error) {
	folder, err := os.MkdirTemp("", "sekali-demo-")
	if err != nil {
		return nil, fmt.Errorf("make the demo's folder in %s: %w: set TMPDIR to a folder that can be written to", os.TempDir(), err)
	}
	report, left, err := playIn(ctx, cfg, folder)
	interrupted := err != nil && ctx.Err() != nil
	if err != nil && !interrupted {
		err = explain(err, folder)
	}
	if !cfg.Keep || cfg.Database != "" && cfg.Broker != "" {
		left = append(left, os.RemoveAll(folder))
	}
	behind := errors.Join(left...)
	switch {
	case interrupted && behind == nil:
		err = errors.New("interrupted: nothing is left behind")
	case interrupted:
		err = fmt.Errorf("interrupted: something is left behind: %w", behind)
	case err != nil && behind != nil:
		err = fmt.Errorf("%w; and something is left behind: %w", err, behind)
	case behind != nil:
		report.Kept = append(report.Kept, "what could not be taken back: "+strings.ReplaceAll(behind.Error(), "\n", "; "))
	}
	return report, err
}

// playIn plays in a folder, and returns what it could not take back.
func playIn(ctx context.Context, cfg Config, folder string) (report *Report, left []error, err error) {
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	tidyUp := func(remove func(ctx context.Context, keep bool) error) {
		// It must work after ctx has ended.
		tidying, done := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer done()
		left = append(left, remove(tidying, cfg.Keep && err == nil))
	}
	p := newPlan(cfg)
	s, err := openShop(ctx, cfg.Database, run, folder)
	if err != nil {
		return nil, nil, err
	}
	defer func() { tidyUp(s.close) }()
	orders, err := openFeed(ctx, cfg.Broker, run, folder)
	if err != nil {
		return nil, nil, err
	}
	defer func() { tidyUp(orders.close) }()
	c, err := openCourier(cfg.Seed, len(p.orders))
	if err != nil {
		return nil, nil, err
	}
	defer func() { tidyUp(c.close) }()
	runners, err := serve(ctx, cfg, p, s, orders, c)
	if err != nil {
		return nil, nil, err
	}
	report, err = newReport(ctx, cfg, p, s, orders, c, runners)
	if err == nil && cfg.Keep {
		report.keep(s, orders)
	}
	return report, nil, err
}

// explain adds to an error that the demo's folder cannot be written to, if
// that is so: broker and database say it in words of their own, or time out.
func explain(err error, folder string) error {
	probe := filepath.Join(folder, "probe")
	full := os.WriteFile(probe, make([]byte, 1<<20), 0o600)
	_ = os.Remove(probe)
	if full == nil {
		return err
	}
	return fmt.Errorf("%w: %w: free space there, or set TMPDIR to a folder that has some", full, err)
}

// serve takes the orders, relays them to the broker and runs the consumers until
// all is done.
func serve(ctx context.Context, cfg Config, p plan, s *shop, orders feed, c *courier) ([]*runner, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	var runners []*runner
	url, topic := orders.address()
	for _, service := range services {
		r := &runner{
			crashes: p.crashes[service.name], command: cfg.Command,
			bury: func(ctx context.Context) { orders.bury(ctx, service.name) },
			task: task{
				Service: service.name, Database: s.url, Broker: url, Topic: topic, Courier: c.url + "/" + service.name,
				RandomKeys: cfg.randomKeys && service.idempotent,
			},
		}
		runners = append(runners, r)
		running.Go(func() {
			if err := r.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	relay := s.relay(orders, p)
	relaying, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() {
		if err := relay.run(relaying); err != nil {
			cancel(err)
		}
	})
	err := s.takeOrders(ctx, p, topic)
	if err == nil {
		err = watch(ctx, cfg, p, orders, relay, runners)
	}
	stop()
	if err == nil {
		for _, r := range runners {
			r.stop()
		}
	} else {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		cancel(err)
	}
	running.Wait()
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause
	}
	return runners, err
}

// How long the demo may stand still before it is given up: less when a
// consumer says what keeps it.
const (
	stillWithTrouble = 20 * time.Second
	stillAtMost      = time.Minute
)

// watch waits until every consumer has taken and settled everything.
func watch(ctx context.Context, cfg Config, p plan, orders feed, relay *relay, runners []*runner) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	total := p.copies() * len(runners)
	seen, since := -1, time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		said, done, trouble := 0, 0, relay.trouble()
		for _, r := range runners {
			c := r.snapshot()
			said += c.processed + c.duplicates + c.crashes
			done += min(c.processed+c.duplicates, p.copies())
			if c.trouble != "" {
				trouble = r.task.Service + ": " + c.trouble
			}
		}
		if cfg.Progress != nil {
			cfg.Progress(done, total)
		}
		if said != seen {
			seen, since = said, time.Now()
		}
		still := time.Since(since)
		if still > stillAtMost || trouble != "" && still > stillWithTrouble {
			if trouble == "" {
				trouble = "no consumer says why"
			}
			return fmt.Errorf("the consumers stand still at %d of %d deliveries: %s", done, total, trouble)
		}
		all, err := allDrained(ctx, orders, p, runners)
		if err != nil || all {
			return err
		}
	}
}

// allDrained tells whether nothing is left to do, and every planned crash has
// happened.
func allDrained(ctx context.Context, orders feed, p plan, runners []*runner) (bool, error) {
	for _, r := range runners {
		if c := r.snapshot(); c.processed+c.duplicates < p.copies() && c.delivered < p.copies() {
			return false, nil
		}
		drained, err := orders.drained(ctx, r.task.Service)
		if err != nil || !drained {
			return false, err
		}
	}
	return true, nil
}
