package sekali

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// Observer is told what a Consumer does. Observe is called from many
// goroutines at once, in the middle of the work, so it must be quick; it must
// not keep or change e.Message.
type Observer interface {
	Observe(e Event)
}

// EventKind says what happened.
type EventKind uint8

// The events, and the fields of Event that each has beside Kind and Consumer.
//
//	Received         Message, Redelivered
//	Committed        Count, Duration                 a transaction gave Count messages their effects, duplicates among them; its commit took Duration
//	Finished         Message, Outcome, Duration      after the commit, before the acknowledgement. Duration: of all of the transaction.
//	                                                 Processed: Handling; Duplicate: Cause, and Age if an AgeWatcher wants it
//	AttemptFailed    Message, Attempt, Err, Pause    it will be tried again (Pause) or dead-lettered next
//	Conflicted       Message, Err, Pause, Count      deadlock and the like; not counted as an attempt. Count: of a batch, whose first Message is
//	Interrupted      Message, Err, Pause, Count      the database is not there, or unfit; not counted
//	DeadLettered     Message, Reason, Attempt, Err   after the letter was written, before the acknowledgement
//	DeadLetterFailed Message, Reason, Err, Pause     the letter could not be written; nothing is acknowledged
//	Held             Message                         kept behind a dead letter of its ordering key, before the acknowledgement
//	Suspected        Message, Attempt                a process may have died of it: its lone start number Attempt
//	Expired          Message                         its time was over before it was started; it comes again
//	Released         Message                         given back unprocessed: the consumer stops, or the lane goes elsewhere
//	Settled          Count                           the broker confirmed acknowledgements
//	SettleFailed     Count, Err                      those messages may come again, as duplicates
//	ReceiveFailed    Err, Pause                      the broker is not there
//	CheckFailed      Err, Pause                      the database is not there yet, at the start
//	StatsFailed      Err                             statistics could not be written; told once, they are written later
//	Started                                          the database is fit, receiving begins
//	Stopped          Err                             the consumer's Run returns
const (
	Received EventKind = iota + 1
	Finished
	AttemptFailed
	Conflicted
	Interrupted
	DeadLettered
	DeadLetterFailed
	Expired
	Released
	Settled
	SettleFailed
	ReceiveFailed
	CheckFailed
	Started
	Stopped
	Held
	Suspected
	Committed
	StatsFailed
)

var eventNames = [...]string{
	"unknown", "received", "finished", "attempt failed", "conflicted", "interrupted", "dead-lettered",
	"dead letter failed", "expired", "released", "settled", "settle failed", "receive failed", "check failed",
	"started", "stopped", "held", "suspected", "committed", "stats failed",
}

// String returns the name of the event in lower case.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return eventNames[0]
}

// Event is something that a Consumer did. Which fields it has is said at
// EventKind.
type Event struct {
	Kind        EventKind
	Consumer    string
	Message     *Message
	Redelivered bool
	Outcome     Outcome
	Duration    time.Duration
	Attempt     int
	Pause       time.Duration
	Reason      deadletter.Reason
	// Handling is how long the handler took for this message; of a HandleBatch
	// its share. Prepare is part of it.
	Handling time.Duration
	// Cause of a duplicate.
	Cause Cause
	// Age of a duplicate is how long ago it was processed, by the database's
	// clock; 0: unknown.
	Age   time.Duration
	Count int
	Err   error
}

// LogTo returns an Observer that writes to a logger: start and stop as
// information, trouble as warnings, dead letters as errors, the rest at debug
// level. Keys are logged in their stored form, as sekali keys find takes them;
// bodies never.
func LogTo(logger *slog.Logger) Observer { return logObserver{logger} }

type logObserver struct{ logger *slog.Logger }

func (l logObserver) Observe(e Event) {
	level := slog.LevelDebug
	switch e.Kind {
	case AttemptFailed, Interrupted, SettleFailed, ReceiveFailed, CheckFailed, Expired, Held, Suspected, StatsFailed:
		level = slog.LevelWarn
	case DeadLettered, DeadLetterFailed:
		level = slog.LevelError
	case Started, Stopped:
		level = slog.LevelInfo
	}
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("consumer", e.Consumer)}
	if e.Message != nil {
		attrs = append(attrs, slog.String("key", store.StoredKey(e.Message.Key())), slog.String("message_id", e.Message.ID))
		if letter := e.Message.Letter(); letter != 0 {
			attrs = append(attrs, slog.Int64("letter", letter))
		}
	}
	if e.Outcome != 0 {
		attrs = append(attrs, slog.String("outcome", e.Outcome.String()))
	}
	if e.Cause != 0 {
		attrs = append(attrs, slog.String("cause", e.Cause.String()))
	}
	if e.Age != 0 {
		attrs = append(attrs, slog.Duration("age", e.Age))
	}
	if e.Attempt != 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(e.Reason)))
	}
	if e.Pause != 0 {
		attrs = append(attrs, slog.Duration("pause", e.Pause))
	}
	if e.Count != 0 {
		attrs = append(attrs, slog.Int("count", e.Count))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	if p := (*PanicError)(nil); errors.As(e.Err, &p) {
		attrs = append(attrs, slog.String("at", p.where()))
	}
	l.logger.LogAttrs(ctx, level, "sekali: "+e.Kind.String(), attrs...)
}
