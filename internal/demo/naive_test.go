package demo

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dburl"
)

// once is a Source that hands one delivery over, and keeps how it is settled.
type once struct {
	delivery *broker.Delivery
	settled  []broker.Settlement
	end      context.CancelFunc
}

func (o *once) Receive(ctx context.Context, _ int) ([]*broker.Delivery, error) {
	if d := o.delivery; d != nil {
		o.delivery = nil
		return []*broker.Delivery{d}, nil
	}
	o.end()
	return nil, ctx.Err()
}

func (o *once) Settle(_ context.Context, s []broker.Settlement) error {
	o.settled = append(o.settled, s...)
	return nil
}

func (o *once) Close(context.Context) error { return nil }

// Kafka delivers nothing again to a member that merely keeps silent.
func TestWhatTheNaiveConsumerCouldNotSellIsGivenBack(t *testing.T) {
	db, err := dburl.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "no-tables.db"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	source := &once{end: cancel, delivery: &broker.Delivery{Message: broker.Message{Body: []byte(`{"sku":"KOPI-250","quantity":1}`)}}}
	var said strings.Builder
	if err := naive(ctx, source, &teller{out: &said}, func(ctx context.Context, o order) error { return sellNaively(ctx, db, o) }); err != nil {
		t.Error(err)
	}
	if len(source.settled) != 1 || source.settled[0].Action != broker.Retry {
		t.Errorf("settled: %+v", source.settled)
	}
	if !strings.Contains(said.String(), "\n"+string(saidTrouble)) {
		t.Errorf("the parent is told %q", said.String())
	}
}
