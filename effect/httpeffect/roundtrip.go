package httpeffect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
)

// Do sends a request and returns its answer, if that is a success. Else the
// error is one that a ledger understands: see the package's table. Redirects
// are not followed. Its errors do not show the URL.
func (t *Transport) Do(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if err := Check(resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// RoundTrip implements http.RoundTripper, for an http.Client: the answer of
// the last attempt, whatever its status, which Check explains; or an error, if
// the last attempt got none. The client must not follow redirects of what is
// not idempotent: see the package.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s, err := t.prepare(req)
	if err != nil {
		return nil, err
	}
	resp, err := failsafe.With(s.policy(), s.breaker).WithContext(req.Context()).GetWithExecution(s.attempt)
	if err != nil {
		return nil, s.failed(err)
	}
	resp.Request = s.original
	resp.Header.Del(uncertain) // it is ours to say
	if s.doubt {
		resp.Header.Set(uncertain, "unknown")
	}
	return resp, nil
}

// sending is one request on its way, with all its attempts, which come one
// after another.
type sending struct {
	t        *Transport
	original *http.Request
	req      *http.Request // with its key
	keyed    bool
	body     []byte
	breaker  circuitbreaker.CircuitBreaker[*http.Response]

	what   meaning // of the last attempt
	doubt  bool    // one before it may have arrived
	waited time.Duration
	last   *http.Response // whose body is open
}

// policy is how the request is tried again.
func (s *sending) policy() retrypolicy.RetryPolicy[*http.Response] {
	return retrypolicy.NewBuilder[*http.Response]().
		HandleIf(s.retries).
		WithMaxAttempts(s.t.cfg.MaxAttempts).
		WithDelayFunc(func(exec failsafe.ExecutionAttempt[*http.Response]) time.Duration {
			s.discard() // its connection is for others while this one waits
			d := s.pause(exec.LastResult(), exec.Retries())
			s.waited += d
			return d
		}).
		ReturnLastFailure().
		Build()
}

// retries tells whether an attempt is followed by another one, if there is
// one left.
func (s *sending) retries(resp *http.Response, err error) bool {
	ctx := s.req.Context()
	if !s.repeatable() || errors.Is(err, circuitbreaker.ErrOpen) || ctx.Err() != nil {
		return false
	}
	if s.what != notDone && s.what != unknown || resp != nil && resp.StatusCode == http.StatusConflict && !s.keyed {
		return false
	}
	if s.what == unknown && s.lookedAt() {
		return false
	}
	least := least(resp)
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= least {
		return false // the caller hears now, and when to come back
	}
	return s.waited < s.t.cfg.MaxWait && s.waited+least <= s.t.cfg.MaxWait
}

// least is how long must be waited at least.
func least(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	after, _ := retryAfter(resp)
	return after
}

// pause is how long to wait before a further attempt: at random, and on top of
// what the provider wants.
func (s *sending) pause(resp *http.Response, retries int) time.Duration {
	bound := s.t.cfg.Max
	if shifted := s.t.cfg.Initial << min(retries, 30); shifted > 0 && shifted < bound {
		bound = shifted
	}
	least := least(resp)
	if least > 0 {
		bound = max(bound, least/2) // those that were told the same must not come together
	}
	left := max(0, s.t.cfg.MaxWait-s.waited-least)
	return least + rand.N(min(bound, left)+1)
}

// attempt sends the request once.
func (s *sending) attempt(failsafe.Execution[*http.Response]) (resp *http.Response, err error) {
	returned := false
	defer func() {
		if !returned { // it panics: whoever else waits for the circuit must not wait for ever
			s.breaker.RecordFailure()
		}
	}()
	if s.what == unknown {
		s.doubt = true
	}
	s.what = unknown
	ctx, cancel := context.WithTimeout(s.req.Context(), s.t.cfg.AttemptTimeout)
	var w wire
	resp, err = s.t.cfg.Base.RoundTrip(s.once(w.traced(ctx)))
	returned = true
	if err != nil {
		cancel()
		if w.unused(err) {
			s.what = notDone
		}
		return nil, explained(WithoutURL(err), s.req.Context(), ctx, s.t.cfg.AttemptTimeout)
	}
	if w.got.Load() > 1 { // Base has sent it again by itself
		s.doubt = true
	}
	s.what = meaningOf(resp)
	resp.Body = &answer{resp.Body, cancel}
	s.last = resp
	return resp, nil
}

// once is the request of one attempt.
func (s *sending) once(ctx context.Context) *http.Request {
	req := s.req.Clone(ctx)
	req.GetBody = nil // or net/http would send it again by itself
	req.Body, req.ContentLength = http.NoBody, int64(len(s.body))
	if len(s.body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(s.body))
	}
	return req
}

// wire tells what a Base did with connections: how often it asked for one, and
// got one, on which it may have sent something.
type wire struct{ asked, got atomic.Int32 }

func (w *wire) traced(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { w.asked.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { w.got.Add(1) },
	})
}

// unused tells whether nothing was sent.
func (w *wire) unused(err error) bool {
	if w.asked.Load() == 0 && w.got.Load() == 0 { // Base does not tell
		return notSent(err)
	}
	return w.got.Load() == 0
}

// explained says which time was over.
func explained(err error, whole, attempt context.Context, limit time.Duration) error {
	if whole.Err() == nil && errors.Is(attempt.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v: %w", limit, err)
	}
	return err
}

// failed says what the end of all attempts means.
func (s *sending) failed(err error) error {
	s.discard()
	ctx := s.req.Context()
	switch cause := context.Cause(ctx); {
	case errors.Is(err, circuitbreaker.ErrOpen):
		after := s.breaker.RemainingDelay()
		if after <= 0 { // one request is finding out: it is not known for how long
			after = s.t.cfg.Initial + rand.N(s.t.cfg.BreakerDelay)
		}
		err = opened(s.req.URL.Host, after)
	case cause != nil && !errors.Is(err, cause):
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return judged(s.what, err, s.doubt)
}

// discard closes the answer of an attempt that nobody gets.
func (s *sending) discard() {
	if s.last != nil {
		drain(s.last.Body)
		s.last = nil
	}
}

const (
	// maxDrain and drainTime bound how much of an answer that nobody gets is
	// read, so that its connection can be used again.
	maxDrain  = 64 << 10
	drainTime = 500 * time.Millisecond
)

// drain reads what is left of a body, within bounds, and closes it.
func drain(body io.ReadCloser) {
	if a, ok := body.(*answer); ok {
		defer time.AfterFunc(drainTime, a.cancel).Stop()
	}
	_, _ = io.CopyN(io.Discard, body, maxDrain)
	_ = body.Close()
}

// answer is a body that ends its attempt's time when it is closed.
type answer struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close closes the body.
func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.cancel()
	return err
}
