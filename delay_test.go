package sekali_test

import (
	"context"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
)

// patient is a script whose broker waits before it delivers again: not at all,
// here.
type patient struct{ *script }

func (p *patient) MaxDelay() time.Duration { return 1000 * time.Hour }

func (p *patient) Settle(ctx context.Context, s []broker.Settlement) error {
	for _, one := range s {
		if one.Action == broker.Retry && one.Delay > 0 {
			again := delivery(one.Delivery.Message.ID, one.Delivery.Lane)
			again.Redelivered = true
			p.pushed <- again
		}
	}
	return p.script.Settle(ctx, s)
}

// failing fails, and waits for days between attempts.
func failing(c *sekali.Config[*memstore.Tx], r *rig) {
	c.Source = &patient{r.source}
	c.MaxAttempts = 3
	c.Backoff = sekali.Backoff{Initial: 500 * time.Hour, Max: 500 * time.Hour}
	c.Handle = func(context.Context, *memstore.Tx, *sekali.Message) error { return errBad }
}

func TestTheBrokerWaitsWithAMessageThatHasNoOrderAndItsAttemptsCount(t *testing.T) {
	r := start(t, failing)
	r.source.push("a")
	r.events.wait(t, 1, kind(sekali.DeadLettered))
	r.finish()
	if l := r.onlyLetter(); l.Attempts != 3 || l.Reason != deadletter.Exhausted {
		t.Errorf("the letter is %+v", l)
	}
	r.wantTold("a", "retry,retry,ack")
}

func TestTheProcessWaitsWithAMessageThatHasAnOrder(t *testing.T) {
	r := start(t, failing)
	r.source.pushed <- delivery("of a lane", "p0")
	r.source.pushKeyed("", "e/1")
	r.events.wait(t, 2, kind(sekali.AttemptFailed))
	r.finish()
	r.wantTold("of a lane", "retry") // at the stop
	r.wantTold("e/1", "retry")
}
