package sekali

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// Config says what a Consumer is made of. Name, Source, Store, Key and one of
// Handle, HandleBatch and Prepare are required.
type Config[Tx any] struct {
	// Name of the consumer: whose effect it is.
	Name string
	// StoredName is the name in the tables, where it is part of the primary key,
	// in dead letters and in the headers of copies; Name stays the one in events,
	// traces and errors. It is for a consumer that was renamed: with its old name
	// here it knows what it has processed, and goes on with its letters. Of two
	// consumers with one StoredName only one has the effect. A ledger of effects
	// is given the same name. Defaults to Name.
	StoredName string
	// Source that messages come from. The Consumer closes it.
	Source broker.Source
	// Store that keys go to.
	Store store.Store[Tx]
	// Key takes the message key. A message without one becomes a dead letter.
	Key KeyFunc
	// Handle changes business data for one message, in its transaction, which
	// other messages may share. It is called from several goroutines at once,
	// each with a message of its own, unless Workers is 1. It may be called
	// again for a message that did not fail, because another one of its
	// transaction did, and everything was rolled back.
	Handle Handler[Tx]

	// HandleBatch changes business data for several messages at once, in one
	// transaction: all or nothing. Give it or Handle, not both.
	HandleBatch BatchHandler[Tx]
	// Prepare does, outside any transaction, what must not happen in one, and
	// returns what is to run in the message's transaction: for effects outside
	// the database, through an effect.Ledger. Duplicates are not prepared.
	// Messages of different ordering keys (without one: of different lanes) are
	// prepared side by side, MaxPrepares at once; one that is prepared shares a
	// transaction with others. Give it, Handle or HandleBatch.
	Prepare Preparer[Tx]
	// MaxPrepares is how many messages are prepared at once. Defaults to 16.
	MaxPrepares int
	// Batch is how many messages share a transaction.
	Batch Batch

	// Fingerprint of the body, stored with the key: another body under the
	// same key is then a conflict and becomes a dead letter, instead of being
	// taken for a duplicate. It needs the column fingerprint, which sekali
	// migrate makes. Defaults to none.
	Fingerprint FingerprintFunc
	// Order takes the ordering key: messages of one key never run side by
	// side, and while one waits for a further attempt the later ones wait too,
	// whatever lanes they came by; an empty one stands in no order but its
	// lane's. Across instances that holds only where the broker pins lanes to
	// them (Kafka's partitions) and the messages of a key share a lane. With a
	// Source that does not, OrderInProcessOnly must be set. Defaults to the
	// broker's ordering key together with the topic.
	Order func(*Message) string
	// Version is for messages that carry an entity's whole state: it returns the
	// entity and the state's version, a number that grows; ok is false for a
	// message that has none. One that is older than what the entity has had is
	// Stale: recorded and acknowledged, the handler is not called. An equal one
	// is processed. It is not for relative changes ("add 10"): skipping one
	// loses it. It needs the table entity_versions, which sekali migrate makes.
	// Defaults to none.
	Version func(*Message) (entity string, version int64, ok bool)
	// PublishedAt takes the time at which a message was published, for brokers
	// that do not tell; zero: unknown. A message that is older than the keys that
	// a pruner has left, and whose key is not there, becomes a dead letter
	// (deadletter.TooOld); one whose time is unknown is taken for new. Defaults to
	// the broker's time.
	PublishedAt func(*Message) time.Time
	// OrderInProcessOnly says that order within one process is enough.
	OrderInProcessOnly bool
	// OnBlocked says what becomes of later messages of an ordering key behind
	// a dead letter. Defaults to Pass.
	OnBlocked OnBlocked
	// DeadLetters takes what cannot be processed. Defaults to the table
	// dead_letters in the Store's database.
	DeadLetters deadletter.Sink
	// Redrives gives the Consumer the letters that are to be processed again,
	// and what was held behind them. Defaults to the table dead_letters in the
	// Store's database if DeadLetters is left out too, else to none.
	Redrives deadletter.Source[Tx]
	// RedriveEvery is how often it is asked for them: a short query. Defaults
	// to 2 s.
	RedriveEvery time.Duration
	// Workers is how many transactions are open at once at most, and so how
	// many connections of the Store's pool are used. Defaults to 4.
	Workers int
	// MaxAttempts is how often the handler is called in vain on a message that
	// is alone in its transaction, before it becomes a dead letter. Any error of the handler counts, a
	// missing table of its own and a lost transaction (ErrTransactionLost)
	// among them; deadlocks and lost connections do not. The count begins
	// anew when the message is received again, after a restart say.
	// Defaults to 10.
	MaxAttempts int
	// MaxCrashes is how often a message's handler is started with nothing else
	// in work in the process, and the process dies of it, before the message
	// becomes a dead letter without being started again. Such lone starts begin
	// once a process died in the middle of the message for the second time; on
	// the normal path nothing is recorded. It needs the table message_starts,
	// which sekali migrate makes. Defaults to 3.
	MaxCrashes int
	// MaxConflicts is how often in a row a transaction may fail because others
	// got in its way, before that counts as an attempt. Defaults to 100.
	MaxConflicts int
	// Backoff is the pause between attempts. The message waits in the process,
	// with no transaction open; others go on, but those of its lane wait too.
	Backoff Backoff
	// MaxHeld is how many deliveries may be in hand at once, those that wait
	// for a further attempt among them. Defaults to 1,000, or to twice what
	// Workers and Batch.Size allow in work if that is more.
	MaxHeld int
	// DrainTimeout is how long a stop waits for messages in work before their
	// context is cancelled. Defaults to 30 s.
	DrainTimeout time.Duration
	// StatsEvery is how often what the Consumer did is added to the table
	// consumer_stats, where the Store keeps it: one short statement, beside the
	// work, which never waits for it. Defaults to 5 s; below 0: never.
	StatsEvery time.Duration
	// Observer is told what happens. Defaults to LogTo(slog.Default()).
	Observer Observer
}

// withDefaults returns a copy of c with its empty fields filled in, or an
// error that names every field that is wrong.
func (c Config[Tx]) withDefaults() (Config[Tx], error) {
	if c.StoredName == "" {
		c.StoredName = c.Name
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.MaxCrashes == 0 {
		c.MaxCrashes = 3
	}
	if c.MaxConflicts == 0 {
		c.MaxConflicts = maxConflicts
	}
	if c.Batch.Size == 0 {
		c.Batch.Size = 100
	}
	if c.Batch.MaxOpen == 0 {
		c.Batch.MaxOpen = 200 * time.Millisecond
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = max(1000, 2*c.Workers*c.Batch.Size)
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.MaxPrepares == 0 {
		c.MaxPrepares = 16
	}
	if c.RedriveEvery == 0 {
		c.RedriveEvery = 2 * time.Second
	}
	if c.StatsEvery == 0 {
		c.StatsEvery = 5 * time.Second
	}
	if c.Observer == nil {
		c.Observer = LogTo(slog.Default())
	}
	c.Backoff = c.Backoff.withDefaults()
	err := c.validate()
	if err == nil && c.DeadLetters == nil {
		keeper, ok := store.As[interface{ DeadLetters() deadletter.Queue }](c.Store)
		if !ok {
			return c, errors.New("no sink for dead letters: the Store keeps none, so set DeadLetters")
		}
		c.DeadLetters = keeper.DeadLetters()
		if keeper, ok := store.As[interface {
			Redrives() deadletter.Source[Tx]
		}](c.Store); ok && c.Redrives == nil {
			c.Redrives = keeper.Redrives()
		}
	}
	if c.Version != nil && err == nil {
		if _, ok := store.As[interface{ Versions() store.Versions[Tx] }](c.Store); !ok {
			return c, errors.New("field Version is set, but the Store keeps no versions of entities: leave it out, or use another store")
		}
	}
	if _, ok := c.DeadLetters.(deadletter.Holder); err == nil && c.OnBlocked == HoldKey && !ok {
		return c, errors.New("OnBlocked is HoldKey, but DeadLetters cannot hold messages: leave DeadLetters out, or OnBlocked at Pass")
	}
	if err == nil && c.OnBlocked == HoldKey && c.Redrives == nil {
		return c, errors.New("OnBlocked is HoldKey, but nothing releases what is held: leave DeadLetters out, or set Redrives")
	}
	return c, err
}

// OnBlocked says what becomes of later messages of an ordering key when an
// earlier one is a dead letter.
type OnBlocked uint8

// The choices.
const (
	// Pass: they are processed.
	Pass OnBlocked = iota
	// HoldKey: they are kept beside the dead letter, in their order, until it
	// is dealt with, and then processed.
	HoldKey
)

// pins tells whether the broker keeps each lane in one instance's hand.
func pins(s broker.Source) bool {
	p, ok := broker.As[broker.PinsLanes](s)
	return ok && p.PinsLanes()
}

func (c Config[Tx]) validate() error {
	var errs []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if err := store.CheckConsumer(c.Name); err != nil {
		errs = append(errs, fmt.Errorf("field Name: %w", err))
	} else if err := store.CheckConsumer(c.StoredName); err != nil {
		errs = append(errs, fmt.Errorf("field StoredName: %w", err))
	}
	wrong(c.Source == nil, "Source is not set: give the broker.Source that messages come from")
	wrong(c.Store == nil, "Store is not set: give the store that keys go to, such as pgxstore.New(pool)")
	wrong(c.Key == nil, "Key is not set: say where the message key is, such as sekali.Header(\"idempotency-key\")")
	given := 0
	for _, is := range []bool{c.Handle != nil, c.HandleBatch != nil, c.Prepare != nil} {
		if is {
			given++
		}
	}
	wrong(given == 0, "Handle is not set: give the function that changes business data, or HandleBatch, or Prepare")
	wrong(given > 1, "more than one of Handle, HandleBatch and Prepare is set: keep one")
	wrong(c.MaxPrepares < 0, "MaxPrepares is %d: use 1 or more", c.MaxPrepares)
	wrong(c.Batch.Size < 0, "Batch.Size is %d: use 1 or more", c.Batch.Size)
	wrong(c.Batch.MaxOpen < 0, "Batch.MaxOpen is %v: use a time above zero", c.Batch.MaxOpen)
	wrong(c.Workers < 0, "Workers is %d: use 1 or more", c.Workers)
	wrong(c.MaxAttempts < 0, "MaxAttempts is %d: use 1 or more", c.MaxAttempts)
	wrong(c.OnBlocked > HoldKey, "OnBlocked is %d: use Pass or HoldKey", c.OnBlocked)
	wrong(c.Source != nil && (c.Order != nil || c.OnBlocked == HoldKey) && !c.OrderInProcessOnly && !pins(c.Source),
		"Order or HoldKey is set, but the Source does not keep a lane in one instance's hand, so that two instances would"+
			" break the order: set OrderInProcessOnly if order within one process is enough")
	wrong(c.MaxCrashes < 0, "MaxCrashes is %d: use 1 or more", c.MaxCrashes)
	wrong(c.MaxConflicts < 0, "MaxConflicts is %d: use 1 or more", c.MaxConflicts)
	wrong(c.MaxHeld < c.Workers, "MaxHeld is %d, less than Workers (%d): workers would stand idle", c.MaxHeld, c.Workers)
	wrong(c.RedriveEvery < 0, "RedriveEvery is %v: use a time above zero", c.RedriveEvery)
	wrong(c.DrainTimeout < 0, "DrainTimeout is %v: use a time above zero", c.DrainTimeout)
	wrong(c.Backoff.Initial < 0, "Backoff.Initial is %v: use a time above zero", c.Backoff.Initial)
	wrong(c.Backoff.Max < c.Backoff.Initial, "Backoff.Max is %v, less than Backoff.Initial (%v)", c.Backoff.Max, c.Backoff.Initial)
	return errors.Join(errs...)
}
