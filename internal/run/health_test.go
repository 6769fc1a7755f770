package run

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali"
)

func TestReadinessIsWhatEventsAndTheDatabaseTell(t *testing.T) {
	event := func(k sekali.EventKind) sekali.Event { return sekali.Event{Kind: k} }
	started := event(sekali.Started)
	for name, c := range map[string]struct {
		told  []sekali.Event
		later time.Duration
		ready bool
		text  string
	}{
		"it starts":                              {nil, 0, false, "starting"},
		"the database is not there yet":          {[]sekali.Event{event(sekali.CheckFailed)}, 0, false, "starting; check failed"},
		"it runs":                                {[]sekali.Event{event(sekali.CheckFailed), started}, 0, true, "running"},
		"it has ended":                           {[]sekali.Event{started, event(sekali.Stopped)}, 0, false, "stopped"},
		"the broker is gone":                     {[]sekali.Event{started, event(sekali.ReceiveFailed)}, repeated - time.Second, false, "running; receive failed"},
		"two are gone":                           {[]sekali.Event{started, event(sekali.ReceiveFailed), event(sekali.Interrupted)}, 0, false, "running; interrupted; receive failed"},
		"the broker is back with a message":      {[]sekali.Event{started, event(sekali.ReceiveFailed), event(sekali.Received)}, 0, true, "running"},
		"the broker is back and has no message":  {[]sekali.Event{started, event(sekali.ReceiveFailed)}, repeated + time.Second, true, "running"},
		"the next attempt is not due yet":        {[]sekali.Event{started, {Kind: sekali.Interrupted, Pause: time.Minute}}, repeated + time.Second, false, "running; interrupted"},
		"the database is back, with a duplicate": {[]sekali.Event{started, event(sekali.Interrupted), event(sekali.Finished)}, 0, true, "running"},
		"letters can be written again":           {[]sekali.Event{started, event(sekali.DeadLetterFailed), event(sekali.DeadLettered)}, 0, true, "running"},
	} {
		h := newHealth()
		for _, e := range c.told {
			h.Observe(e)
		}
		if ready, text, _ := h.told(time.Now().Add(c.later)); ready != c.ready || text != c.text {
			t.Errorf("%s: %v, %q, want %v, %q", name, ready, text, c.ready, c.text)
		}
	}
}

func TestADatabaseThatDoesNotAnswerIsNotReady(t *testing.T) {
	h := newHealth()
	h.Observe(sekali.Event{Kind: sekali.Started})
	for want, ping := range map[string]func(context.Context) error{
		"running": func(context.Context) error { return nil },
		"running; the database does not answer": func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("nothing bounds the question")
			}
			return errors.New("dial db.internal: refused")
		},
	} {
		h.database(ping)
		if ready, text := h.ready(t.Context()); text != want || ready != (want == "running") {
			t.Errorf("%v, %q, want %q", ready, text, want)
		}
	}
	h.stopping()
	if ready, text := h.ready(t.Context()); ready || text == "running" {
		t.Errorf("it stops and is %q", text)
	}
}
