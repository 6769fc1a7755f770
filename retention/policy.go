// Package retention removes what need not be kept for ever: keys of messages
// that cannot come again, resolved dead letters, finished effects and the like.
//
//	pruner, err := retention.New(store, retention.Config{Policy: retention.Policy{
//		Keys: 30 * 24 * time.Hour, Sources: []broker.Source{source},
//	}})
//	report, err := pruner.Run(ctx) // once; or pruner.Every(ctx, time.Hour, …)
//
// A key that is removed can no longer tell a duplicate. So a Policy that keeps
// keys for a shorter time than a duplicate can travel is refused. And for what is
// removed a mark stays, per consumer: a message that is older than the mark, and
// whose key is not there, becomes a dead letter (deadletter.TooOld).
package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/store"
)

// Forever keeps rows without a limit.
const Forever time.Duration = -1

// DefaultMargin is added to the longest way of a duplicate: for clocks, for
// deliveries that a consumer holds, and for whoever mends what has stopped.
const DefaultMargin = 3 * 24 * time.Hour

// DefaultDeadLetters is how long resolved dead letters are kept, unless keys are
// kept longer.
const DefaultDeadLetters = 90 * 24 * time.Hour

// What else is kept by default: published events of the outbox, for whoever
// looks for one, and statistics.
const (
	DefaultOutbox     = 7 * 24 * time.Hour
	DefaultStatistics = 90 * 24 * time.Hour
)

// ErrTooShort is the error of a Policy that forgets keys, or what stands for
// them, while their duplicates can still come.
var ErrTooShort = errors.New("it is kept for a shorter time than a duplicate can travel")

// ErrUnlimited is the error of a Policy that cannot tell how old a duplicate may
// be: a broker keeps messages without a limit of time, or cannot say.
var ErrUnlimited = errors.New("nothing limits the age of a duplicate")

// Policy says for how long rows are kept, by the database's clock. Nothing is
// kept for less than store.MinKeep.
type Policy struct {
	// Keys of processed messages; required. A key stays while it has a dead
	// letter that somebody has still to decide about, or that was sent to its
	// origin, or an effect that is not finished.
	Keys time.Duration
	// DeadLetters that are resolved, since that happened. Defaults to 90 days, or
	// to Keys if that is longer. Unresolved ones stay.
	DeadLetters time.Duration
	// Effects that have succeeded or failed, since then. Defaults to Keys. Others
	// stay.
	Effects time.Duration
	// Outbox is for events that are published, since then. Defaults to 7 days.
	// Others stay.
	Outbox time.Duration
	// Versions of entities, since they were raised. Defaults to Keys.
	Versions time.Duration
	// Starts of handlers whose process died, and whose message never came again.
	// Defaults to Keys.
	Starts time.Duration
	// Statistics of what consumers did, minute by minute. Defaults to 90 days.
	Statistics time.Duration
	// Audit is the trail of what people decided. Defaults to Forever.
	Audit time.Duration

	// Sources from which the consumers of this database receive. Those whose
	// broker tells how long it keeps messages are asked (broker.Retention).
	Sources []broker.Source
	// MaxDuplicateAge is how long after its publication a message can come again,
	// by whatever way: a producer's retry, a restored backup, a replay. It must
	// be said where no Source is given or the broker keeps messages without a
	// limit. Where the broker keeps them longer, that counts.
	MaxDuplicateAge time.Duration
	// LettersElsewhere is how long dead letters that are kept outside this
	// database, in a broker's queue, can be sent back. Defaults to none.
	LettersElsewhere time.Duration
	// Margin is added to all that. Defaults to DefaultMargin.
	Margin time.Duration
}

// rule is how long rows of a kind are kept.
type rule struct {
	rows store.Prunable
	keep time.Duration
	// guards tells that a duplicate is recognised by these rows, or that the keys
	// of such a message stay because of them.
	guards bool
}

// rules is the one list of what is pruned, in this order.
func (p Policy) rules() []rule {
	or := func(keep, otherwise time.Duration) time.Duration {
		if keep == 0 {
			return otherwise
		}
		return keep
	}
	letters := max(DefaultDeadLetters, p.Keys)
	if p.Keys == Forever {
		letters = Forever
	}
	return []rule{
		{store.PruneKeys, p.Keys, true},
		{store.PruneDeadLetters, or(p.DeadLetters, letters), true},
		{store.PruneEffects, or(p.Effects, p.Keys), true},
		{store.PruneOutbox, or(p.Outbox, DefaultOutbox), false},
		{store.PruneVersions, or(p.Versions, p.Keys), true},
		{store.PruneStarts, or(p.Starts, p.Keys), false},
		{store.PruneStats, or(p.Statistics, DefaultStatistics), false},
		{store.PruneAudit, or(p.Audit, Forever), false},
	}
}

func (p Policy) margin() time.Duration {
	if p.Margin == 0 {
		return DefaultMargin
	}
	return p.Margin
}

// validate says what is wrong without asking anybody.
func (p Policy) validate() error {
	var errs []error
	if p.Keys == 0 {
		errs = append(errs, errors.New("field Keys is not set: say how long keys of processed messages are kept"))
	}
	for _, r := range p.rules() {
		if r.keep != 0 && r.keep != Forever && r.keep < store.MinKeep {
			errs = append(errs, fmt.Errorf("%s are kept for %v: keep them for %v at least", r.rows, r.keep, store.MinKeep))
		}
	}
	for name, d := range map[string]time.Duration{
		"MaxDuplicateAge": p.MaxDuplicateAge, "LettersElsewhere": p.LettersElsewhere, "Margin": p.Margin,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("field %s is %v: use a time above zero", name, d))
		}
	}
	return errors.Join(errs...)
}

// Needed returns how long keys must be kept: the longest time for which a broker
// keeps a message or MaxDuplicateAge, LettersElsewhere, and Margin. It asks the
// Sources. The error is ErrUnlimited where it cannot be told.
func (p Policy) Needed(ctx context.Context) (time.Duration, error) {
	travel := p.MaxDuplicateAge
	for _, s := range p.Sources {
		asked, ok := broker.As[broker.Retention](s)
		if !ok {
			if p.MaxDuplicateAge == 0 {
				return 0, fmt.Errorf("a source of type %T does not tell how long its broker keeps messages: say MaxDuplicateAge: %w", s, ErrUnlimited)
			}
			continue
		}
		age, limited, err := asked.Retention(ctx)
		switch {
		case err != nil:
			return 0, fmt.Errorf("ask the broker how long it keeps messages: %w", err)
		case !limited && p.MaxDuplicateAge == 0:
			return 0, fmt.Errorf("the broker keeps messages without a limit of time: say MaxDuplicateAge: %w", ErrUnlimited)
		case limited:
			travel = max(travel, age)
		}
	}
	if travel == 0 {
		return 0, fmt.Errorf("neither Sources nor MaxDuplicateAge is set: %w", ErrUnlimited)
	}
	return travel + p.LettersElsewhere + p.margin(), nil
}

// Check returns an error if the Policy forgets what tells a duplicate while that
// can still come (ErrTooShort), or if nobody knows how long that is
// (ErrUnlimited). It asks the Sources.
func (p Policy) Check(ctx context.Context) error {
	if err := p.validate(); err != nil {
		return err
	}
	guarding := slices.DeleteFunc(p.rules(), func(r rule) bool { return !r.guards || r.keep == Forever })
	if len(guarding) == 0 {
		return nil
	}
	needed, err := p.Needed(ctx)
	if err != nil {
		return err
	}
	var short []string
	for _, r := range guarding {
		if r.keep < needed {
			short = append(short, fmt.Sprintf("%s for %s", r.rows, Days(r.keep)))
		}
	}
	if len(short) > 0 {
		return fmt.Errorf("%s: keep them for %s (a duplicate's age of %s, and a margin of %s): %w", strings.Join(short, ", "),
			Days(needed), Days(needed-p.margin()), Days(p.margin()), ErrTooShort)
	}
	return nil
}

// Days returns a duration as people write it: in days where it has whole ones.
func Days(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == Forever:
		return "ever"
	case d < day:
		return d.String()
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	}
	return fmt.Sprintf("%dd%s", d/day, d%day)
}
