package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/brokerurl"
)

// place is where letters are sent by way of a broker, and where they come from
// if that is not the database.
type place struct {
	broker   string // URL
	from     string // a dead letter queue at the broker; empty: the database
	to       string // a topic that the letters' consumer receives, and nobody else
	toOrigin bool
	idle     time.Duration // how long an empty queue is looked at
}

// publishTimeout bounds the confirmation of one letter.
const publishTimeout = 30 * time.Second

func (p place) used() bool { return p.broker != "" || p.from != "" || p.to != "" || p.toOrigin }

// check finds what is wrong with the command line.
func (p place) check(dryRun bool) error {
	switch {
	case p.broker == "":
		return usagef("--from-queue, --to and --to-origin need a broker: give --broker")
	case p.toOrigin && p.to != "":
		return usagef("--to and --to-origin are both given: use one of them")
	case !p.toOrigin && p.to == "" && !dryRun:
		return usagef("where shall they go? Give --to, a topic that their consumer receives and nobody else, or --to-origin")
	case p.idle <= 0:
		return usagef("--idle %v: use a time above zero", p.idle)
	}
	return nil
}

// target is the topic to which a letter goes.
func (p place) target(l deadletter.Letter) string {
	if p.toOrigin {
		return l.Message.Topic
	}
	return p.to
}

// warning is for those who send letters where others listen.
const warning = "warning: they go to the topics that they came from: other consumers of those see them too, under new broker ids"

// maySend refuses a letter that is too old to know whether it was processed, if
// it is taken along with others: to the broker it is a new message.
func (d *decision) maySend(l deadletter.Letter) error {
	if l.Reason == deadletter.TooOld && d.filter.Reason != deadletter.TooOld && !d.how.Force {
		return errors.New("it may have been processed: look at the business data, then choose it by --reason too-old")
	}
	return nil
}

// send publishes one letter and waits for the broker's confirmation.
func (p place) send(ctx context.Context, publisher broker.Publisher, l deadletter.Letter) error {
	topic := p.target(l)
	if topic == "" {
		return errors.New("it is not known where it came from: give --to")
	}
	return publisher.Publish(ctx, deadletter.Redriven(l, topic))
}

// finishing returns a context in which a letter is sent and recorded to the
// end: an interruption in between would leave it sent and not known to be.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
}

// sendFromDatabase has letters of the database sent, one by one: each is
// published, and resolved when that is confirmed. Killed in between it is
// open, and its copy, which bears its key, has the effect.
func (a *app) sendFromDatabase(ctx context.Context, d *decision, p place, args []string) error {
	if p.toOrigin {
		fmt.Fprintln(a.stderr, warning)
	}
	publisher, err := brokerurl.OpenPublisher(p.broker)
	if err != nil {
		return err
	}
	defer closeSoon(ctx, publisher)
	d.verb, d.again = "to be sent", true
	d.do = func(ctx context.Context, desk admin.DeadLetters, l chosen) error {
		ctx, cancel := finishing(ctx)
		defer cancel()
		letter, err := desk.Get(ctx, l.id)
		if err != nil {
			return err
		}
		if err := d.refuses(letter.Status); err != nil {
			return fmt.Errorf("send dead letter %d: %w", l.id, err)
		}
		if letter.Status == deadletter.Held || letter.Status == deadletter.Waiting {
			return fmt.Errorf("send dead letter %d: it is %s, and goes on by itself", l.id, letter.Status)
		}
		if err := d.maySend(letter); err != nil {
			return err
		}
		if err := p.send(ctx, publisher, letter); err != nil {
			return err
		}
		how := d.how
		how.Note = joined("to "+p.target(letter), how.Note)
		return desk.Sent(ctx, l.id, how)
	}
	return a.decide(ctx, d, args)
}

func joined(a, b string) string {
	if b == "" {
		return a
	}
	return a + ", " + b
}

func closeSoon(ctx context.Context, p interface{ Close(context.Context) error }) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	_ = p.Close(ctx) // everything was confirmed, or its failure told
}

// sendFromQueue moves letters from a broker's queue: each is published,
// recorded in the audit trail, and then acknowledged. What is not to be moved
// is given back.
func (a *app) sendFromQueue(ctx context.Context, d *decision, p place, args []string) error {
	switch {
	case len(args) > 0:
		return usagef("letters in a broker's queue have no IDs: choose by --consumer, --key or --reason, or move all")
	case d.how.Force || d.how.Effects || d.how.Key != "":
		return usagef("--force, --effects and --as-key are for letters in the database")
	case !d.dryRun && !d.yes:
		return usagef("look at them with --dry-run, then add --yes")
	}
	if p.toOrigin {
		fmt.Fprintln(a.stderr, warning)
	}
	move := func(desk admin.DeadLetters) error { return a.moveLetters(ctx, d, p, desk) }
	if d.dryRun {
		return move(nil)
	}
	return a.letters(ctx, move) // for the audit trail
}

func (a *app) moveLetters(ctx context.Context, d *decision, p place, desk admin.DeadLetters) (err error) {
	publisher, err := brokerurl.OpenPublisher(p.broker)
	if err != nil {
		return err
	}
	defer closeSoon(ctx, publisher)
	source, err := brokerurl.OpenQueue(p.broker, p.from)
	if err != nil {
		return err
	}
	defer closeSoon(ctx, source) // gives back what was not settled
	var all []movedLetter
	// A letter that comes again has failed again meanwhile: moving it once more
	// would go on for ever.
	done := map[[sha256.Size]byte]bool{}
	for news := true; ; {
		deliveries, err := receiveSome(ctx, source, p.idle)
		if err != nil || len(deliveries) == 0 || !news {
			return a.writeMoved(ctx, all, d.dryRun, err)
		}
		news = false
		for _, delivery := range deliveries {
			if ctx.Err() != nil {
				break
			}
			l, err := deadletter.FromMessage(delivery.Message)
			if err == nil && !d.chooses(l) {
				news = true
				continue
			}
			again := err == nil && done[l.Identity()]
			news = news || !again
			if again {
				err = errors.New("it failed again, and is in the queue again")
			}
			done[l.Identity()] = true
			if err == nil {
				err = d.maySend(l)
			}
			if err == nil && !d.dryRun {
				err = d.moveOne(ctx, p, source, publisher, desk, delivery, l)
			}
			all = append(all, movedLetter{l, p.target(l), err})
		}
	}
}

// chooses tells whether the filters let a letter through.
func (d *decision) chooses(l deadletter.Letter) bool {
	f := d.filter
	return (f.Consumer == "" || f.Consumer == l.Consumer) && (f.Key == "" || f.Key == l.Key) &&
		(f.OrderingKey == "" || f.OrderingKey == l.OrderingKey) && (f.Topic == "" || f.Topic == l.Message.Topic) &&
		(f.Reason == "" || f.Reason == l.Reason)
}

func (d *decision) moveOne(ctx context.Context, p place, source broker.Source, publisher broker.Publisher,
	desk admin.DeadLetters, delivery *broker.Delivery, l deadletter.Letter,
) error {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := p.send(ctx, publisher, l); err != nil {
		return err
	}
	entry := deadletter.Audit{
		By: d.how.By, Action: "send", Consumer: l.Consumer, Key: l.Key,
		Detail: joined(fmt.Sprintf("from %s to %s", p.from, p.target(l)), d.how.Note),
	}
	if err := desk.Record(ctx, entry); err != nil {
		return err
	}
	return source.Settle(ctx, []broker.Settlement{{Delivery: delivery, Action: broker.Ack}})
}

// receiveSome receives what is there; nothing if nothing comes for a while.
func receiveSome(ctx context.Context, source broker.Source, idle time.Duration) ([]*broker.Delivery, error) {
	waiting, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	deliveries, err := source.Receive(waiting, 100)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil && errors.Is(err, waiting.Err()) {
		return deliveries, nil
	}
	return deliveries, err
}

// movedLetter is a letter of a queue, and what became of it.
type movedLetter struct {
	letter deadletter.Letter
	to     string
	err    error
}

// writeMoved writes what was done, also if something came in between.
func (a *app) writeMoved(ctx context.Context, all []movedLetter, dryRun bool, broken error) error {
	failures := 0
	list := []map[string]any{}
	table := [][]string{{"CONSUMER", "KEY", "REASON", "DIED OF", "TO", "ERROR"}}
	for _, m := range all {
		text := ""
		if m.err != nil {
			failures, text = failures+1, oneLine(m.err)
		}
		l := m.letter
		list = append(list, map[string]any{
			"consumer": l.Consumer, "key": jsonBytes([]byte(l.Key)), "reason": l.Reason, "died_of": l.Error, "to": m.to, "error": text,
		})
		table = append(table, []string{plain(l.Consumer), shortKey(l.Key, 40), string(l.Reason), short(l.Error, 60), orNone(m.to), short(text, 100)})
	}
	verb := "sent"
	if dryRun {
		verb = "to be sent"
	}
	fmt.Fprintf(a.stderr, "%d dead letters %s\n", len(all)-failures, verb)
	if a.output == "json" {
		if err := writeJSON(a.stdout, list); err != nil {
			return err
		}
	} else if len(all) > 0 {
		if err := writeTable(a.stdout, table); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: the other messages stay in the queue: %w", ctx.Err())
	case broken != nil:
		return broken
	case failures > 0:
		return errors.New(strconv.Itoa(failures) + " messages stay in the queue: see their errors")
	}
	return nil
}
