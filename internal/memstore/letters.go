package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/store"
)

// letter is a dead letter, with what a redrive of it needs.
type letter struct {
	deadletter.Letter
	decision deadletter.Decision
	takes    int
	token    string
	until    time.Time
}

func (l *letter) unresolved() bool {
	switch l.Status {
	case deadletter.Open, deadletter.Held, deadletter.Requested, deadletter.Waiting:
		return true
	}
	return false
}

func (l *letter) resolve(s deadletter.Status) { l.Status, l.token, l.until = s, "", time.Time{} }

// DeadLetters returns the store's letters.
func (s *Store) DeadLetters() deadletter.Queue { return (*letters)(s) }

type letters Store

var (
	_ deadletter.Holder = (*letters)(nil)
	_ deadletter.Desk   = (*letters)(nil)
)

func (l *letters) Put(_ context.Context, one deadletter.Letter) error {
	if one.Status != deadletter.Waiting {
		one.Status = deadletter.Open
	}
	return l.write(one, func(old *letter) {
		if old.Status == deadletter.Requested {
			one.Status = deadletter.Requested
		}
		one.ID, one.Copies = old.ID, old.Copies+1
		old.Letter = one
	})
}

// Hold implements deadletter.Holder.
func (l *letters) Hold(_ context.Context, one deadletter.Letter) error {
	one.Status = deadletter.Held
	return l.write(one, func(old *letter) { old.Copies++ })
}

// Blocked implements deadletter.Holder.
func (l *letters) Blocked(_ context.Context, consumer, orderingKey string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.letters, func(x *letter) bool {
		return x.Consumer == consumer && x.OrderingKey == orderingKey && x.unresolved()
	}), nil
}

func (l *letters) write(one deadletter.Letter, onCopy func(old *letter)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	one.Message = one.Message.Clone()
	for _, old := range l.letters {
		if old.unresolved() && old.Identity() == one.Identity() {
			onCopy(old)
			return nil
		}
	}
	one.ID, one.Copies = int64(len(l.letters)+1), 1
	l.letters = append(l.letters, &letter{Letter: one})
	return nil
}

func (l *letters) List(_ context.Context, f deadletter.Filter) ([]deadletter.Letter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []deadletter.Letter
	for _, one := range slices.Backward(l.letters) {
		if one.matches(f) {
			found = append(found, one.Letter)
		}
	}
	return found, nil
}

func (l *letter) matches(f deadletter.Filter) bool {
	return (f.Consumer == "" || f.Consumer == l.Consumer) && (f.Key == "" || f.Key == l.Key) &&
		(f.OrderingKey == "" || f.OrderingKey == l.OrderingKey) && (f.Status == "" || f.Status == l.Status) &&
		(f.Reason == "" || f.Reason == l.Reason) && (f.Topic == "" || f.Topic == l.Message.Topic) &&
		(!f.Unresolved || l.unresolved()) && (f.Before == 0 || l.ID < f.Before)
}

func (l *letters) Get(_ context.Context, id int64) (deadletter.Letter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, err := l.get(id)
	if err != nil {
		return deadletter.Letter{}, err
	}
	return one.Letter, nil
}

func (l *letters) get(id int64) (*letter, error) {
	if id < 1 || id > int64(len(l.letters)) {
		return nil, deadletter.ErrNotFound
	}
	return l.letters[id-1], nil
}

// Count implements deadletter.Desk.
func (l *letters) Count(ctx context.Context, f deadletter.Filter) (map[deadletter.Reason]int, error) {
	found, err := l.List(ctx, f)
	counts := map[deadletter.Reason]int{}
	for _, one := range found {
		counts[one.Reason]++
	}
	return counts, err
}

// Redrive implements deadletter.Desk.
func (l *letters) Redrive(_ context.Context, id int64, d deadletter.Decision) error {
	return l.decide(id, func(one *letter) {
		one.decision, one.takes = d, 0
		if one.Status != deadletter.Held {
			one.Status = deadletter.Requested
		}
	})
}

// Discard implements deadletter.Desk.
func (l *letters) Discard(_ context.Context, id int64, _ deadletter.Decision) error {
	return l.decide(id, func(one *letter) {
		one.resolve(deadletter.Discarded)
		if k := key(one.Consumer, one.Key); one.Key != "" {
			if _, there := l.rows[k]; !there {
				l.rows[k] = nil
			}
		}
	})
}

// Sent implements deadletter.Desk.
func (l *letters) Sent(_ context.Context, id int64, d deadletter.Decision) error {
	l.mu.Lock()
	one, err := l.get(id)
	again := err == nil && d.Force && one.Status == deadletter.Sent
	l.mu.Unlock()
	if again {
		return nil
	}
	return l.decide(id, func(one *letter) { one.resolve(deadletter.Sent) })
}

func (l *letters) decide(id int64, change func(*letter)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, err := l.get(id)
	if err == nil && !one.unresolved() {
		err = deadletter.ErrResolved
	}
	if err == nil {
		change(one)
	}
	return err
}

// Record implements deadletter.Desk: nothing is kept.
func (l *letters) Record(context.Context, deadletter.Audit) error { return nil }

// Trail implements deadletter.Desk: there is none.
func (l *letters) Trail(context.Context, int64, int) ([]deadletter.Audit, error) { return nil, nil }

// Redrives returns the letters that a Consumer is to process.
func (s *Store) Redrives() deadletter.Source[*Tx] { return (*redrives)(s) }

type redrives Store

// Take implements deadletter.Source.
func (r *redrives) Take(_ context.Context, consumer string, most int, lease time.Duration) ([]deadletter.Redrive, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var taken []deadletter.Redrive
	for i, one := range r.letters {
		if len(taken) == most {
			break
		}
		if one.Consumer != consumer || time.Now().Before(one.until) || one.Status == deadletter.Open ||
			!one.unresolved() || r.waits(i) || one.Status == deadletter.Waiting && (*ledger)(r).parked(one.Consumer, one.Key) {
			continue
		}
		one.takes++
		one.token, one.until = fmt.Sprintf("%d/%d/%d", one.ID, one.takes, time.Now().UnixNano()), time.Now().Add(lease)
		d := one.decision
		taken = append(taken, deadletter.Redrive{
			Letter: one.Letter, Key: d.Key, Force: d.Force, Takes: one.takes, Token: one.token,
		})
	}
	return taken, nil
}

// waits tells whether something of its ordering key comes before a letter.
func (r *redrives) waits(i int) bool {
	one := r.letters[i]
	return one.OrderingKey != "" && slices.ContainsFunc(r.letters[:i], func(e *letter) bool {
		return e.Consumer == one.Consumer && e.OrderingKey == one.OrderingKey && e.unresolved() &&
			(one.Status == deadletter.Held || e.Status == deadletter.Held || e.Status == deadletter.Requested)
	})
}

// ours returns the letter, if it is still.
func (r *redrives) ours(one deadletter.Redrive) (*letter, error) {
	l := r.letters[one.Letter.ID-1]
	if l.token != one.Token || !l.unresolved() {
		return nil, deadletter.ErrNotOurs
	}
	return l, nil
}

// Extend implements deadletter.Source.
func (r *redrives) Extend(_ context.Context, list []deadletter.Redrive, lease time.Duration) (kept []int64, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range list {
		if l, err := r.ours(one); err == nil {
			l.until = time.Now().Add(lease)
			kept = append(kept, l.ID)
		}
	}
	return kept, nil
}

// ResolveIn implements deadletter.Source.
func (r *redrives) ResolveIn(_ context.Context, tx *Tx, one deadletter.Redrive, s deadletter.Status) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, err := r.ours(one)
	if err == nil {
		tx.at = append(tx.at, func() { l.resolve(s) })
	}
	return err
}

// Resolve implements deadletter.Source.
func (r *redrives) Resolve(_ context.Context, one deadletter.Redrive, s deadletter.Status) error {
	return r.change(one, func(l *letter) { l.resolve(s) })
}

// Reopen implements deadletter.Source.
func (r *redrives) Reopen(_ context.Context, one deadletter.Redrive, why deadletter.Letter) error {
	return r.change(one, func(l *letter) {
		l.resolve(why.Status)
		l.Reason, l.Error, l.Attempts, l.takes, l.decision = why.Reason, why.Error, why.Attempts, 0, deadletter.Decision{}
	})
}

// Release implements deadletter.Source.
func (r *redrives) Release(_ context.Context, list []deadletter.Redrive) error {
	for _, one := range list {
		_ = r.change(one, func(l *letter) { l.takes, l.token, l.until = l.takes-1, "", time.Time{} })
	}
	return nil
}

func (r *redrives) change(one deadletter.Redrive, f func(*letter)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, err := r.ours(one)
	if err == nil {
		f(l)
	}
	return err
}

// Check implements deadletter.Source.
func (r *redrives) Check(context.Context) error { return nil }

func key(consumer, raw string) id { return id{consumer, store.StoredKey(raw)} }
