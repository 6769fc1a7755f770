package sekalitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

var (
	// errCrashed is what a process that has crashed meets everywhere.
	errCrashed = errors.New("sekalitest: the process has crashed")
	// errInjected is the error of a handler that is to fail once, errPoison of
	// one that always does.
	errInjected = errors.New("sekalitest: the handler fails after its work")
	errPoison   = errors.New("sekalitest: the handler always fails on this message")
)

const (
	// soon is how long waits that a handler asks for take.
	soon = 5 * time.Millisecond
	// restTime is how long what is acknowledged may still be in work.
	restTime = 2 * time.Second
	// selfConflicts is how often in a row a process that is alone may be in its
	// own way. With SQLite what happens beside a transaction (an effect's ledger,
	// a dead letter) can be for a moment.
	selfConflicts = 5
)

// process is what runs from a start to a stop or a crash.
type process[Tx any] struct {
	w        *world[Tx]
	number   int
	name     string // of the broker's consumer
	consumer *sekali.Consumer[Tx]
	life     life
	troubles []trouble
	together *gathering
	stop     context.CancelFunc
	stopped  atomic.Bool // in the middle

	mu        sync.Mutex
	fired     map[string]bool
	dead      bool
	died      chan struct{}
	open      map[any][]int // transactions: the messages whose work is done in them
	attempts  map[string]int
	conflicts int
	inHand    map[handed]bool // received, and not finished
	idle      chan struct{}   // holds a token when something was finished
}

// handed is a copy of a message that was received.
type handed struct {
	published time.Time
	letter    int64
}

func newProcess[Tx any](w *world[Tx], l life, name string, g *gathering, troubles []trouble) (_ *process[Tx], err error) {
	w.processes++
	p := &process[Tx]{
		w: w, number: w.processes, name: name, life: l, troubles: troubles, together: g,
		fired: map[string]bool{}, died: make(chan struct{}), open: map[any][]int{}, attempts: map[string]int{},
		inHand: map[handed]bool{}, idle: make(chan struct{}, 1),
	}
	p.consumer, err = sekali.NewConsumer(p.configure())
	return p, err
}

// run lives from start to end. An error: the end did not come.
func (p *process[Tx]) run(ctx context.Context) (err error) {
	p.w.tell("process %d starts", p.number)
	p.provoke()
	running, stop := context.WithCancel(ctx)
	defer stop()
	p.stop = func() { p.stopped.Store(true); stop() }
	ended, empty := make(chan error, 1), make(chan error, 1)
	go func() { ended <- p.consumer.Run(running) }()
	go func() { empty <- p.through(running) }()
	defer func() { <-empty }()
	defer stop()
	select {
	case err := <-ended:
		if p.stopped.Load() && err == nil {
			p.w.tell("process %d stops", p.number)
			return nil
		}
		return fmt.Errorf("the Consumer's Run returned: %w", orNothing(err))
	case err = <-empty:
		empty <- nil // for the end
		if p.stopped.Load() {
			err = nil
		}
		if err != nil && !p.isDead() {
			err = fmt.Errorf("not everything is acknowledged after %v: %w", patience, err)
		}
	case <-p.died:
	case err = <-p.w.stuck:
	}
	stop()
	if e := p.await(ended); e != nil && err == nil {
		err = fmt.Errorf("the Consumer's Run ended: %w", e)
	}
	if p.isDead() {
		return nil
	}
	p.w.tell("process %d stops", p.number)
	return err
}

// await waits for the Consumer's end, but not for ever: a handler may hang.
func (p *process[Tx]) await(ended <-chan error) error {
	timer := time.NewTimer(2 * patience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return fmt.Errorf("not within %v after it was to stop: the handler does not return", 2*patience)
	}
}

func orNothing(err error) error {
	if err == nil {
		return errors.New("nil, though nobody stopped it")
	}
	return err
}

// through waits until the broker's consumer has nothing more to do, nor have
// redrives, and nothing is in hand: what was acknowledged too early is.
func (p *process[Tx]) through(ctx context.Context) error {
	if err := p.w.broker.WaitEmpty(ctx, p.name); err != nil {
		return err
	}
	p.rest(ctx)
	for p.life.redrive {
		letters, err := p.w.letters(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(letters, requested) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("dead letters are not processed again: %w", ctx.Err())
		case <-time.After(soon): // nobody tells when a letter is resolved
		}
	}
	return nil
}

// rest waits until nothing is in hand, but not for ever: a source of the user's
// own may keep things to itself.
func (p *process[Tx]) rest(ctx context.Context) {
	timer := time.NewTimer(restTime)
	defer timer.Stop()
	for p.busy() {
		select {
		case <-p.idle:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (p *process[Tx]) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.inHand) > 0
}

// hand notes what is in hand.
func (p *process[Tx]) hand(e *sekali.Event) {
	h := handed{e.Message.PublishedAt, e.Message.Letter()}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case sekali.Received:
		p.inHand[h] = true
	case sekali.Finished, sekali.DeadLettered, sekali.Held, sekali.Released, sekali.Expired:
		delete(p.inHand, h)
		select {
		case p.idle <- struct{}{}:
		default: // a token is there
		}
	}
}

// configure returns the user's Config, with the kit around all that can fail.
func (p *process[Tx]) configure() sekali.Config[Tx] {
	source := &crashingSource[Tx]{p: p, Source: p.w.broker.NewSource(p.name)}
	cfg := p.w.c.Consumer(source)
	if cfg.Source == nil {
		cfg.Source = source
	}
	p.w.mu.Lock()
	p.w.last = cfg
	p.w.mu.Unlock()
	if cfg.Store != nil {
		cfg.Store = &crashingStore[Tx]{p: p, Store: cfg.Store}
	}
	watching := sekali.Observer(watcher[Tx]{p})
	if cfg.Observer != nil {
		watching = sekali.Observers(watching, cfg.Observer)
	}
	cfg.Observer = watching
	cfg.Backoff = sekali.Backoff{Initial: time.Millisecond, Max: soon}
	cfg.MaxAttempts = max(cfg.MaxAttempts, 5)
	if slices.ContainsFunc(p.troubles, func(t trouble) bool { return t.kind == throwing }) {
		cfg.MaxAttempts = 1000 // a panic counts, and each statement has one
	}
	cfg.StatsEvery = -1
	if p.life.together < 2 {
		cfg.Workers = 1
	}
	if p.life.alone {
		cfg.Batch.Size = 1
	}
	p.wrapHandlers(&cfg)
	return cfg
}

// fires tells whether a trouble of a kind befalls one of the messages now, and
// which one. It befalls each message once, but a poisoned one always.
func (p *process[Tx]) fires(k kind, phase string, messages []int) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.troubles {
		for at, m := range messages {
			if t.kind != k || t.message >= 0 && t.message != m {
				continue
			}
			id := fmt.Sprint(k, phase, t.message)
			if k != poisoned && p.fired[id] {
				continue
			}
			p.fired[id] = true
			return at, true
		}
	}
	return 0, false
}

// die ends the process: from now on it changes nothing and tells nobody.
func (p *process[Tx]) die(how string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.dead = true
		p.w.tell("process %d crashes %s", p.number, how)
		close(p.died)
	}
	return errCrashed
}

func (p *process[Tx]) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// provoke has the provider of a case misbehave, if that is among the troubles.
func (p *process[Tx]) provoke() {
	for _, t := range p.troubles {
		if !t.provider() || p.w.c.Provider == nil {
			continue
		}
		p.w.tell("from now on %s", t)
		p.w.c.Provider.next(t.kind)
	}
}

// watcher tells the trace what happens.
type watcher[Tx any] struct{ p *process[Tx] }

// Observe implements sekali.Observer.
func (o watcher[Tx]) Observe(e sekali.Event) {
	p, n := o.p, 0
	if p.isDead() {
		return
	}
	if e.Message != nil {
		n = p.w.indexOf(&e.Message.Message) + 1
		p.hand(&e)
	}
	switch e.Kind {
	case sekali.Received:
		again := ""
		if e.Redelivered {
			again = " again"
		}
		p.w.tell("process %d gets message %d%s", p.number, n, again)
	case sekali.Finished:
		p.progressed()
		p.w.tell("message %d (key %q): %s", n, e.Message.Key(), e.Outcome)
	case sekali.AttemptFailed:
		p.progressed()
		p.w.tell("message %d (key %q): attempt %d failed: %v", n, e.Message.Key(), e.Attempt, e.Err)
		p.waited(e.Err)
	case sekali.Interrupted:
		p.w.tell("message %d (key %q): interrupted: %v", n, e.Message.Key(), e.Err)
	case sekali.DeadLettered:
		p.w.tell("message %d (key %q) becomes a dead letter: %s", n, e.Message.Key(), e.Reason)
	case sekali.DeadLetterFailed, sekali.CheckFailed, sekali.SettleFailed, sekali.ReceiveFailed:
		p.w.tell("process %d: %s: %v", p.number, e.Kind, e.Err)
	case sekali.Settled:
		p.w.tell("process %d acknowledged %d", p.number, e.Count)
	case sekali.Conflicted:
		p.w.tell("message %d (key %q): conflict: %v", n, e.Message.Key(), e.Err)
		p.conflicted(e.Err)
	}
}

// conflicted notes that a transaction was in another's way. Where there is no
// other, the handler is in its own: it writes through another connection.
func (p *process[Tx]) conflicted(err error) {
	p.mu.Lock()
	p.conflicts++
	stuck := p.conflicts >= selfConflicts && p.life.together < 2
	p.mu.Unlock()
	if !stuck {
		return
	}
	select {
	case p.w.stuck <- fmt.Errorf("the consumer is in its own way, with no other beside it: does the handler write through the"+
		" pool, instead of the transaction that it is handed? %w", err):
	default:
	}
}

func (p *process[Tx]) progressed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conflicts = 0
}

// crashingSource is a Source whose process can crash.
type crashingSource[Tx any] struct {
	p *process[Tx]
	broker.Source
}

// Unwrap is for broker.As.
func (s *crashingSource[Tx]) Unwrap() any { return s.Source }

// Receive implements broker.Source.
func (s *crashingSource[Tx]) Receive(ctx context.Context, most int) ([]*broker.Delivery, error) {
	select {
	case <-s.p.died:
		<-ctx.Done()
		return nil, ctx.Err()
	default:
	}
	got, err := s.Source.Receive(ctx, most)
	for _, d := range got {
		s.p.hand(&sekali.Event{Kind: sekali.Received, Message: &sekali.Message{Message: d.Message}})
		if d.Attempt > 1 { // as RabbitMQ's quorum queues do
			d.Message.Headers = d.Message.Headers.Set("x-delivery-count", fmt.Append(nil, d.Attempt-1))
		}
	}
	return got, err
}

// Settle implements broker.Source. What a process that crashed settles is
// lost.
func (s *crashingSource[Tx]) Settle(ctx context.Context, batch []broker.Settlement) error {
	if s.p.isDead() {
		return errCrashed
	}
	var acks []int
	for _, x := range batch {
		if x.Action == broker.Ack {
			acks = append(acks, s.p.w.indexOf(&x.Delivery.Message))
		}
	}
	if _, ok := s.p.fires(crashAcking, "", acks); ok {
		return s.p.die("before the ack")
	}
	return s.Source.Settle(ctx, batch)
}
