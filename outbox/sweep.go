package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/broker"
)

// sweep publishes what one look at the table finds, and records what became of
// it. more tells that there may be more at once.
//
// The look is one statement. Were it two, an event could commit between them,
// be missed by the first, and be overtaken by one that the second sees.
func (r *Relay) sweep(ctx, hard context.Context) (more bool, err error) {
	mine := r.lanes.begin()
	defer r.lanes.end()
	except, full := r.waiting.now()
	if len(mine) == 0 || full {
		return false, nil
	}
	began := time.Now()
	rows, err := r.rows.Pending(hard, Want{Lanes: mine, Except: except, HoldKeys: r.cfg.OnParked == HoldKey, Limit: r.cfg.Batch})
	if err != nil || len(rows) == 0 {
		return false, err
	}
	p := &publication{r: r}
	p.line(rows)
	down := p.publish(ctx, hard)
	if err := r.record(hard, p, began); err != nil {
		return false, err
	}
	return len(rows) == r.cfg.Batch, down
}

// publication is what becomes of the events of one sweep.
type publication struct {
	r     *Relay
	lines []line
	sent  []int64
	lost  []lost
}

// ready is an event as it goes to the broker.
type ready struct {
	row     *Row
	message broker.Message
}

// line is the events of an ordering key that are still to be published, in
// their order; or one without a key.
type line []ready

// lost is an event that was not published.
type lost struct {
	row   *Row
	err   error
	what  Failure
	pause time.Duration
}

// line puts events in lines. What cannot be read is parked at once.
func (p *publication) line(rows []Row) {
	of, held := map[string]int{}, map[string]bool{}
	for i := range rows {
		row := &rows[i]
		key := string(row.OrderingKey)
		if row.OrderingKey != nil && held[key] {
			continue
		}
		m, err := row.message()
		if err != nil {
			p.park(row, err)
			held[key] = p.r.cfg.OnParked == HoldKey
			continue
		}
		at, there := of[key]
		if !there || row.OrderingKey == nil {
			at = len(p.lines)
			p.lines = append(p.lines, nil)
		}
		if row.OrderingKey != nil {
			of[key] = at
		}
		p.lines[at] = append(p.lines[at], ready{row, m})
	}
}

// message is the event as a Publisher takes it.
func (r *Row) message() (broker.Message, error) {
	headers, err := UnmarshalHeaders(r.Headers)
	if err != nil {
		return broker.Message{}, err
	}
	headers = headers.Set(IDHeader, []byte(r.MessageID))
	if r.OrderingKey != nil {
		headers = headers.Set(OrderingKeyHeader, r.OrderingKey)
	}
	return broker.Message{ID: r.MessageID, Topic: r.Topic, OrderingKey: r.OrderingKey, Body: r.Body, Headers: headers}, nil
}

// publish publishes in rounds, of which each has the first of every line: so
// one is confirmed before the next of its key is sent, and none overtakes one
// that is refused. It returns an error if the broker is not there.
func (p *publication) publish(ctx, hard context.Context) error {
	for ctx.Err() == nil {
		var mine []line
		for _, l := range p.lines {
			if len(l) > 0 && p.r.lanes.has(l[0].row.Lane) { // else another Relay's by now
				mine = append(mine, l)
			}
		}
		p.lines = mine
		if len(mine) == 0 {
			return nil
		}
		if err := p.round(hard); err != nil {
			return err
		}
	}
	return nil
}

// round publishes the first of every line. Lines of which it was confirmed go
// on with the next; others end here.
func (p *publication) round(ctx context.Context) error {
	messages := make([]broker.Message, len(p.lines))
	for i, l := range p.lines {
		messages[i] = l[0].message
	}
	errs, err := publish(ctx, p.r.cfg.Publisher, messages)
	if err != nil {
		return fmt.Errorf("publish %d events: %w", len(messages), err)
	}
	for i, l := range p.lines {
		row := l[0].row
		if errs != nil && errs[i] != nil {
			p.fail(row, errs[i])
			p.lines[i] = nil
			continue
		}
		p.sent = append(p.sent, row.ID)
		if row.OrderingKey != nil {
			p.r.waiting.succeeded(row.OrderingKey)
		}
		p.lines[i] = l[1:]
	}
	return nil
}

// publish returns what became of each message, or an error if none was
// confirmed and none refused: then the broker is not there.
func publish(ctx context.Context, to broker.Publisher, messages []broker.Message) (errs []error, err error) {
	err = to.Publish(ctx, messages...)
	var each *broker.PublishError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &each) || len(each.Errs) != len(messages):
		return nil, err
	}
	for _, e := range each.Errs {
		if e == nil || errors.Is(e, broker.ErrRefused) {
			return each.Errs, nil
		}
	}
	return nil, err
}

// fail notes that the broker did not take an event. It counts if the broker
// refused it. Those behind it in its key wait with it.
func (p *publication) fail(row *Row, err error) {
	refused := errors.Is(err, broker.ErrRefused)
	if refused && row.Attempts+1 >= p.r.cfg.MaxAttempts {
		p.park(row, err)
		if row.OrderingKey != nil {
			p.r.waiting.succeeded(row.OrderingKey)
		}
		return
	}
	x := lost{row: row, err: err, what: Failure{ID: row.ID, Error: err.Error(), Refused: refused}}
	if row.OrderingKey != nil {
		x.pause = p.r.waiting.failed(row.OrderingKey)
	} else {
		x.pause = backoff(p.r.cfg.RetryInitial, p.r.cfg.RetryMax, row.Attempts+1)
		x.what.Delay = x.pause
	}
	p.lost = append(p.lost, x)
}

func (p *publication) park(row *Row, err error) {
	p.lost = append(p.lost, lost{row: row, err: err, what: Failure{ID: row.ID, Error: err.Error(), Refused: true, Park: true}})
}

// record writes down what became of events. Until that has worked, nothing more
// is published: what is not recorded goes out again.
func (r *Relay) record(ctx context.Context, p *publication, began time.Time) error {
	if len(p.sent) == 0 && len(p.lost) == 0 {
		return nil
	}
	failed := make([]Failure, len(p.lost))
	for i, x := range p.lost {
		failed[i] = x.what
	}
	err := r.rows.Done(ctx, r.name, p.sent, failed)
	for n := 1; err != nil && passes(err) && r.lanes.alive() && r.interrupted(ctx, n, err); n++ {
		err = r.rows.Done(ctx, r.name, p.sent, failed)
	}
	if err != nil {
		return err
	}
	for _, x := range p.lost {
		row := *x.row
		row.Body = nil
		e := Event{Kind: Retried, Row: row, Err: x.err, Pause: x.pause}
		if x.what.Park {
			e.Kind = GivenUp
		}
		r.cfg.Observer(e)
	}
	if len(p.sent) > 0 {
		r.cfg.Observer(Event{Kind: Sent, Count: len(p.sent), Duration: time.Since(began)})
	}
	return nil
}
