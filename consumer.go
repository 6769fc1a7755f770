package sekali

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// Consumer takes messages from a broker and gives each one its effect once:
// receive, take the key, claim it, call the handler, commit, acknowledge.
type Consumer[Tx any] struct {
	cfg    Config[Tx]
	broker *intake
	lanes  *lanes
	pace   *pace

	// What the Store and the sink offer besides; nil if they don't.
	unclaimer store.Unclaimer[Tx]
	starts    store.Starts[Tx]   // without it nothing is recorded
	versions  store.Versions[Tx] // if Version is set
	marks     store.Marks[Tx]    // without it no message is too old
	holder    deadletter.Holder  // if OnBlocked is HoldKey
	redrives  *redrives[Tx]
	delayer   *delayer // nil: the broker cannot wait
	redriven  *intake  // of redrives
	ran       atomic.Bool

	tracer Tracer     // nil: the Observer is none
	ager   store.Ager // nil: nobody wants to know, or it is not known
	mine   *recent
	born   time.Time
	stats  *stats // nil: none are kept

	marked atomic.Pointer[time.Time] // the last mark that was read; nil: none

	stopping atomic.Bool  // what is in work is finished, no more is begun
	revoking atomic.Int32 // lanes go to another instance, which waits
}

// NewConsumer returns a Consumer, or an error that says which fields of the
// Config are missing or contradict each other. It does no I/O.
func NewConsumer[Tx any](cfg Config[Tx]) (*Consumer[Tx], error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new consumer %q: %w", cfg.Name, err)
	}
	c := &Consumer[Tx]{cfg: full, lanes: newLanes()}
	c.watch()
	c.broker = &intake{source: full.Source, settle: newSettler(full.Source, c.observe)}
	c.delayer = newDelayer(full.Source)
	c.pace = newPace(full.Batch, full.Workers)
	c.unclaimer, _ = store.As[store.Unclaimer[Tx]](full.Store)
	if keeper, ok := store.As[interface{ Starts() store.Starts[Tx] }](full.Store); ok {
		c.starts = keeper.Starts()
	}
	if keeper, ok := store.As[interface{ Marks() store.Marks[Tx] }](full.Store); ok {
		c.marks = keeper.Marks()
	}
	if full.Version != nil {
		keeper, _ := store.As[interface{ Versions() store.Versions[Tx] }](full.Store) // checked with the Config
		c.versions = keeper.Versions()
	}
	if full.OnBlocked == HoldKey {
		c.holder = full.DeadLetters.(deadletter.Holder) // checked with the Config
	}
	if full.Redrives != nil {
		c.redrives = newRedrives(full.Redrives, full.StoredName, full.RedriveEvery, c.starts)
		c.redriven = &intake{source: c.redrives, settle: newSettler(c.redrives, func(e Event) {
			if e.Kind != Settled { // which is the broker's word
				c.observe(e)
			}
		})}
	}
	return c, nil
}

// Run consumes until ctx ends, then stops in two stages: it receives no more,
// finishes what is in work, commits and acknowledges it, gives the rest back,
// and closes the source; if that takes longer than DrainTimeout, the handlers'
// context is cancelled, and Run waits for them to return. It then returns nil.
//
// Run returns an error if the database's schema is unfit at the start (a
// *store.SchemaError), dead letters' table included, or if the source is
// closed for good (broker.ErrClosed). A database or broker that is not there,
// or a stream that is not there yet, is waited for, and the Observer told. A
// Consumer runs once.
func (c *Consumer[Tx]) Run(ctx context.Context) (err error) {
	if c.ran.Swap(true) {
		return fmt.Errorf("run consumer %q: it has run already: make a new one", c.cfg.Name)
	}
	// Work outlives ctx: that ctx ends means "stop taking", not "drop all".
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.DrainTimeout)
		defer cancel()
		if e := c.broker.source.Close(closing); e != nil && err == nil {
			err = fmt.Errorf("close the source of consumer %q: %w", c.cfg.Name, e)
		}
	}()
	if ready, err := c.check(ctx); !ready {
		return err
	}
	c.observe(Event{Kind: Started})
	defer func() { c.observe(Event{Kind: Stopped, Err: err}) }()

	defer c.stats.start(ctx)() // the last to end: it counts what the others do
	var workers, keeping sync.WaitGroup
	for range c.cfg.Workers {
		workers.Go(func() { c.work(hard) })
	}
	prepared := c.preparers(hard)
	var settled []func()
	kept, stopKeeping := context.WithCancel(hard)
	for _, in := range c.intakes() {
		settled = append(settled, in.settle.start(hard))
		keeping.Go(func() { c.keepAlive(kept, in) })
	}
	if r, ok := broker.As[broker.Revoker](c.broker.source); ok {
		r.OnRevoke(c.revoke)
	}

	taking, stopTaking := context.WithCancel(ctx)
	redrivesTaken := c.receiveRedrives(taking)
	err = c.receive(ctx, c.broker)
	c.stop()
	stopTaking()
	redrivesTaken()
	c.giveBack(c.lanes.drain()) // others can have it while we finish
	timer := time.AfterFunc(c.cfg.DrainTimeout, cancel)
	workers.Wait()
	prepared()
	timer.Stop()
	c.giveBack(c.lanes.drain())
	for _, finish := range settled {
		finish()
	}
	stopKeeping()
	keeping.Wait()
	return err
}

func (c *Consumer[Tx]) stop() {
	c.stopping.Store(true)
	c.lanes.stop()
}

// check waits until the database is there and fit. It returns false when the
// Consumer is not to start.
func (c *Consumer[Tx]) check(ctx context.Context) (bool, error) {
	for n := 1; ; n++ {
		err := c.cfg.Store.Check(ctx)
		if sink, ok := c.cfg.DeadLetters.(deadletter.Checker); ok && err == nil {
			err = sink.Check(ctx)
		}
		if c.starts != nil && err == nil {
			err = c.starts.Check(ctx)
		}
		if c.versions != nil && err == nil {
			err = c.versions.Check(ctx)
		}
		if c.cfg.Redrives != nil && err == nil {
			err = c.cfg.Redrives.Check(ctx)
		}
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, nil
		case c.cfg.Store.Classify(err) != store.ClassUnavailable:
			return false, fmt.Errorf("check the store of consumer %q: %w", c.cfg.Name, err)
		}
		pause := outageBackoff.after(n)
		c.observe(Event{Kind: CheckFailed, Err: err, Pause: pause})
		if sleep(ctx, pause) != nil {
			return false, nil
		}
	}
}

// receive takes deliveries in until ctx ends or the source is closed.
func (c *Consumer[Tx]) receive(ctx context.Context, in *intake) error {
	// room must wake up when ctx ends.
	defer context.AfterFunc(ctx, c.stop)()
	for failures := 0; ctx.Err() == nil; {
		n := c.lanes.room(c.pace.want, c.cfg.MaxHeld)
		if n == 0 {
			return nil
		}
		revocations := c.lanes.revoked()
		deliveries, err := in.source.Receive(ctx, n)
		c.take(in, deliveries, revocations)
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, broker.ErrClosed):
			return fmt.Errorf("receive for consumer %q: %w", c.cfg.Name, err)
		default:
			failures++
			pause := outageBackoff.after(failures)
			c.observe(Event{Kind: ReceiveFailed, Err: err, Pause: pause})
			_ = sleep(ctx, pause)
		}
	}
	return nil
}

// take puts deliveries in hand, or gives them back after a stop, or if their
// lane was revoked since there had been so many revocations.
func (c *Consumer[Tx]) take(in *intake, deliveries []*broker.Delivery, revocations int) {
	slab := make([]job, len(deliveries))
	jobs := make([]*job, len(deliveries))
	now := c.now()
	for i, d := range deliveries {
		j := &slab[i]
		j.from, j.delivery, j.message, j.received = in, d, Message{Message: d.Message}, now
		jobs[i] = j
		if in != c.broker {
			j.redrive = redriveOf(d)
			j.message.letter = j.redrive.Letter.ID
		}
		c.observe(Event{Kind: Received, Message: &j.message, Redelivered: d.Redelivered})
	}
	if in == c.broker {
		c.takeKeys(jobs)
		for _, j := range jobs {
			c.delayer.recall(j)
		}
	} else {
		for _, j := range jobs {
			c.takeRedriveKey(j, j.redrive)
		}
	}
	c.toPrepare(jobs)
	c.giveBack(c.lanes.add(jobs, revocations))
}

// revoke lets lanes go to another instance: what is in work is finished and
// acknowledged, the rest is the other's.
func (c *Consumer[Tx]) revoke(ctx context.Context, lanes []string) {
	c.revoking.Add(1)
	defer c.revoking.Add(-1)
	for _, j := range c.lanes.revoke(ctx, lanes) {
		c.observe(Event{Kind: Released, Message: &j.message})
	}
	c.broker.settle.wait(ctx)
}

// giveBack returns jobs unprocessed to where they came from.
func (c *Consumer[Tx]) giveBack(jobs []*job) {
	for _, j := range jobs {
		c.observe(Event{Kind: Released, Message: &j.message})
		j.from.settle.add(broker.Settlement{Delivery: j.delivery, Action: broker.Retry})
	}
}

// work is a worker: it takes jobs into work, brings them one step further, and
// lets their lines go.
func (c *Consumer[Tx]) work(ctx context.Context) {
	for {
		jobs := c.lanes.next(c.pace.batch)
		if jobs == nil {
			return
		}
		c.pace.enter()
		c.process(ctx, c.unheld(ctx, c.unexpired(jobs)))
		c.pace.leave()
		c.lanes.end(jobs)
	}
}

// unexpired leaves out jobs whose time is over, and those behind them in their
// lines. Somebody else may have them by now. They are not settled: the broker
// delivers them again.
func (c *Consumer[Tx]) unexpired(jobs []*job) []*job {
	live := jobs[:0:0]
	for _, j := range jobs {
		switch {
		case j.expired: // behind one that is
		case j.delivery.Expired():
			c.observe(Event{Kind: Expired, Message: &j.message})
			behind := c.lanes.expire(j)
			for _, b := range behind {
				b.expired = true
			}
			c.giveBack(behind)
		default:
			live = append(live, j)
		}
	}
	return live
}

// acknowledge tells the broker, soon, that messages are done with.
func (c *Consumer[Tx]) acknowledge(jobs []*job) {
	if len(jobs) == 0 {
		return
	}
	acks := make([]broker.Settlement, len(jobs))
	for i, j := range jobs {
		j.done = true
		acks[i] = broker.Settlement{Delivery: j.delivery, Action: broker.Ack}
	}
	jobs[0].from.settle.add(acks...) // a redrive shares a transaction with none
}

// keepAlive asks for more time for all that is in hand of an intake.
func (c *Consumer[Tx]) keepAlive(ctx context.Context, in *intake) {
	keeper, ok := broker.As[broker.KeepAliver](in.source)
	if !ok {
		return
	}
	ticker := time.NewTicker(keeper.KeepAliveEvery())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// What it does not reach expires, and is dropped before it is started.
		if held := c.lanes.deliveries(in); len(held) > 0 {
			_ = keeper.KeepAlive(ctx, held)
		}
	}
}

// now is the time since the Consumer was made: half the size of a time.Time,
// and nothing for the garbage collector to look at.
func (c *Consumer[Tx]) now() time.Duration { return time.Since(c.born) }

func (c *Consumer[Tx]) observe(e Event) {
	e.Consumer = c.cfg.Name
	if c.stats != nil {
		c.stats.count(&e)
	}
	c.cfg.Observer.Observe(e)
}

// guard calls fn, which is the user's, in a goroutine of its own, so that a
// panic and a runtime.Goexit are failures like others.
func guard(fn func() error) (err error) {
	err = ErrHandlerExited
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: belowPanic(debug.Stack())}
			}
		}()
		err = fn()
	}()
	<-done
	return err
}

// belowPanic returns a stack from the frame that panicked on: what is above is
// the runtime's and ours.
func belowPanic(stack []byte) []byte {
	_, below, found := bytes.Cut(stack, []byte("\npanic("))
	if !found {
		return stack
	}
	// The rest of the line, and the one that says where in the runtime.
	for range 2 {
		_, below, _ = bytes.Cut(below, []byte("\n"))
	}
	return below
}
