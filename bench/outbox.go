package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store/sqlstore"
)

// OutboxMode is a way to publish events.
type OutboxMode string

// The ways.
const (
	// Broker is the broker alone, without a database: messages are published
	// in batches of 1,000, each confirmed before the next.
	Broker OutboxMode = "broker alone"
	// RowByRow is what people write by hand: read a hundred pending rows, and
	// for each publish, wait for the confirmation, and mark it.
	RowByRow OutboxMode = "row by row"
	// Relayed is an outbox.Relay.
	Relayed OutboxMode = "relay"
)

// OutboxConfig says what to measure.
type OutboxConfig struct {
	Database  string // URL
	Publisher broker.Publisher
	Topic     string
	Rounds    int
	Each      time.Duration // of the modes Broker and RowByRow in each round
	Events    int           // that a relay publishes in each round
	// Keys is how many ordering keys the events have; 0: none.
	Keys int
	// Progress is told what is done, of how much.
	Progress func(done, of int)
}

// OutboxRun is what was measured of a mode.
type OutboxRun struct {
	Mode          OutboxMode `json:"mode"`
	PerSecond     float64    `json:"per_second"` // events, the median of the rounds
	Lowest        float64    `json:"lowest"`
	Highest       float64    `json:"highest"`
	RatioRowByRow float64    `json:"ratio_row_by_row"`
	RatioBroker   float64    `json:"ratio_broker"`
}

// OutboxReport is what a benchmark of the outbox found.
type OutboxReport struct {
	Database string            `json:"database"`
	Broker   string            `json:"broker"`
	Settings map[string]string `json:"settings"`
	Rounds   int               `json:"rounds"`
	Keys     int               `json:"ordering_keys"`
	Body     int               `json:"body_bytes"`
	Runs     []OutboxRun       `json:"runs"`
}

// eventBody is what each event carries.
var eventBody = []byte(`{"order_id":"order-000042","sku":"KOPI-250","quantity":2,"paid":true,"note":"a body of about one hundred bytes"}`)

// publishing is a database with an outbox, and a broker.
type publishing struct {
	cfg OutboxConfig
	db  *dburl.DB
	box *outbox.Box[*sql.Tx]
	// rows of the outbox.
	rows outbox.Rows
}

// MeasureOutbox runs a benchmark of publishing from a database, in a place of
// its own, which it drops afterwards.
func MeasureOutbox(ctx context.Context, cfg OutboxConfig) (_ *OutboxReport, err error) {
	place, drop, err := place(ctx, cfg.Database)
	if err != nil {
		return nil, err
	}
	defer func() {
		tidying, done := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer done()
		err = errors.Join(err, drop(tidying))
	}()
	db, err := dburl.Open(ctx, place, true)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	settings, err := durable(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", dburl.Redact(cfg.Database), err)
	}
	if _, err := migrate.Up(ctx, db.SQL, db.Migrations()); err != nil {
		return nil, err
	}
	s := sqlstore.New(db.SQL, db.Dialect())
	p := &publishing{cfg, db, outbox.New(s), s.Outbox()}
	report := &OutboxReport{Database: string(db.Kind), Settings: settings, Rounds: cfg.Rounds, Keys: cfg.Keys, Body: len(eventBody)}
	report.Runs, err = p.rounds(ctx)
	return report, err
}

// rounds measures every mode in each round, in turns.
func (p *publishing) rounds(ctx context.Context) ([]OutboxRun, error) {
	modes := []struct {
		mode    OutboxMode
		measure func(context.Context) (float64, error)
	}{{Broker, p.alone}, {RowByRow, p.rowByRow}, {Relayed, p.relayed}}
	rates := make([][]float64, len(modes))
	for round := range p.cfg.Rounds {
		for i, m := range modes {
			if err := p.fill(ctx); err != nil {
				return nil, fmt.Errorf("fill the outbox: %w", err)
			}
			rate, err := m.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", m.mode, err)
			}
			rates[i] = append(rates[i], rate)
			if p.cfg.Progress != nil {
				p.cfg.Progress(round*len(modes)+i+1, p.cfg.Rounds*len(modes))
			}
		}
	}
	runs := make([]OutboxRun, len(modes))
	for i, m := range modes {
		slices.Sort(rates[i])
		n := len(rates[i])
		runs[i] = OutboxRun{Mode: m.mode, PerSecond: rates[i][n/2], Lowest: rates[i][0], Highest: rates[i][n-1]}
	}
	for i := range runs {
		runs[i].RatioBroker = round(runs[i].PerSecond / runs[0].PerSecond)
		runs[i].RatioRowByRow = round(runs[i].PerSecond / runs[1].PerSecond)
	}
	return runs, nil
}

// event is the nth.
func (p *publishing) event(n int) outbox.Message {
	m := outbox.Message{Topic: p.cfg.Topic, Body: eventBody}
	if p.cfg.Keys > 0 {
		m.OrderingKey = fmt.Appendf(nil, "order-%06d", n%p.cfg.Keys)
	}
	return m
}

// fill empties the outbox and adds the events.
func (p *publishing) fill(ctx context.Context) error {
	empty := "TRUNCATE TABLE outbox_messages"
	if p.db.Kind == dburl.SQLite {
		empty = "DELETE FROM outbox_messages"
	}
	if _, err := p.db.SQL.ExecContext(ctx, empty); err != nil {
		return err
	}
	const some = 1000
	for n := 0; n < p.cfg.Events; n += some {
		events := make([]outbox.Message, min(some, p.cfg.Events-n))
		for i := range events {
			events[i] = p.event(n + i)
		}
		tx, err := p.db.SQL.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if _, err := p.box.AddAll(ctx, tx, events); err != nil {
			_ = tx.Rollback()
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// alone publishes without a database.
func (p *publishing) alone(ctx context.Context) (float64, error) {
	const some = 1000
	began, n := time.Now(), 0
	for time.Since(began) < p.cfg.Each {
		messages := make([]broker.Message, some)
		for i := range messages {
			e := p.event(n + i)
			id := uuid.Must(uuid.NewV7()).String()
			messages[i] = broker.Message{
				ID: id, Topic: e.Topic, OrderingKey: e.OrderingKey, Body: e.Body, Headers: broker.Headers{{Name: outbox.IDHeader, Value: []byte(id)}},
			}
		}
		if err := p.cfg.Publisher.Publish(ctx, messages...); err != nil {
			return 0, err
		}
		n += some
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// rowByRow publishes as people do it by hand, for a time.
func (p *publishing) rowByRow(ctx context.Context) (float64, error) {
	began, n := time.Now(), 0
	mark := p.db.Kind.Placeholders("UPDATE outbox_messages SET status = 'published' WHERE id = ?")
	for time.Since(began) < p.cfg.Each {
		rows, err := p.pending(ctx, 100)
		if err != nil {
			return 0, err
		}
		if len(rows) == 0 {
			break
		}
		for _, r := range rows {
			m := broker.Message{
				ID: r.MessageID, Topic: r.Topic, OrderingKey: r.OrderingKey, Body: r.Body,
				Headers: broker.Headers{{Name: outbox.IDHeader, Value: []byte(r.MessageID)}},
			}
			if err := p.cfg.Publisher.Publish(ctx, m); err != nil {
				return 0, err
			}
			if _, err := p.db.SQL.ExecContext(ctx, mark, r.ID); err != nil {
				return 0, err
			}
			if n++; time.Since(began) >= p.cfg.Each {
				break
			}
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// pending reads the first rows to be published.
func (p *publishing) pending(ctx context.Context, limit int) (all []outbox.Row, err error) {
	query := p.db.Kind.Placeholders("SELECT id, message_id, topic, ordering_key, body FROM outbox_messages WHERE status = 'pending' ORDER BY id LIMIT ?")
	rows, err := p.db.SQL.QueryContext(ctx, query, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r outbox.Row
		if err := rows.Scan(&r.ID, &r.MessageID, &r.Topic, &r.OrderingKey, &r.Body); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// relayed has a Relay publish all events.
func (p *publishing) relayed(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	sent, trouble := 0, error(nil)
	var began, ended time.Time
	relay, err := outbox.NewRelay(p.rows, outbox.RelayConfig{Publisher: p.cfg.Publisher, Observer: func(e outbox.Event) {
		switch {
		case e.Kind == outbox.Shared && began.IsZero():
			began = time.Now()
		case e.Err != nil:
			trouble = e.Err
			cancel()
		}
		if sent += sentOf(e); sent >= p.cfg.Events && ended.IsZero() {
			ended = time.Now()
			cancel()
		}
	}})
	if err != nil {
		return 0, err
	}
	if err := relay.Run(ctx); err != nil {
		return 0, err
	}
	if trouble == nil && sent < p.cfg.Events {
		trouble = fmt.Errorf("%d of %d events were published", sent, p.cfg.Events)
	}
	return float64(sent) / ended.Sub(began).Seconds(), trouble
}

func sentOf(e outbox.Event) int {
	if e.Kind != outbox.Sent {
		return 0
	}
	return e.Count
}

// WriteTable writes a report for people.
func (r *OutboxReport) WriteTable(w io.Writer) error {
	keys := "without ordering keys"
	if r.Keys > 0 {
		keys = fmt.Sprintf("of %d ordering keys", r.Keys)
	}
	fmt.Fprintf(w, "%s to %s; events %s, %d bytes each; %d rounds in turns; medians.", r.Database, r.Broker, keys, r.Body, r.Rounds)
	for _, name := range slices.Sorted(keysIn(r.Settings)) {
		fmt.Fprintf(w, " %s=%s", name, r.Settings[name])
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "mode\tevents/s\tspread\tto row by row\tto the broker\t")
	for _, x := range r.Runs {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f–%.0f\t%s\t%s\t\n", x.Mode, x.PerSecond, x.Lowest, x.Highest, ratio(x.RatioRowByRow), ratio(x.RatioBroker))
	}
	return t.Flush()
}
