package proctest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
)

// The boundaries of an effect at which a process may die.
const (
	beforeRow   = "before the ledger's row"
	afterRow    = "after the ledger's row"
	duringCall  = "during the call"
	afterCall   = "after the call"
	afterResult = "after the result is recorded"
	afterCommit = "after the commit"
)

var boundaries = []string{beforeRow, afterRow, duringCall, afterCall, afterResult, afterCommit}

// lease is the shortest that there is.
const lease = time.Second

// buyer is what a child does outside its database: it buys labels.
type buyer struct{ t task }

// dies ends the process at a boundary, once for each order.
func (b buyer) dies(o order, at string) {
	if o.DieAt != at {
		return
	}
	f, err := os.OpenFile(filepath.Join(b.t.Marks, o.ID), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // it has died already
	}
	_ = f.Close()
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func parse(body []byte) (o order, err error) {
	if err := json.Unmarshal(body, &o); err != nil {
		return o, sekali.Permanent(err)
	}
	return o, nil
}

// prepare buys a label for each order.
func prepare[Tx any](b buyer, s store.Store[Tx], exec func(ctx context.Context, tx Tx, query string, args ...any) error) sekali.Preparer[Tx] {
	keeper, _ := store.As[interface{ Effects() effect.Rows }](s)
	return func(ctx context.Context, m *sekali.Message) (sekali.Commit[Tx], error) {
		o, err := parse(m.Body)
		if err != nil {
			return nil, err
		}
		b.dies(o, beforeRow)
		recovery := map[string]effect.Option{
			"repeat": effect.Repeat(time.Hour), "park": effect.Park(),
			"lookup": effect.Lookup(lease, func(ctx context.Context, _ effect.Call) (string, bool, error) {
				label, err := b.ask(ctx, http.MethodGet, "", o)
				return label, label != "", err
			}),
		}[b.t.Recovery]
		rows := dyingRows{keeper.Effects(), b, o}
		ledger := effect.New(rows, b.t.Consumer, effect.Config{Lease: lease})
		label, err := effect.Do(ctx, ledger, m.Key(), "label", func(ctx context.Context, c effect.Call) (string, error) {
			b.dies(o, afterRow)
			if o.DieAt == duringCall {
				go func() {
					time.Sleep(50 * time.Millisecond)
					b.dies(o, duringCall)
				}()
			}
			label, err := b.ask(ctx, http.MethodPost, c.IdempotencyKey, o)
			if err == nil {
				b.dies(o, afterCall)
			}
			return label, err
		}, recovery)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, tx Tx) error {
			return exec(ctx, tx, `INSERT INTO effects (lane, entity, seq, id) VALUES (?, ?, ?, ?)`, 0, label, o.Seq, o.ID)
		}, nil
	}
}

// ask sends one request. There is no answer but to what was sent.
func (b buyer) ask(ctx context.Context, method, key string, o order) (string, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, method, b.t.Provider+"/"+key, strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	label, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the provider says %s", resp.Status)
	}
	return string(label), err
}

// dyingRows let the process die when a result has been recorded.
type dyingRows struct {
	effect.Rows
	b buyer
	o order
}

func (r dyingRows) End(ctx context.Context, row effect.Row, to effect.State, result []byte, text string) error {
	err := r.Rows.End(ctx, row, to, result, text)
	if to == effect.Succeeded {
		r.b.dies(r.o, afterResult)
	}
	return err
}

// dying lets the process die between a commit and its acknowledgement.
type dying struct {
	b buyer
	*teller
}

func (d dying) Observe(e sekali.Event) {
	if e.Kind == sekali.Finished {
		if o, err := parse(e.Message.Body); err == nil {
			d.b.dies(o, afterCommit)
		}
	}
	d.teller.Observe(e)
}
