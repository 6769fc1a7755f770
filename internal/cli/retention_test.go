package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
)

// silent is a Source whose broker does not tell how long it keeps messages.
type silent struct{ broker.Source }

// keeping is one whose broker does.
type keeping struct {
	silent
	keeps time.Duration
	err   error
}

func (k keeping) Retention(context.Context) (time.Duration, error) { return k.keeps, k.err }

func TestABrokerIsAskedHowLongItKeepsMessages(t *testing.T) {
	down := errors.New("no answer")
	for _, c := range []struct {
		source    broker.Source
		keeps     time.Duration
		unlimited bool
		err       error
	}{
		{silent{}, 0, false, errNoRetention},
		{keeping{keeps: time.Hour}, time.Hour, false, nil},
		{keeping{}, 0, true, nil},
		{keeping{err: down}, 0, false, down},
	} {
		keeps, unlimited, err := retentionOf(t.Context(), c.source)
		if keeps != c.keeps || unlimited != c.unlimited || !errors.Is(err, c.err) {
			t.Errorf("%+v: %v, %v, %v", c.source, keeps, unlimited, err)
		}
	}
}

func TestTimesAreReadInDaysToo(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "30d": 30 * 24 * time.Hour, "90m": 90 * time.Minute} {
		if got, err := span("--retention", text); got != want || err != nil {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"d", "1.5d", "-1d", "0d", "0s", "30", "for ever"} {
		if got, err := span("--retention", text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
