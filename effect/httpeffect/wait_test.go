package httpeffect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/effect/httpeffect"
)

func TestRetryAfterIsReadInSecondsAndAsADate(t *testing.T) {
	now := time.Now().UTC()
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for _, c := range []struct {
		says, clock string
		low, high   time.Duration
	}{
		{"3600", "", time.Hour, time.Hour},
		{" 3600 ", "", time.Hour, time.Hour},
		{date(time.Hour), "", 59 * time.Minute, time.Hour},
		{now.Add(time.Hour).Format("Monday, 02-Jan-06 15:04:05 GMT"), "", 59 * time.Minute, time.Hour}, // RFC 850
		{date(-24 * time.Hour), date(-25 * time.Hour), time.Hour, time.Hour},                           // the provider's clock is wrong
		{date(time.Hour), "yesterday", 59 * time.Minute, time.Hour},
		{"99999999999", "", 24 * time.Hour, 24 * time.Hour},
		{"99999999999999999999999", "", 24 * time.Hour, 24 * time.Hour},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "", 24 * time.Hour, 24 * time.Hour},
	} {
		headers := []string{"Retry-After", c.says}
		if c.clock != "" {
			headers = append(headers, "Date", c.clock)
		}
		p := serve(t, status(503, headers...))
		err := post(t.Context(), newTransport(t, quick), p.URL, "k")
		if after, _ := comeBack(err); !certain(err) || after < c.low || after > c.high {
			t.Errorf("%q at %q: %v after %v", c.says, c.clock, err, after)
		}
		p.check(t, "k", 1)
	}
	for _, says := range []string{"", "-1", "+5", "1.5", "soon", "0", date(-time.Hour)} {
		p := serve(t, status(429, "Retry-After", says))
		if err := post(t.Context(), newTransport(t, quick), p.URL, "k"); err != nil {
			t.Errorf("%q: %v", says, err)
		}
		p.check(t, "k", 2)
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	times := make(chan time.Time, 2)
	note := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			times <- time.Now()
			next(w, r)
		}
	}
	p := serve(t, note(status(429, "Retry-After", "1")), note(status(200)))
	if err := post(t.Context(), newTransport(t, quick), p.URL, "k"); err != nil {
		t.Fatal(err)
	}
	if first, second := <-times, <-times; second.Sub(first) < time.Second {
		t.Errorf("it came back after %v", second.Sub(first))
	}
}

// closes is a Base that tells when an answer's body is closed: from then on
// the request waits for its next attempt.
type closes struct {
	*http.Transport
	closed chan struct{}
}

func (c closes) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.Transport.RoundTrip(req)
	if err == nil {
		resp.Body = told{resp.Body, c.closed}
	}
	return resp, err
}

type told struct {
	io.ReadCloser
	closed chan struct{}
}

func (t told) Close() error {
	defer close(t.closed)
	return t.ReadCloser.Close()
}

// What an attempt was that nobody has repeated, it still is.
func TestTheContextIsObeyedAtOnceWhileItWaits(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  http.HandlerFunc
		certain bool
	}{
		{"certainly not done", status(503, "Retry-After", "20"), true},
		{"unknown", status(409, "Retry-After", "20"), false},
	} {
		p := serve(t, c.answer)
		ctx, cancel := context.WithCancel(t.Context())
		cfg := quick
		base := closes{&http.Transport{}, make(chan struct{})}
		cfg.Base = base
		transport := newTransport(t, cfg)
		done := make(chan error, 1)
		go func() { done <- post(ctx, transport, p.URL, "k") }()
		<-base.closed
		start := time.Now()
		cancel()
		err := <-done
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("%s: it took %v", c.name, took)
		}
		if !errors.Is(err, context.Canceled) || certain(err) != c.certain || isPermanent(err) {
			t.Errorf("%s: %v", c.name, err)
		}
		p.check(t, "k", 1)
		transport.CloseIdleConnections()
	}
}

func TestWhatTheDeadlineLeavesNoTimeForIsNotWaitedFor(t *testing.T) {
	p := serve(t, status(503, "Retry-After", "25"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	err := post(ctx, newTransport(t, quick), p.URL, "k")
	if after, _ := comeBack(err); after != 25*time.Second || !certain(err) || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestTheTimeThatIsWaitedInAllIsBounded(t *testing.T) {
	past := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)
	for name, fail := range map[string]http.HandlerFunc{"500": status(500), "429 with a date in the past": status(429, "Retry-After", past)} {
		p := serve(t, slices.Repeat([]http.HandlerFunc{fail}, 1000)...)
		cfg := httpeffect.Config{MaxAttempts: 1000, Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond, MaxWait: 20 * time.Millisecond, BreakerFailures: 10_000}
		if err := post(t.Context(), newTransport(t, cfg), p.URL, "k"); err == nil {
			t.Errorf("%s: no error", name)
		}
		// Pauses are of 5 ms on average, so it is five or so.
		if n := len(p.requests()); n < 2 || n > 100 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
}

// In a bubble, where time stands still while anybody works, it is the pauses
// that are seen, and not how busy the machine is.
func TestAThousandClientsAfterAnOutageArriveSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, bucket = 1000, 50 * time.Millisecond
		outage := time.Now()
		var down atomic.Int32
		var mu sync.Mutex
		histogram := map[int]int{}
		provider := roundTrip(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
			if down.Add(1) <= clients {
				resp.StatusCode = http.StatusServiceUnavailable
				resp.Header.Set("Retry-After", "1")
				return resp, nil
			}
			mu.Lock()
			defer mu.Unlock()
			histogram[int(time.Since(outage)/bucket)]++
			return resp, nil
		})
		transport := newTransport(t, httpeffect.Config{Base: provider, BreakerFailures: 10 * clients})
		var running sync.WaitGroup
		for i := range clients {
			running.Go(func() {
				if err := post(t.Context(), transport, "http://provider.example", fmt.Sprint("k", i)); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		t.Logf("arrivals in buckets of %v: %v", bucket, histogram)
		// Between 1 s, which they were told, and 1.5 s: a tenth in each bucket. By
		// chance it is never twice that: it would be ten standard deviations.
		arrived := 0
		for at, n := range histogram {
			arrived += n
			if at < 20 || at > 30 || n > clients/5 {
				t.Errorf("%d arrivals after %v", n, time.Duration(at)*bucket)
			}
		}
		if arrived != clients {
			t.Errorf("%d arrivals", arrived)
		}
	})
}
