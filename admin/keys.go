package admin

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"github.com/sekali/sekali/store"
)

// Keys is the table processed_messages for people.
type Keys interface {
	// Find returns the rows of a message key, one for each consumer that has
	// processed it, by their names. key is as a Key function returned it, or
	// as it is stored: see Forms. It looks once into the primary key for each
	// consumer there is.
	Find(ctx context.Context, key string) ([]Key, error)
	// List returns rows by consumer and stored key.
	List(ctx context.Context, f KeyFilter) ([]Key, error)
	// Consumers returns the names that have rows, sorted, MaxConsumers at most.
	// It looks once into the primary key for each.
	Consumers(ctx context.Context) ([]string, error)
	// Days counts the rows of a consumer (of all, if it is empty) by the day of
	// processed_at, in UTC, oldest first. It READS THE WHOLE TABLE: for what
	// consumers did ask Health.Activity.
	Days(ctx context.Context, consumer string) ([]Day, error)
	// Forget removes rows, in one transaction with an entry in the audit trail
	// for each that was there, and returns how many were: MaxForget keys at
	// most. Consumer and Stored say which. The next message with such a key is
	// processed like a new one; nobody sends it for that. Recorded effects keep
	// their results, so that they do not happen again.
	Forget(ctx context.Context, keys []Key, d Decision) (int, error)
	// Seed records keys as processed that have no row yet, in one transaction
	// with an entry in the audit trail, and returns how many it recorded:
	// MaxSeed keys at most. It is for a topic that is live before its
	// deduplication is switched on. Rows that are there stay as they are, so
	// that it can be called again.
	Seed(ctx context.Context, s Seed, d Decision) (int, error)
}

// MaxForget and MaxSeed are how many keys one call takes.
const (
	MaxForget = 1_000
	MaxSeed   = 10_000
)

// MaxConsumers is how many names are listed.
const MaxConsumers = 10_000

// Key is a row of processed_messages.
type Key struct {
	Consumer string
	// Stored is the key as it is stored: see store.StoredKey.
	Stored string
	// ProcessedAt is when the row was written, in UTC by the database's clock;
	// zero if that cannot be read.
	ProcessedAt time.Time
	// Fingerprint of the body, if there is one.
	Fingerprint []byte
	// Raw is the key as it was asked for, where that is known to be what came
	// with the message; else empty. Forget writes it to the audit trail.
	Raw string
}

// KeyFilter chooses rows. Empty fields choose all.
type KeyFilter struct {
	Consumer string
	// After is the last row of the page before; its Consumer and Stored count.
	After Key
	// Limit is how many to return at most. Defaults to 100.
	Limit int
}

// DefaultLimit is what KeyFilter.Limit defaults to.
const DefaultLimit = 100

// Seed says what to record.
type Seed struct {
	Consumer string
	// Keys as the consumer's Key function returns them. Blank ones are refused
	// (store.ErrNoKey); repeats count once.
	Keys []string
	// ProcessedAt is when they are said to have been processed, from which
	// their retention counts. Defaults to now, by the database's clock.
	ProcessedAt time.Time
}

// Day is how many rows were written on a day.
type Day struct {
	Consumer string
	// Day is its begin, in UTC; zero: rows whose time cannot be read.
	Day  time.Time
	Rows int64
}

// Forms returns the stored forms that a text may mean which a person gives for
// a key: what store.StoredKey makes of it, and the text itself if it looks like
// the stored form of a long key ("sha256:" and 64 hexadecimal digits).
func Forms(text string) []string {
	forms := []string{store.StoredKey(text)}
	if digits, is := strings.CutPrefix(text, "sha256:"); is && len(digits) == 64 && strings.ToLower(digits) == digits {
		if _, err := hex.DecodeString(digits); err == nil {
			forms = append(forms, text)
		}
	}
	return forms
}
