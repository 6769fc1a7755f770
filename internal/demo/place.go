package demo

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/sekali/sekali/broker"
)

// Place is a topic of one's own on a broker, for measurements.
type Place struct {
	Publisher broker.Publisher
	Topic     string
	orders    feed
	folder    string
}

// MakePlace makes the topic: on an embedded server if no broker is named.
// Close removes it.
func MakePlace(ctx context.Context, broker string) (*Place, error) {
	folder, err := os.MkdirTemp("", "sekali-place-")
	if err != nil {
		return nil, fmt.Errorf("make a folder in %s: %w: set TMPDIR to a folder that can be written to", os.TempDir(), err)
	}
	p := &Place{folder: folder}
	if p.orders, err = openFeed(ctx, broker, strconv.FormatInt(time.Now().UnixNano(), 36), folder); err == nil {
		p.Publisher, err = p.orders.publisher()
		_, p.Topic = p.orders.address()
	}
	if err != nil {
		_ = p.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// String names the broker, without passwords.
func (p *Place) String() string { return p.orders.String() }

// Close removes what MakePlace made.
func (p *Place) Close(ctx context.Context) (err error) {
	ctx, done := context.WithTimeout(ctx, tidyTime)
	defer done()
	if p.Publisher != nil {
		err = p.Publisher.Close(ctx)
	}
	if p.orders != nil {
		if e := p.orders.close(ctx, false); err == nil {
			err = e
		}
	}
	if e := os.RemoveAll(p.folder); err == nil {
		err = e
	}
	return err
}
