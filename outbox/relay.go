package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store"
)

// What RelayConfig's fields default to.
const (
	DefaultBatch        = 1000
	DefaultPollEvery    = 200 * time.Millisecond
	DefaultLease        = 10 * time.Second
	DefaultMaxAttempts  = 10
	DefaultRetryInitial = 100 * time.Millisecond
	DefaultRetryMax     = time.Minute
	DefaultDrainTimeout = 30 * time.Second
)

// OnParked says what becomes of events behind a parked one of their ordering
// key.
type OnParked uint8

const (
	// Pass: they are published.
	Pass OnParked = iota
	// HoldKey: they stay pending until it is retried or discarded.
	HoldKey
)

// RelayConfig says how a Relay works.
type RelayConfig struct {
	// Publisher to which events go. Required. The Relay does not close it.
	Publisher broker.Publisher
	// Batch is how many events are read and recorded at once. Defaults to 1000.
	Batch int
	// PollEvery is how often the Relay looks when nothing wakes it. Defaults
	// to 200 ms.
	PollEvery time.Duration
	// Lease is how long a Relay that says nothing keeps its lanes: so long the
	// events of a dead one wait. Defaults to 10 s; at least 1 s.
	Lease time.Duration
	// MaxAttempts is how often the broker may refuse an event (no queue takes
	// it, it is too large) before it is parked. A broker that is not there, or
	// does not answer, does not count. Defaults to 10.
	MaxAttempts int
	// RetryInitial and RetryMax bound the pause before an event is published
	// again, which is random and doubles its bound each time. Default to 100 ms
	// and 1 minute. An event's ordering key waits with it; others go on.
	RetryInitial, RetryMax time.Duration
	// OnParked says what becomes of later events of a parked one's ordering key.
	// Defaults to Pass.
	OnParked OnParked
	// DrainTimeout bounds how long Run goes on with what it is publishing when
	// its context ends. Defaults to 30 s.
	DrainTimeout time.Duration
	// Observer is told what the Relay does. It must be quick. Defaults to none.
	Observer func(Event)
}

func (c RelayConfig) withDefaults() (RelayConfig, error) {
	var errs []error
	if c.Publisher == nil {
		errs = append(errs, errors.New("no Publisher is set: say where events go"))
	}
	for _, n := range []struct {
		name      string
		value     *int
		otherwise int
	}{{"Batch", &c.Batch, DefaultBatch}, {"MaxAttempts", &c.MaxAttempts, DefaultMaxAttempts}} {
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: leave it 0 for its default", n.name))
		}
		if *n.value == 0 {
			*n.value = n.otherwise
		}
	}
	for _, d := range []struct {
		name      string
		value     *time.Duration
		otherwise time.Duration
	}{
		{"PollEvery", &c.PollEvery, DefaultPollEvery},
		{"Lease", &c.Lease, DefaultLease},
		{"RetryInitial", &c.RetryInitial, DefaultRetryInitial},
		{"RetryMax", &c.RetryMax, max(DefaultRetryMax, c.RetryInitial)},
		{"DrainTimeout", &c.DrainTimeout, DefaultDrainTimeout},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: leave it 0 for its default", d.name))
		}
		if *d.value == 0 {
			*d.value = d.otherwise
		}
	}
	if c.Lease > 0 && c.Lease < time.Second {
		errs = append(errs, fmt.Errorf("the Lease is %v, which a slow commit can outlast: use 1s or more", c.Lease))
	}
	if c.RetryMax < c.RetryInitial {
		errs = append(errs, fmt.Errorf("RetryMax, %v, is less than RetryInitial, %v: raise it", c.RetryMax, c.RetryInitial))
	}
	if c.Observer == nil {
		c.Observer = func(Event) {}
	}
	return c, errors.Join(errs...)
}

// EventKind says what a Relay did.
type EventKind uint8

// What a Relay does, and the fields of Event that each has.
//
//	Sent         Count, Duration     events are confirmed and recorded
//	Retried      Row, Err, Pause     the broker refused one, or did not confirm it; its ordering key waits
//	GivenUp      Row, Err            one was parked
//	Interrupted  Err, Pause          the broker or the database is not there
//	Shared       Count               the Relay has so many lanes now
const (
	Sent EventKind = iota + 1
	Retried
	GivenUp
	Interrupted
	Shared
)

// Event is something that a Relay did.
type Event struct {
	Kind     EventKind
	Row      Row // without its Body
	Count    int
	Err      error
	Pause    time.Duration
	Duration time.Duration
}

// Relay publishes the events of an outbox. Any number may run at once, in one
// process or in many: they share the lanes, so that the events of an ordering
// key are published by one at a time.
type Relay struct {
	cfg  RelayConfig
	rows Rows
	wake *wakes
	name string // of this relay, unlike any other's

	lanes   *lanes
	waiting *waiting
	ran     atomic.Bool
}

// NewRelay returns a Relay of the outbox, or an error that says what is wrong
// with cfg. It does no I/O.
func (b *Box[Tx]) NewRelay(cfg RelayConfig) (*Relay, error) {
	if b.invalid != nil {
		return nil, b.invalid
	}
	r, err := NewRelay(b.rows, cfg)
	if err != nil {
		return nil, err
	}
	r.wake = b.wake
	return r, nil
}

// NewRelay returns a Relay of a table of which no Box is at hand, as a program
// that does nothing but relay has none.
func NewRelay(rows Rows, cfg RelayConfig) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new relay: %w", err)
	}
	name := rand.Text()
	return &Relay{
		cfg: cfg, rows: rows, wake: newWakes(nil), name: name,
		lanes: &lanes{}, waiting: newWaiting(cfg.RetryInitial, cfg.RetryMax),
	}, nil
}

// Run publishes until ctx ends; then it finishes what it has begun, gives its
// lanes up, and returns nil. It returns an error if the tables are missing, or
// if the Publisher is closed. A database or broker that is not there is waited
// for, and the Observer told. A Relay runs once.
func (r *Relay) Run(ctx context.Context) error {
	if r.ran.Swap(true) {
		return errors.New("run the relay: it has run already: make a new one")
	}
	if err := r.check(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	// What is under way outlives ctx.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.DrainTimeout, cancel) })()
	woken, leave := r.wake.join()
	defer leave()

	var beside sync.WaitGroup
	tending, stop := context.WithCancel(hard)
	beside.Go(func() { r.tend(tending, woken) })
	if n := r.wake.notifier; n != nil {
		beside.Go(func() { n.Listen(tending, r.wake.mine) })
	}
	err := r.work(ctx, hard, woken)
	stop()
	beside.Wait()
	leaving, done := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Lease)
	defer done()
	// If it fails, the lanes wait until the lease is over.
	_ = r.rows.Leave(leaving, r.name)
	return err
}

// check waits until the database is there. What it finds wrong then is an
// error.
func (r *Relay) check(ctx context.Context) error {
	for n := 1; ; n++ {
		err := r.rows.Check(ctx)
		if err == nil || !passes(err) {
			return err
		}
		if !r.interrupted(ctx, n, err) {
			return nil
		}
	}
}

// passes tells that an error of the database may pass: it does not say that
// somebody has to mend the tables.
func passes(err error) bool {
	var unfit *store.SchemaError
	return !errors.As(err, &unfit)
}

// interrupted waits longer from time to time. It returns false when ctx ends.
func (r *Relay) interrupted(ctx context.Context, n int, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	pause := backoff(50*time.Millisecond, 5*time.Second, n)
	r.cfg.Observer(Event{Kind: Interrupted, Err: err, Pause: pause})
	return sleep(ctx, pause)
}

// work publishes what is there, and waits for more, until ctx ends.
func (r *Relay) work(ctx, hard context.Context, woken <-chan struct{}) error {
	failures := 0
	for ctx.Err() == nil {
		more, err := r.sweep(ctx, hard)
		switch {
		case errors.Is(err, broker.ErrClosed):
			return fmt.Errorf("run the relay: the publisher is closed: %w", err)
		case err != nil:
			failures++
			r.interrupted(ctx, failures, err)
			continue
		}
		failures = 0
		if !more {
			r.wait(ctx, woken)
		}
	}
	return nil
}

// wait waits until something may be there to publish.
func (r *Relay) wait(ctx context.Context, woken <-chan struct{}) {
	timer := time.NewTimer(r.waiting.until(r.cfg.PollEvery))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-woken:
	case <-timer.C:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
