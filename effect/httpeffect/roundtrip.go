package httpeffect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"

	"github.com/sekali/sekali/effect"
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
// the last attempt, whatever its status; see Check. A client follows redirects
// with the same key, so it should not, for what is not idempotent
// (CheckRedirect).
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s, err := t.prepare(req)
	if err != nil {
		return nil, err
	}
	resp, err := failsafe.With(s.policy(), t.breaker(req.URL.Host)).WithContext(req.Context()).GetWithExecution(s.attempt)
	if err != nil {
		return nil, s.failed(err)
	}
	if s.doubt {
		resp.Header.Set(uncertain, "unknown")
	}
	return resp, nil
}

// sending is one request on its way, with all its attempts.
type sending struct {
	t      *Transport
	req    *http.Request
	body   []byte
	again  bool // it may be sent again although it may have arrived
	doubt  bool // an earlier attempt may have arrived
	waited time.Duration
	last   *http.Response // to be closed before the next attempt
}

// prepare reads the body, finds the key, and has both recorded.
func (t *Transport) prepare(req *http.Request) (*sending, error) {
	s := &sending{t: t, req: req.Clone(req.Context())}
	if req.Body != nil {
		defer req.Body.Close()
		body, err := io.ReadAll(io.LimitReader(req.Body, t.cfg.MaxBody+1))
		switch {
		case err != nil:
			return nil, effect.NotDone(fmt.Errorf("read the request's body: %w", err))
		case int64(len(body)) > t.cfg.MaxBody:
			return nil, effect.Refused(fmt.Errorf("the request's body is longer than %d bytes: raise Config.MaxBody", t.cfg.MaxBody))
		}
		s.body = body
	}
	key := req.Header.Get(t.cfg.Header)
	call, ok := effect.CallFrom(req.Context())
	if ok {
		if key != "" && key != call.IdempotencyKey {
			return nil, effect.Refused(fmt.Errorf("the request has another key in %s than its effect: leave the header out", t.cfg.Header))
		}
		key = call.IdempotencyKey
		s.req.Header.Set(t.cfg.Header, key)
		if err := call.Bind(req.Context(), s.fingerprint()); err != nil {
			return nil, fmt.Errorf("before it was sent: %w", err)
		}
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		s.again = true
	default:
		s.again = key != ""
	}
	return s, nil
}

// fingerprint is of all that makes the request what it is.
func (s *sending) fingerprint() []byte {
	h := sha256.New()
	for _, part := range [][]byte{
		[]byte(s.req.Method), []byte(s.req.URL.String()), []byte(s.req.Header.Get("Content-Type")), s.body,
	} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// policy is how the request is tried again.
func (s *sending) policy() retrypolicy.RetryPolicy[*http.Response] {
	return retrypolicy.NewBuilder[*http.Response]().
		HandleIf(s.retries).
		WithMaxAttempts(s.t.cfg.MaxAttempts).
		WithDelayFunc(func(exec failsafe.ExecutionAttempt[*http.Response]) time.Duration {
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
	if errors.Is(err, circuitbreaker.ErrOpen) || s.req.Context().Err() != nil {
		return false
	}
	switch meaningOf(resp, err) {
	case notDone:
	case unknown:
		if !s.again {
			return false
		}
	default:
		return false
	}
	return s.waited+s.least(resp) <= s.t.cfg.MaxWait
}

// least is how long must be waited at least.
func (s *sending) least(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	after, _ := retryAfter(resp, time.Now())
	return after
}

// pause is how long to wait before a further attempt: at random, and on top of
// what the provider wants.
func (s *sending) pause(resp *http.Response, retries int) time.Duration {
	bound := s.t.cfg.Max
	if shifted := s.t.cfg.Initial << min(retries, 30); shifted > 0 && shifted < bound {
		bound = shifted
	}
	least := s.least(resp)
	if least > 0 {
		bound = max(bound, least/2) // those that were told the same must not come together
	}
	left := max(0, s.t.cfg.MaxWait-s.waited-least)
	return least + rand.N(min(bound, left)+1)
}

// attempt sends the request once.
func (s *sending) attempt(failsafe.Execution[*http.Response]) (*http.Response, error) {
	s.discard()
	ctx, cancel := context.WithTimeout(s.req.Context(), s.t.cfg.AttemptTimeout)
	req := s.req.Clone(ctx)
	req.GetBody = nil // or net/http would send it again by itself
	req.Body, req.ContentLength = http.NoBody, int64(len(s.body))
	if len(s.body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(s.body))
	}
	resp, err := s.t.cfg.Base.RoundTrip(req)
	if err != nil {
		cancel()
		err = explained(err, s.req.Context(), ctx, s.t.cfg.AttemptTimeout)
	} else {
		resp.Body = &answer{resp.Body, cancel}
		s.last = resp
	}
	if what := meaningOf(resp, err); what == unknown && s.retries(resp, err) {
		s.doubt = true // of the attempts to come
	}
	return resp, err
}

// explained says which time was over.
func explained(err error, whole, attempt context.Context, limit time.Duration) error {
	if whole.Err() == nil && attempt.Err() != nil {
		return fmt.Errorf("no answer within %v: %w", limit, err)
	}
	return err
}

// maxDrain is how much of an answer that nobody reads is read, so that its
// connection can be used again.
const maxDrain = 64 << 10

// discard closes the answer of the attempt before.
func (s *sending) discard() {
	if s.last != nil {
		_, _ = io.CopyN(io.Discard, s.last.Body, maxDrain)
		_ = s.last.Body.Close()
		s.last = nil
	}
}

// failed says what the end of all attempts means.
func (s *sending) failed(err error) error {
	s.discard()
	if errors.Is(err, circuitbreaker.ErrOpen) {
		host := s.req.URL.Host
		return judged(notDone, opened(host, s.t.breaker(host).RemainingDelay()), s.doubt)
	}
	if ended := s.req.Context().Err(); ended != nil {
		if s.last == nil && s.waited == 0 && notSent(err) {
			return effect.NotDone(err)
		}
		return errors.Join(err, context.Cause(s.req.Context()))
	}
	return judged(meaningOf(nil, err), err, s.doubt)
}

// answer ends its attempt's time when it is closed.
type answer struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.cancel()
	return err
}
