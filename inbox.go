package sekali

import (
	"context"
	"errors"
	"fmt"

	"github.com/sekali/sekali/store"
)

// maxConflicts is how often in a row a transaction is run again because
// others got in its way, before that counts as a failure.
const maxConflicts = 100

// maxUnknown is how often Inbox.Process tries to learn what became of a COMMIT
// whose answer did not come: about half a minute, by outageBackoff.
const maxUnknown = 15

// Inbox guards calls with a message key: the same key has an effect once. It
// is for code that receives messages or requests in its own way; a Consumer
// does the receiving too. It is safe for concurrent use.
type Inbox[Tx any] struct {
	store    store.Store[Tx]
	consumer string
}

// NewInbox returns the inbox of a consumer. The consumer's name is part of the
// primary key: it says whose effect it is, so two consumers of the same
// message need two names, and a consumer that changes its name starts anew.
// NewInbox does no I/O; a bad name is an error of the first call.
func NewInbox[Tx any](s store.Store[Tx], consumer string) *Inbox[Tx] {
	return &Inbox[Tx]{store: s, consumer: consumer}
}

// ClaimOption adds to what is claimed.
type ClaimOption func(*store.Key)

// WithFingerprint stores a fingerprint of the body with the key (see
// Fingerprint), so that another body under the same key is a conflict.
func WithFingerprint(fingerprint []byte) ClaimOption {
	return func(k *store.Key) { k.Fingerprint = fingerprint }
}

func (i *Inbox[Tx]) claim(key string, opts []ClaimOption) store.Claim {
	k := store.Key{Raw: key}
	for _, opt := range opts {
		opt(&k)
	}
	return store.Claim{Consumer: i.consumer, Keys: []store.Key{k}}
}

// Process runs fn once per key. It claims the key, calls fn in the same
// transaction, and commits both. If the key was there, fn does not run and the
// outcome is Duplicate, or Conflict with ErrConflict if the body was another.
//
// fn must change data through tx alone and must neither commit nor roll back.
// If fn returns an error, everything is rolled back and Process returns that
// error, wrapped; the key is free again. A panic of fn rolls back and goes on
// to the caller. fn may be called more than once: after a deadlock or
// serialization failure (up to 100 times in a row, with a short random pause)
// and after a commit whose answer was lost. Other errors, such as a lost
// connection, are the caller's to retry.
//
// If ctx ends, fn's statements fail and Process rolls back; once COMMIT has
// been sent, ctx has no more power over it.
func (i *Inbox[Tx]) Process(ctx context.Context, key string, fn func(ctx context.Context, tx Tx) error, opts ...ClaimOption) (Outcome, error) {
	claim := i.claim(key, opts)
	conflicts, unknown := 0, 0
	for {
		states, err := transact(ctx, i.store, claim, func(ctx context.Context, tx Tx, _ int) error {
			return fn(ctx, tx)
		})
		if err == nil {
			return i.result(key, states[0])
		}
		pause := outageBackoff.after(unknown + 1)
		switch {
		case errors.Is(err, ErrCommitUnknown), unknown > 0 && judge(i.store.Classify, err) == blameDatabase:
			// Once a commit is in doubt, only the claim can tell, so an
			// outage is waited out, within bounds.
			unknown++
			if unknown > maxUnknown {
				return 0, i.wrap(key, errors.Join(ErrCommitUnknown, err))
			}
		case judge(i.store.Classify, err) == blameConflict && conflicts < maxConflicts:
			conflicts++
			pause = conflictBackoff.after(conflicts)
		default:
			return 0, i.wrap(key, err)
		}
		if sleep(ctx, pause) != nil {
			return 0, i.wrap(key, errors.Join(err, ctx.Err()))
		}
	}
}

// Claim claims the key in a transaction of the caller's own, of the store's
// type: pgx.Tx for pgxstore, *sql.Tx for sqlstore. sqlc works on either as it
// is; Bun's bun.Tx has the *sql.Tx in its field Tx; GORM has it in
// tx.Statement.ConnPool. What is neither can claim with sqlstore's ClaimWith.
//
// If fresh is true the caller changes business data in
// the same transaction and commits; if it is false the message is a duplicate
// and the caller rolls back. A conflict is ErrConflict. After any error the
// caller rolls back.
//
// Whether the caller's COMMIT really committed is for the caller to see: on
// PostgreSQL a swallowed error turns it into a ROLLBACK (pgx returns
// pgx.ErrTxCommitRollback), on MySQL DDL and a swallowed deadlock end the
// transaction early. Process watches all that.
func (i *Inbox[Tx]) Claim(ctx context.Context, tx Tx, key string, opts ...ClaimOption) (fresh bool, err error) {
	states, err := i.store.Claim(ctx, tx, i.claim(key, opts))
	if err != nil {
		return false, i.wrap(key, err)
	}
	outcome, err := i.result(key, states[0])
	return outcome == Processed, err
}

func (i *Inbox[Tx]) result(key string, s store.State) (Outcome, error) {
	outcome := outcomeOf(s)
	if outcome == Conflict {
		return outcome, i.wrap(key, ErrConflict)
	}
	return outcome, nil
}

func (i *Inbox[Tx]) wrap(key string, err error) error {
	return fmt.Errorf("process message %q for consumer %q: %w", key, i.consumer, err)
}
