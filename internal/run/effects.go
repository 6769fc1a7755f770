package run

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
	"github.com/sekali/sekali/internal/run/expr"
)

// maxAnswer is the longest answer of a provider that is kept, in bytes.
const maxAnswer = 1 << 20

// doer has the effects of a plan.
type doer struct {
	plan       *Plan
	ledger     *effect.Ledger
	transports []*httpeffect.Transport
}

func newDoer(p *Plan, ledger *effect.Ledger) (*doer, error) {
	d := &doer{plan: p, ledger: ledger}
	for _, r := range p.effects {
		t, err := httpeffect.New(httpeffect.Config{Header: r.from.Header, MaxAttempts: r.from.Attempts, AttemptTimeout: r.from.Timeout})
		if err != nil {
			return nil, fmt.Errorf("effect %q: %w", r.name, err)
		}
		d.transports = append(d.transports, t)
	}
	return d, nil
}

func (d *doer) close() {
	if d == nil {
		return
	}
	for _, t := range d.transports {
		t.CloseIdleConnections()
	}
}

// all has the effects of a message, one after another: a later one may use the
// results of those before it.
func (d *doer) all(ctx context.Context, m *sekali.Message, in *expr.Input) error {
	for i := range d.plan.effects {
		r := &d.plan.effects[i]
		wanted, err := r.when.True(in)
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		recovery := effect.Park()
		if r.from.RepeatFor > 0 {
			recovery = effect.Repeat(r.from.RepeatFor)
		}
		result, err := effect.Do(ctx, d.ledger, m.Key(), r.name, func(ctx context.Context, _ effect.Call) (expr.Result, error) {
			return r.send(ctx, d.transports[i], in)
		}, recovery)
		if err == nil {
			err = in.SetEffect(r.name, result)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send makes the request. What is wrong with the message is found before
// anything is sent.
func (r *request) send(ctx context.Context, t *httpeffect.Transport, in *expr.Input) (expr.Result, error) {
	req, err := r.request(ctx, in)
	if err != nil {
		return expr.Result{}, effect.Refused(err)
	}
	resp, err := t.Do(req)
	if err != nil {
		return expr.Result{}, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return expr.Result{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(answer) > maxAnswer { // it is done, and this is not kept
		answer = nil
	}
	return expr.NewResult(resp.StatusCode, answer)
}

func (r *request) request(ctx context.Context, in *expr.Input) (*http.Request, error) {
	address, err := r.address(in)
	if err != nil {
		return nil, err
	}
	body, err := r.body.Bytes(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, r.from.Method, address, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the request of effect %q cannot be made: look at its URL", r.name)
	}
	if r.body.IsJSON() {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range r.from.Headers {
		req.Header.Set(h.Name, h.Value.Value)
	}
	return req, nil
}

// address puts values into the URL, each escaped for its place.
func (r *request) address(in *expr.Input) (string, error) {
	address, query := r.from.URL.Value, strings.IndexByte(r.from.URL.Value, '?')
	var b strings.Builder
	for i := 0; i < len(address); {
		name, found := "", false
		if address[i] == '{' {
			name, _, found = strings.Cut(address[i+1:], "}")
		}
		x := r.params[name]
		if !found || x == nil {
			b.WriteByte(address[i])
			i++
			continue
		}
		value, err := x.Text(in)
		if err != nil {
			return "", err
		}
		switch {
		case query >= 0 && i > query:
			b.WriteString(url.QueryEscape(value))
		case value == "" || value == "." || value == "..": // another address than was meant
			return "", &expr.Error{Text: r.from.Params[name], Err: fmt.Errorf("it gives %q, which cannot be a part of the URL's path", value)}
		default:
			b.WriteString(url.PathEscape(value))
		}
		i += len(name) + 2
	}
	return b.String(), nil
}
