package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// counts is what the processes of a consumer said, one after another.
type counts struct {
	delivered, processed, duplicates int
	crashes                          int
	began, last                      time.Time // of its first and its latest message
	trouble                          string    // the latest, if nothing has gone well since
}

func (c counts) perSecond() float64 {
	if d := c.last.Sub(c.began).Seconds(); d > 0 {
		return float64(c.delivered) / d
	}
	return 0
}

// runner keeps one consumer running: it starts its process, kills it where the
// plan says so, and starts it again.
type runner struct {
	task    task
	crashes []int
	command []string                  // starts a child
	bury    func(ctx context.Context) // is called after a crash

	mu     sync.Mutex
	counts counts
	input  io.WriteCloser // of the process that runs now
	ending bool           // told to stop
}

// run runs the consumer until it was told to stop, or ctx ends and its process
// is killed. It returns an error if the process ends by itself.
func (r *runner) run(ctx context.Context) error {
	for n := 0; ; n++ {
		r.task.CrashAfter = 0
		if n < len(r.crashes) {
			r.task.CrashAfter = r.crashes[n]
		}
		crashed, err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case crashed:
			r.bury(ctx)
		case err != nil:
			return fmt.Errorf("%s: %w", r.task.Service, err)
		default:
			return nil
		}
	}
}

// once is the life of one process.
func (r *runner) once(ctx context.Context) (crashed bool, err error) {
	process := exec.CommandContext(ctx, r.command[0], r.command[1:]...)
	process.Env = append(os.Environ(), childEnv+"=1")
	var complaints bytes.Buffer
	process.Stderr = &complaints
	input, err := process.StdinPipe()
	if err != nil {
		return false, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := process.Start(); err != nil {
		return false, fmt.Errorf("start its process: %w", err)
	}
	if !r.attach(input) {
		_, _ = io.WriteString(input, "stop\n")
	}
	if err := json.NewEncoder(input).Encode(r.task); err != nil && ctx.Err() == nil {
		_ = process.Process.Kill()
	}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if r.count(lines.Text()) {
			crashed = true
			_ = process.Process.Kill()
		}
	}
	err = process.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.input = nil
	if err == nil && !r.ending && !crashed {
		err = errors.New("its process ended before its time")
	}
	if err != nil && complaints.Len() > 0 {
		err = fmt.Errorf("its process ended (%w): %s", err, bytes.TrimSpace(complaints.Bytes()))
	}
	return crashed, err
}

// attach makes input the one that stop writes to; false after a stop.
func (r *runner) attach(input io.WriteCloser) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.input = input
	return !r.ending
}

// stop tells the process to finish what it has in work and to end.
func (r *runner) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = true
	if r.input != nil {
		_, _ = io.WriteString(r.input, "stop\n")
	}
}

// count takes in a line of the process; true if it is to be killed now.
func (r *runner) count(line string) (crash bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.counts
	now := time.Now()
	switch line[:min(1, len(line))] {
	case string(saidDelivered):
		c.delivered++
	case string(saidProcessed):
		c.processed++
		c.trouble = ""
	case string(saidDuplicate):
		c.duplicates++
		c.trouble = ""
	case string(saidCrash):
		c.crashes++
		return true
	case string(saidTrouble):
		c.trouble = line[1:]
		return false
	}
	if c.began.IsZero() {
		c.began = now
	}
	c.last = now
	return false
}

func (r *runner) snapshot() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}
