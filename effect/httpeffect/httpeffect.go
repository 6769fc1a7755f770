// Package httpeffect makes HTTP requests of effects safe to repeat: the
// idempotency key of the effect goes with each, what is safe to try again is
// tried again, and how it ended is said so that a ledger understands it.
//
//	transport, err := httpeffect.New(httpeffect.Config{})
//	…
//	label, err := effect.Do(ctx, ledger, m.Key(), "create-label",
//		func(ctx context.Context, c effect.Call) (Label, error) {
//			req, err := http.NewRequestWithContext(ctx, "POST", url, body)
//			…
//			resp, err := transport.Do(req) // the key comes with ctx
//			if err != nil {
//				return Label{}, err
//			}
//			defer resp.Body.Close()
//			…
//		}, effect.Repeat(24*time.Hour))
//
// # What is tried again, and what its end means
//
//	what happens                                    tried again             if it ends so
//	no connection (refused, no such host, no TLS)   yes                     certainly not done
//	no answer, connection cut, attempt timed out    yes                     unknown
//	429; 503 with Retry-After                       yes, when it says       certainly not done; come back when it says
//	500, 502, 504, 408; 503 without Retry-After     yes                     unknown
//	409: in progress at the provider                yes, if it has a key    unknown
//	422: another body under the key, or a bad one   no                      unknown, permanent
//	other 4xx                                       no                      refused: certainly not done, permanent
//	3xx: redirects are not followed                 no                      unknown, permanent
//	2xx                                             no                      done
//	the host's circuit is open                      no                      certainly not done; come back when it closes
//	the context ends during an attempt              no                      unknown
//	the context ends between attempts               no                      as the attempt before
//
// "Yes" is for requests with an idempotency key, and for GET, HEAD, OPTIONS,
// PUT and DELETE. A POST or PATCH without a key is sent once, whatever comes
// of it; and one of an effect that is parked or looked up (effect.Park,
// effect.Lookup) is not sent again while an attempt is unknown. The meaning of 409 and 422 is that of the IETF draft "The
// Idempotency-Key HTTP Header Field".
//
// "Certainly not done" (effect.NotDone), and "refused" (effect.Refused), hold
// only if no earlier attempt of the request is unknown: else the end is unknown
// too. That nothing was sent is known from net/http/httptrace, if Base reports
// to it, as http.Transport does: no connection was had. An error that wraps
// nothing of package effect is of an unknown outcome. What has a Retry-After
// has a method RetryAfter() time.Duration, with which a Consumer comes back
// later, uncounted.
//
// # What goes over the wire
//
// The body is read once, bounded by Config.MaxBody, and is the same on each
// attempt, byte for byte; so is the key. Before the first attempt the request's
// fingerprint (method, URL without user and fragment, Content-Type, body) is
// bound to the effect: with another one under the same key nothing leaves the
// process, and the error wraps effect.ErrOtherRequest. Header fields such as
// Authorization may differ from one attempt to the next.
//
// Waiting is at random up to a bound that doubles (full jitter), so that
// clients that failed together do not come back together; Retry-After is
// obeyed, with some of that time on top. All waiting ends at once with the
// context. A circuit breaker for each host keeps requests in the process while
// the host does not answer; then one goes first, to find out.
//
// # Redirects
//
// Transport.Do and Client do not follow redirects. A client of your own does,
// by default, and for 301, 302 and 303 makes a GET of a POST; for 307 and 308
// it sends the POST to another address, which the ledger refuses, as another
// request under the same key. Give such a client
//
//	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
//
// # Secrets
//
// The errors of this package show no URL. An http.Client puts it into its
// errors, query and user name included: take it out with WithoutURL.
package httpeffect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/sekali/sekali/effect"
)

// Config says how a Transport works. The zero value is fit for most.
type Config struct {
	// Base sends single requests. Defaults to a clone of http.DefaultTransport.
	Base http.RoundTripper
	// Header carries the idempotency key. Defaults to "Idempotency-Key".
	Header string
	// MaxAttempts bounds the attempts of a request. Defaults to 4.
	MaxAttempts int
	// Initial and Max bound the pause before the second, and before any,
	// attempt. Default to 200 ms, and to 10 s or Initial, whichever is longer.
	Initial, Max time.Duration
	// MaxWait bounds all pauses of a request together. What the provider wants
	// to be waited for longer is left to the caller: the error says when to
	// come back. Defaults to 30 s.
	MaxWait time.Duration
	// AttemptTimeout bounds one attempt, its answer's body included. Defaults
	// to 30 s.
	AttemptTimeout time.Duration
	// BreakerFailures is how many failures of a host in a row (no connection, no
	// answer, or 5xx) have its circuit opened: for BreakerDelay, with up to a
	// fifth more or less, it is sent nothing. Then one request goes first, on
	// whose success the circuit closes. Default to 10, and 5 s.
	BreakerFailures int
	BreakerDelay    time.Duration
	// MaxBody is the longest body of a request in bytes: it is kept in memory
	// until the request is over. Defaults to 1 MiB.
	MaxBody int64
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if c.Base == nil {
		c.Base = http.DefaultTransport.(*http.Transport).Clone()
	}
	if c.Header == "" {
		c.Header = "Idempotency-Key"
	}
	bad(strings.ContainsFunc(c.Header, notToken), "Header is %q: use the name of a header", c.Header)
	bad(c.MaxAttempts < 0, "MaxAttempts is %d: use 1 or more", c.MaxAttempts)
	bad(c.BreakerFailures < 0 || c.BreakerFailures > maxFailures, "BreakerFailures is %d: use 1 to %d", c.BreakerFailures, maxFailures)
	bad(c.MaxBody < 0, "MaxBody is %d: use 1 or more", c.MaxBody)
	bad(c.Max > 0 && c.Initial > c.Max, "Initial is %v, and Max %v is shorter: raise Max", c.Initial, c.Max)
	for _, d := range []struct {
		name      string
		value     *time.Duration
		otherwise time.Duration
	}{
		{"Initial", &c.Initial, 200 * time.Millisecond},
		{"Max", &c.Max, max(10*time.Second, c.Initial)},
		{"MaxWait", &c.MaxWait, 30 * time.Second},
		{"AttemptTimeout", &c.AttemptTimeout, 30 * time.Second},
		{"BreakerDelay", &c.BreakerDelay, 5 * time.Second},
	} {
		bad(*d.value < 0, "%s is %v: use a time above zero", d.name, *d.value)
		if *d.value == 0 {
			*d.value = d.otherwise
		}
	}
	c.MaxAttempts = orDefault(c.MaxAttempts, 4)
	c.BreakerFailures = orDefault(c.BreakerFailures, 10)
	c.MaxBody = orDefault(c.MaxBody, 1<<20)
	return c, errors.Join(errs...)
}

func orDefault[T int | int64](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

const (
	// maxHosts bounds how many circuits are kept.
	maxHosts = 1000
	// maxFailures bounds what one takes: a bit for each.
	maxFailures = 1_000_000
)

// Transport sends requests of effects. It is safe for concurrent use.
type Transport struct {
	cfg Config

	mu    sync.Mutex
	hosts map[string]circuitbreaker.CircuitBreaker[*http.Response]
}

// New returns a Transport, or an error that says what is wrong with cfg.
func New(cfg Config) (*Transport, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new HTTP transport of effects: %w", err)
	}
	return &Transport{cfg: full, hosts: map[string]circuitbreaker.CircuitBreaker[*http.Response]{}}, nil
}

// Client returns a client that sends by New(cfg) and follows no redirects. If
// cfg is wrong, each request fails with what is wrong. Its answers are for
// Check; its errors show the URL: see WithoutURL.
func Client(cfg Config) *http.Client {
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if t, err := New(cfg); err != nil {
		c.Transport = invalid{err}
	} else {
		c.Transport = t
	}
	return c
}

// invalid sends nothing.
type invalid struct{ err error }

func (i invalid) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, effect.NotDone(i.err)
}

// CloseIdleConnections closes those of Base.
func (t *Transport) CloseIdleConnections() {
	if b, ok := t.cfg.Base.(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}

// breaker returns the circuit of a host.
func (t *Transport) breaker(host string) circuitbreaker.CircuitBreaker[*http.Response] {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.hosts[host]
	if b != nil {
		return b
	}
	if len(t.hosts) >= maxHosts { // somebody makes up hosts
		clear(t.hosts)
	}
	b = circuitbreaker.NewBuilder[*http.Response]().
		HandleIf(func(resp *http.Response, err error) bool {
			if errors.Is(err, context.Canceled) { // it says nothing of the host, nor that it is well again
				return b.IsHalfOpen()
			}
			return err != nil || resp.StatusCode >= 500
		}).
		WithFailureThreshold(uint(t.cfg.BreakerFailures)).
		WithSuccessThreshold(1).
		WithDelay(t.cfg.BreakerDelay).
		WithJitterFactor(0.2).
		Build()
	t.hosts[host] = b
	return b
}

// notToken tells what cannot be in the name of a header field (RFC 9110).
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}
