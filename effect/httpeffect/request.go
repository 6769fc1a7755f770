package httpeffect

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sekali/sekali/effect"
)

// prepare reads the body, finds the key, and has both recorded. It closes the
// body, whatever comes of it.
func (t *Transport) prepare(req *http.Request) (*sending, error) {
	body, err := t.bodyOf(req)
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(req.Context()); cause != nil {
		return nil, effect.NotDone(fmt.Errorf("before it was sent: %w", cause))
	}
	if err := sendable(req); err != nil {
		return nil, effect.Refused(err)
	}
	s := &sending{t: t, req: req.Clone(req.Context()), original: req, body: body, breaker: t.breaker(req.URL.Host)}
	call, of := effect.CallFrom(req.Context())
	key, err := t.keyOf(req, call, of)
	if err != nil {
		return nil, effect.Refused(err)
	}
	s.keyed = key != ""
	if of {
		if s.req.Header == nil {
			s.req.Header = http.Header{}
		}
		s.req.Header.Set(t.cfg.Header, key)
		if err := call.Bind(req.Context(), s.fingerprint()); err != nil {
			return nil, fmt.Errorf("before it was sent: %w", err)
		}
	}
	return s, nil
}

func (t *Transport) bodyOf(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	defer req.Body.Close()
	body, err := io.ReadAll(io.LimitReader(req.Body, t.cfg.MaxBody+1))
	switch {
	case err != nil:
		return nil, effect.NotDone(fmt.Errorf("read the request's body: %w", err))
	case int64(len(body)) > t.cfg.MaxBody:
		return nil, effect.Refused(fmt.Errorf("the request's body is longer than %d bytes: raise Config.MaxBody", t.cfg.MaxBody))
	}
	return body, nil
}

// sendable finds what net/http would refuse with an error that does not say
// that nothing was sent.
func sendable(req *http.Request) error {
	if req.URL == nil || req.URL.Host == "" || req.URL.Scheme == "" {
		return errors.New("the request's URL names no host: use one such as https://host/path")
	}
	for name, values := range req.Header {
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				return fmt.Errorf("the request's header field %q holds a control character, such as the end of a line: trim it", name)
			}
		}
	}
	return nil
}

// keyOf returns the idempotency key; empty: it has none.
func (t *Transport) keyOf(req *http.Request, call effect.Call, of bool) (string, error) {
	given := req.Header.Values(t.cfg.Header)
	switch {
	case of && call.IdempotencyKey == "":
		return "", errors.New("the context's effect.Call has no IdempotencyKey: give it one, or use another context")
	case of && strings.ContainsFunc(call.IdempotencyKey, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", errors.New("the context's effect.Call has an IdempotencyKey with a control character")
	case len(given) > 1:
		return "", fmt.Errorf("the request has %d keys in %s: leave one", len(given), t.cfg.Header)
	case len(given) == 1 && of && given[0] != call.IdempotencyKey:
		return "", fmt.Errorf("the request has another key in %s than its effect: leave the header out", t.cfg.Header)
	case of:
		return call.IdempotencyKey, nil
	}
	return req.Header.Get(t.cfg.Header), nil
}

// fingerprint is of all that makes the request what it is, and not of who
// sends it: credentials may change. Ledgers keep it, so it must stay as it is.
func (s *sending) fingerprint() []byte {
	method, address := s.req.Method, *s.req.URL
	if method == "" {
		method = http.MethodGet
	}
	address.User, address.Fragment, address.RawFragment = nil, "", ""
	if s.req.Host != "" {
		address.Host = s.req.Host
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(method), []byte(address.String()), []byte(s.req.Header.Get("Content-Type")), s.body} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// repeatable tells whether the request may be sent again at all.
func (s *sending) repeatable() bool { return s.idempotent() || s.keyed }

// idempotent tells whether HTTP itself says that twice is as good as once.
func (s *sending) idempotent() bool {
	switch s.req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// lookedAt tells whether the ledger wants to know first what became of an
// attempt whose outcome is unknown: it parks or looks up.
func (s *sending) lookedAt() bool {
	call, of := effect.CallFrom(s.req.Context())
	return of && !call.Repeats && !s.idempotent()
}
