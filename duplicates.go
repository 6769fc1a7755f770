package sekali

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/store"
)

// Cause says why a duplicate came, as far as it can be told.
type Cause uint8

// The causes. The first one that fits holds.
const (
	// CauseRedrive: a person had its dead letter processed again.
	CauseRedrive Cause = iota + 1
	// CauseLostRace: another instance processed it after it had been received
	// here. That needs Event.Age.
	CauseLostRace
	// CauseRedelivery: the broker says that it delivered it before, or may have.
	CauseRedelivery
	// CauseRepeat: nothing says that it is the same delivery again: the producer
	// has sent it twice, or the broker does not tell.
	CauseRepeat
)

var causeNames = [...]string{"unknown", "redrive", "lost race", "redelivery", "repeat"}

// String returns the name of the cause in lower case.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return causeNames[0]
}

// agesTimeout bounds the look at how old duplicates are, which delays their
// acknowledgement.
const agesTimeout = time.Second

// ages returns how long ago duplicates among jobs were processed; nil if
// nobody wants to know or the database does not tell.
func (c *Consumer[Tx]) ages(ctx context.Context, jobs []*job, states []store.State) map[*job]time.Duration {
	if c.ager == nil {
		return nil
	}
	var late []*job
	for i, j := range jobs {
		if states[i] == store.Duplicate {
			late = append(late, j)
		}
	}
	if len(late) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, agesTimeout)
	defer cancel()
	found, err := c.ager.Ages(ctx, c.claimFor(late))
	if err != nil {
		return nil // it is for statistics alone
	}
	ages := make(map[*job]time.Duration, len(late))
	for i, j := range late {
		ages[j] = found[i]
	}
	return ages
}

// causeOf says why a duplicate came that was processed so long ago; 0: unknown.
func (c *Consumer[Tx]) causeOf(j *job, age time.Duration) Cause {
	switch {
	case j.redrive != nil:
		return CauseRedrive
	case age > 0 && age < c.now()-j.received && !c.mine.has(j.message.key):
		return CauseLostRace
	case j.suspect():
		return CauseRedelivery
	}
	return CauseRepeat
}

// recent remembers the keys that this Consumer has processed lately, as many
// as may be in hand: it tells a lost race from what came twice to the same
// hand. It forgets, and it takes one key in many millions for another.
type recent struct {
	seed maphash.Seed
	keys [4096]atomic.Uint64
}

func newRecent() *recent { return &recent{seed: maphash.MakeSeed()} }

func (r *recent) add(key string) {
	h := maphash.String(r.seed, key)
	r.keys[h%uint64(len(r.keys))].Store(h)
}

func (r *recent) has(key string) bool {
	h := maphash.String(r.seed, key)
	return r.keys[h%uint64(len(r.keys))].Load() == h
}
