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
// # What is tried again, and what it means
//
//	no connection (refused, no such host, no TLS)   again; certainly not done
//	no answer, connection cut, attempt timed out    again with a key, or where the method is idempotent; unknown
//	429; 503 with Retry-After                       again, when it says; certainly not done
//	503 without, 500, 502, 504, 408                 again with a key, or where the method is idempotent; unknown
//	409                                             again with a key: it is in progress at the provider; unknown
//	422                                             not again: another body under the key (IETF draft "The
//	                                                Idempotency-Key HTTP Header Field"), or a bad one; permanent
//	other 4xx                                       not again: refused, certainly not done
//	2xx                                             done
//
// "Certainly not done" holds only if no earlier attempt is unknown. The body is
// the same on each attempt, byte for byte; another one under the same key is
// refused before it leaves the process. Waiting is at random up to a bound that
// doubles (full jitter), so that clients that failed together do not come back
// together; Retry-After is obeyed, with some of that time on top.
package httpeffect

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
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
	// attempt. Default to 200 ms and 10 s.
	Initial, Max time.Duration
	// MaxWait bounds all pauses of a request together. What the provider wants
	// to be waited for longer is left to the caller: the error says when to
	// come back. Defaults to 30 s.
	MaxWait time.Duration
	// AttemptTimeout bounds one attempt, its answer's body included. Defaults
	// to 30 s.
	AttemptTimeout time.Duration
	// BreakerFailures is how many failures of a host in a row (no answer, or 5xx)
	// have its circuit opened: for BreakerDelay it is sent nothing. Default to
	// 10, and 5 s.
	BreakerFailures int
	BreakerDelay    time.Duration
	// MaxBody is the longest body of a request in bytes. Defaults to 1 MiB.
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
	bad(strings.ContainsAny(c.Header, " \t\r\n:"), "Header is %q: use the name of a header", c.Header)
	bad(c.MaxAttempts < 0, "MaxAttempts is %d: use 1 or more", c.MaxAttempts)
	bad(c.BreakerFailures < 0, "BreakerFailures is %d: use 1 or more", c.BreakerFailures)
	bad(c.MaxBody < 0, "MaxBody is %d: use 1 or more", c.MaxBody)
	for _, d := range []struct {
		name      string
		value     *time.Duration
		otherwise time.Duration
	}{
		{"Initial", &c.Initial, 200 * time.Millisecond},
		{"Max", &c.Max, 10 * time.Second},
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

// maxHosts bounds how many circuits are kept.
const maxHosts = 1000

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
		HandleIf(func(resp *http.Response, err error) bool { return hostFailed(resp, err) }).
		WithFailureThreshold(uint(t.cfg.BreakerFailures)).
		WithDelay(t.cfg.BreakerDelay).
		WithJitterFactor(0.2).
		Build()
	t.hosts[host] = b
	return b
}
