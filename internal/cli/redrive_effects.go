package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

// effectsOf returns the effects of a message outside the database; none if it
// has no key, or there is no ledger.
func effectsOf(ctx context.Context, desk admin.Effects, consumer, key string) ([]effect.Row, error) {
	if key == "" {
		return nil, nil
	}
	rows, err := desk.List(ctx, effect.Filter{Consumer: consumer, MessageKey: key})
	var schema *store.SchemaError
	if errors.As(err, &schema) {
		return nil, nil
	}
	return rows, err
}

// maxTold is how many effects are told one by one.
const maxTold = 20

// tellEffects says which effects of the letters a person must still decide
// about: a redriven letter waits for them, and a discarded one leaves them.
func (a *app) tellEffects(ctx context.Context, desk admin.Effects, d *decision, letters []chosen, results []result) error {
	told := 0
	for i, l := range letters {
		switch status := deadletter.Status(results[i].Status); {
		case l.no != nil || ctx.Err() != nil || d.how.Effects || d.how.Key != "":
			continue // it has others, or none of ours to tell
		case status == deadletter.Processed || status == deadletter.Duplicate || status == deadletter.Stale:
			continue
		}
		rows, err := effectsOf(ctx, desk, l.consumer, l.key)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if !slices.Contains(d.undecided, r.State) {
				continue
			}
			results[i].Effects = append(results[i].Effects, r.Number)
			if told++; told <= maxTold {
				fmt.Fprintf(a.stderr, "effect %d (%s) of dead letter %d is %s: say what became of it: sekali effects resolve %d --succeeded, --retry or --failed\n",
					r.Number, plain(r.Name), l.id, statusOf(r), r.Number)
			}
		}
	}
	if told > maxTold {
		fmt.Fprintf(a.stderr, "%d more effects are undecided: see sekali effects list\n", told-maxTold)
	}
	return nil
}
