package retention_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/retention"
)

const day = 24 * time.Hour

// source is a broker that keeps messages for a time.
type source struct {
	broker.Source
	age     time.Duration
	limited bool
	err     error
}

func (s source) Retention(context.Context) (time.Duration, bool, error) {
	return s.age, s.limited, s.err
}

// silent is a source whose broker tells nothing.
type silent struct{ broker.Source }

type wrapped struct {
	broker.Source
	inner any
}

func (w wrapped) Unwrap() any { return w.inner }

func sources(s ...broker.Source) []broker.Source { return s }

func TestAPolicyIsRefusedWhenADuplicateCanTravelLonger(t *testing.T) {
	down := errors.New("down")
	week := source{age: 7 * day, limited: true}
	for name, c := range map[string]struct {
		policy retention.Policy
		want   error
	}{
		"the broker's week and three days":        {retention.Policy{Keys: 10 * day, Sources: sources(week)}, nil},
		"an hour less":                            {retention.Policy{Keys: 10*day - time.Hour, Sources: sources(week)}, retention.ErrTooShort},
		"the longest of several":                  {retention.Policy{Keys: 10 * day, Sources: sources(week, source{age: 8 * day, limited: true})}, retention.ErrTooShort},
		"through a wrapper":                       {retention.Policy{Keys: 9 * day, Sources: sources(wrapped{inner: week})}, retention.ErrTooShort},
		"a margin of one's own":                   {retention.Policy{Keys: 8 * day, Sources: sources(week), Margin: day}, nil},
		"no limit at all":                         {retention.Policy{Keys: 900 * day, Sources: sources(source{})}, retention.ErrUnlimited},
		"no limit, and it is said":                {retention.Policy{Keys: 10 * day, Sources: sources(source{}), MaxDuplicateAge: 7 * day}, nil},
		"no limit, and more is said":              {retention.Policy{Keys: 10 * day, Sources: sources(source{}), MaxDuplicateAge: 8 * day}, retention.ErrTooShort},
		"less is said than the broker keeps":      {retention.Policy{Keys: 9 * day, Sources: sources(week), MaxDuplicateAge: day}, retention.ErrTooShort},
		"a broker that tells nothing":             {retention.Policy{Keys: 900 * day, Sources: sources(silent{})}, retention.ErrUnlimited},
		"one that tells nothing, and it is said":  {retention.Policy{Keys: 10 * day, Sources: sources(silent{}), MaxDuplicateAge: 7 * day}, nil},
		"nothing is known":                        {retention.Policy{Keys: 900 * day}, retention.ErrUnlimited},
		"a broker that does not answer":           {retention.Policy{Keys: 900 * day, Sources: sources(source{err: down})}, down},
		"for ever":                                {retention.Policy{Keys: retention.Forever, DeadLetters: retention.Forever}, nil},
		"letters in a broker's queue":             {retention.Policy{Keys: 10 * day, Sources: sources(week), LettersElsewhere: day}, retention.ErrTooShort},
		"letters in a broker's queue, reckoned":   {retention.Policy{Keys: 11 * day, Sources: sources(week), LettersElsewhere: day}, nil},
		"effects forgotten sooner":                {retention.Policy{Keys: 10 * day, Effects: 9 * day, Sources: sources(week)}, retention.ErrTooShort},
		"versions forgotten sooner":               {retention.Policy{Keys: 10 * day, Versions: 9 * day, Sources: sources(week)}, retention.ErrTooShort},
		"letters forgotten sooner":                {retention.Policy{Keys: 10 * day, DeadLetters: 9 * day, Sources: sources(week)}, retention.ErrTooShort},
		"keys for ever, letters not, too short":   {retention.Policy{Keys: retention.Forever, DeadLetters: 9 * day, Sources: sources(week)}, retention.ErrTooShort},
		"starts and the trail tell no duplicates": {retention.Policy{Keys: 10 * day, Starts: day, Audit: day, Sources: sources(week)}, nil},
	} {
		if err := c.policy.Check(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestAPolicyThatMakesNoSenseIsRefusedWithoutAskingAnybody(t *testing.T) {
	for name, p := range map[string]retention.Policy{
		"no keys":            {MaxDuplicateAge: day},
		"less than an hour":  {Keys: 59 * time.Minute, MaxDuplicateAge: time.Minute, Margin: 1},
		"starts for minutes": {Keys: 10 * day, Starts: time.Minute, MaxDuplicateAge: day},
		"a negative margin":  {Keys: 10 * day, Margin: -1, MaxDuplicateAge: day},
		"a negative age":     {Keys: 10 * day, MaxDuplicateAge: -day},
	} {
		err := p.Check(t.Context())
		if err == nil || errors.Is(err, retention.ErrTooShort) || errors.Is(err, retention.ErrUnlimited) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
