package weakfilter

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// done is what stands in the place of a claim's token once the work is done.
const done = "done"

// The scripts act only while the token ARGV[1] stands at KEYS[1]. Each may be
// run twice: go-redis sends again what it got no answer to.
var (
	// takeScript returns what it found, {"", 0} or the token itself if the claim
	// is ours now, and how long it lasts. ARGV[2] is the lease in ms.
	takeScript = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {'', 0} end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}`)

	// renewScript returns 1 if the claim is ours.
	renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

	backScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

	// recordScript returns 1 if the work is recorded, and be it by somebody
	// else. ARGV[2] is the retention in ms, ARGV[3] the record.
	recordScript = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
  return 1
end
return v == ARGV[3] and 1 or 0`)
)

// claim is one call of Do.
type claim struct {
	f     *Filter
	key   string // in Redis
	token string // nobody else's
	taken time.Time
}

func (c *claim) script(ctx context.Context, s *redis.Script, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, c.f.cfg.Timeout)
	defer cancel()
	return s.Run(ctx, c.f.client, []string{c.key}, append([]any{c.token}, args...)...)
}

// take claims the key, or says who has it and for how long. Processed: it is
// ours.
func (c *claim) take(ctx context.Context) (Outcome, time.Duration, error) {
	c.taken = time.Now()
	found, err := c.script(ctx, takeScript, c.f.cfg.Lease.Milliseconds()).Slice()
	if err != nil {
		return Failed, 0, err
	}
	value, _ := found[0].(string)
	left, _ := found[1].(int64)
	switch value {
	case "", c.token:
		return Processed, 0, nil
	case done:
		return Duplicate, 0, nil
	}
	return InProgress, time.Duration(max(left, 1)) * time.Millisecond, nil
}

// run does the work while the claim is renewed, and takes the claim back
// unless the work succeeded. back says why it could not be.
func (c *claim) run(ctx context.Context, work func(context.Context) error) (err, back error) {
	working, lose := context.WithCancelCause(ctx)
	stop := c.keep(working, lose)
	succeeded := false
	defer func() { // also when work panics
		stop()
		lose(nil)
		if !succeeded {
			back = c.script(context.WithoutCancel(ctx), backScript).Err()
		}
	}()
	err = work(working)
	succeeded = err == nil
	return err, nil
}

// keep renews the claim until it is stopped. When it is lost, or could not be
// renewed for a lease, lose is called.
func (c *claim) keep(ctx context.Context, lose context.CancelCauseFunc) (stop func()) {
	lease := c.f.cfg.Lease
	// By itself, for a renewal may have no answer.
	over := time.AfterFunc(lease-time.Since(c.taken), func() { lose(ErrLeaseLost) })
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer over.Stop()
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-keeping.Done():
				return
			case <-tick.C:
			}
			asked := time.Now()
			ours, err := c.script(keeping, renewScript, lease.Milliseconds()).Bool()
			switch {
			case err == nil && !ours:
				lose(ErrLeaseLost)
				return
			case err == nil:
				over.Reset(lease - time.Since(asked))
			}
		}
	}()
	return func() {
		end()
		<-ended
	}
}

// record puts the record in the claim's place, if that is still ours.
func (c *claim) record(ctx context.Context) error {
	cfg := c.f.cfg
	recorded, err := c.script(context.WithoutCancel(ctx), recordScript, cfg.Retention.Milliseconds(), done).Bool()
	switch {
	case err != nil:
		return fmt.Errorf("record it: %w", err)
	case !recorded:
		return ErrLeaseLost
	}
	return nil
}
