package httpeffect_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
)

func TestAnotherBodyUnderTheKeyNeverLeavesTheProcess(t *testing.T) {
	p := serve(t)
	transport := newTransport(t, quick)
	var bound []byte
	ledger := effect.New(&binder{bound: &bound}, "c", effect.Config{})
	send := func(body, path, kind string) error {
		_, err := effect.Do(t.Context(), ledger, "m", "e", func(ctx context.Context, _ effect.Call) (int, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+path, strings.NewReader(body))
			if err != nil {
				return 0, err
			}
			req.Header.Set("Content-Type", kind)
			resp, err := transport.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			return 0, err
		})
		return err
	}
	if err := send("a", "/", "text/plain"); err != nil {
		t.Fatal(err)
	}
	for _, other := range [][3]string{{"b", "/", "text/plain"}, {"a", "/x", "text/plain"}, {"a", "/", "text/html"}, {"", "/", "text/plain"}} {
		if err := send(other[0], other[1], other[2]); !errors.Is(err, effect.ErrOtherRequest) || !isPermanent(err) {
			t.Errorf("%q: %v", other, err)
		}
	}
	if err := send("a", "/", "text/plain"); err != nil {
		t.Error(err)
	}
	if n := len(p.requests()); n != 2 {
		t.Errorf("%d requests left the process", n)
	}
}

// binder remembers what was bound to the only effect.
type binder struct {
	recorder
	bound *[]byte
}

func (b *binder) Bind(_ context.Context, _ effect.Row, fingerprint []byte) error {
	switch {
	case *b.bound == nil:
		*b.bound = slices.Clone(fingerprint)
	case !slices.Equal(*b.bound, fingerprint):
		return effect.ErrOtherRequest
	}
	return nil
}

// The ledger keeps fingerprints: another way to take them would refuse what
// is repeated after an upgrade.
func TestAFingerprintStaysTheSame(t *testing.T) {
	base := roundTrip(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	})
	transport := newTransport(t, httpeffect.Config{Base: base})
	for _, url := range []string{"https://courier.example/labels?express=1", "https://user:changed@courier.example/labels?express=1#part"} {
		var bound []byte
		_, err := effect.Do(t.Context(), effect.New(&binder{bound: &bound}, "c", effect.Config{}), "m", "e", func(ctx context.Context, _ effect.Call) (int, error) {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"order":42}`))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+url)
			_, err := transport.Do(req)
			return 0, err
		})
		h := sha256.New()
		for _, part := range []string{"POST", "https://courier.example/labels?express=1", "application/json", `{"order":42}`} {
			_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
			_, _ = io.WriteString(h, part)
		}
		const golden = "24aa8b8a43bb26ddc2d5860bb21511ee91115f2736d3cf7736c1fa46dfcceba3"
		if err != nil || !bytes.Equal(bound, h.Sum(nil)) || hex.EncodeToString(bound) != golden {
			t.Errorf("%s: %x (%v), want %s", url, bound, err, golden)
		}
	}
}

// roundTrip is a Base that reports to no httptrace.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestRequestsThatCannotBeMeantAreRefused(t *testing.T) {
	p := serve(t)
	cfg := quick
	cfg.MaxBody = 8
	transport := newTransport(t, cfg)
	for name, change := range map[string]func(*http.Request) *http.Request{
		"a body that is too long": func(r *http.Request) *http.Request { r.Body = io.NopCloser(strings.NewReader("two orders")); return r },
		"another key":             func(r *http.Request) *http.Request { r.Header.Set("Idempotency-Key", "another"); return r },
		"two keys":                func(r *http.Request) *http.Request { r.Header["Idempotency-Key"] = []string{"k", "k"}; return r },
		"a call without a key":    func(r *http.Request) *http.Request { return r.WithContext(effect.WithCall(r.Context(), effect.Call{})) },
		"a key of two lines": func(r *http.Request) *http.Request {
			return r.WithContext(effect.WithCall(r.Context(), effect.Call{IdempotencyKey: "a\nb", Repeats: true}))
		},
		"a secret with the end of its line": func(r *http.Request) *http.Request { r.Header.Set("Authorization", "Bearer geheim\n"); return r },
		"no host":                           func(r *http.Request) *http.Request { r.URL.Host = ""; return r },
		"no URL":                            func(r *http.Request) *http.Request { r.URL = nil; return r },
	} {
		closed := false
		req, _ := http.NewRequestWithContext(effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k", Repeats: true}), http.MethodPost, p.URL, nil)
		req = change(req)
		if req.Body == nil {
			req.Body = http.NoBody
		}
		req.Body = closing{req.Body, &closed}
		_, err := transport.Do(req)
		if !certain(err) || !isPermanent(err) || !closed || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v; closed %v", name, err, closed)
		}
	}
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// closing remembers that it was closed.
type closing struct {
	io.Reader
	closed *bool
}

func (c closing) Close() error { *c.closed = true; return nil }

func TestABodyThatCannotBeReadIsCertainlyNotSent(t *testing.T) {
	p := serve(t)
	broken := errors.New("the disk is gone")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL, iotest.ErrReader(broken))
	if _, err := newTransport(t, quick).Do(req); !errors.Is(err, broken) || !certain(err) || isPermanent(err) || len(p.requests()) != 0 {
		t.Errorf("the error is %v", err)
	}
}

func TestARequestWithoutHeadersGetsItsKey(t *testing.T) {
	p := serve(t)
	at, _ := url.Parse(p.URL)
	req := (&http.Request{Method: http.MethodPost, URL: at, Body: io.NopCloser(strings.NewReader("an order"))}).
		WithContext(effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k", Repeats: true}))
	resp, err := newTransport(t, quick).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	p.check(t, "k", 1)
	if req.Header != nil || resp.Request != req {
		t.Errorf("the caller's request was changed, or is not the answer's: %v", resp.Request)
	}
}

func TestAConfigThatContradictsItselfIsRefused(t *testing.T) {
	for name, cfg := range map[string]httpeffect.Config{
		"header": {Header: "a b"}, "attempts": {MaxAttempts: -1}, "wait": {MaxWait: -1}, "timeout": {AttemptTimeout: -1},
		"breaker": {BreakerFailures: -1}, "its size": {BreakerFailures: 1 << 40}, "its delay": {BreakerDelay: -1},
		"body": {MaxBody: -1}, "pause": {Initial: -1}, "pauses": {Initial: 2, Max: 1},
	} {
		if _, err := httpeffect.New(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := httpeffect.New(httpeffect.Config{Initial: time.Minute}); err != nil {
		t.Error(err)
	}
}

func TestTheDefaultsAreThoseOfTheDocs(t *testing.T) {
	full := httpeffect.Filled(httpeffect.Config{})
	base, ok := full.Base.(*http.Transport)
	if !ok || base == http.DefaultTransport {
		t.Errorf("Base is %v", full.Base)
	}
	full.Base = nil
	if want := (httpeffect.Config{
		Header: "Idempotency-Key", MaxAttempts: 4, Initial: 200 * time.Millisecond, Max: 10 * time.Second, MaxWait: 30 * time.Second,
		AttemptTimeout: 30 * time.Second, BreakerFailures: 10, BreakerDelay: 5 * time.Second, MaxBody: 1 << 20,
	}); full != want {
		t.Errorf("%+v, want %+v", full, want)
	}
	if max := httpeffect.Filled(httpeffect.Config{Initial: time.Minute}).Max; max != time.Minute {
		t.Errorf("Max is %v", max)
	}
}
