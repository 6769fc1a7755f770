package httpeffect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/sekali/sekali/effect/httpeffect"
)

// brittle opens a circuit after three failures.
func brittle() httpeffect.Config {
	cfg := quick
	cfg.MaxAttempts, cfg.BreakerFailures, cfg.BreakerDelay = 1, 3, 200*time.Millisecond
	return cfg
}

// open has the circuit of a host opened.
func open(t *testing.T, transport *httpeffect.Transport, url string) {
	t.Helper()
	for range 3 {
		if err := post(t.Context(), transport, url, "k"); err == nil || errors.Is(err, circuitbreaker.ErrOpen) {
			t.Errorf("the error is %v", err)
		}
	}
	isOpen(t, post(t.Context(), transport, url, "k"))
}

// isOpen checks the error of a circuit that is open, and waits until it is
// half-open.
func isOpen(t *testing.T, err error) {
	t.Helper()
	after, _ := comeBack(err)
	if !errors.Is(err, circuitbreaker.ErrOpen) || !certain(err) || isPermanent(err) || after <= 0 || after > 240*time.Millisecond {
		t.Fatalf("the circuit is not open: %v, for %v", err, after)
	}
	<-time.After(after + time.Millisecond)
}

func TestACircuitOpensHalfOpensAndCloses(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	probe := func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-leave
	}
	p := serve(t, status(500), status(500), status(500), status(500), probe)
	transport := newTransport(t, brittle())
	open(t, transport, p.URL)
	p.check(t, "k", 3)
	other := serve(t)
	if err := post(t.Context(), transport, other.URL, "k"); err != nil {
		t.Errorf("another host: %v", err)
	}
	if err := post(t.Context(), transport, p.URL, "k"); err == nil || errors.Is(err, circuitbreaker.ErrOpen) {
		t.Errorf("half-open: %v", err)
	}
	isOpen(t, post(t.Context(), transport, p.URL, "k")) // the probe has failed
	done := make(chan error, 1)
	go func() { done <- post(t.Context(), transport, p.URL, "k") }()
	<-arrived
	err := post(t.Context(), transport, p.URL, "k") // while another finds out
	if after, _ := comeBack(err); !errors.Is(err, circuitbreaker.ErrOpen) || !certain(err) || after <= 0 {
		t.Errorf("beside the probe: %v", err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("the probe: %v", err)
	}
	for range 5 {
		if err := post(t.Context(), transport, p.URL, "k"); err != nil {
			t.Errorf("closed: %v", err)
		}
	}
	p.check(t, "k", 10)
}

func TestACircuitThatOpensBehindAnUnknownAttemptLeavesItUnknown(t *testing.T) {
	p := serve(t, status(500), status(500), status(500))
	cfg := brittle()
	cfg.MaxAttempts, cfg.BreakerDelay = 10, time.Minute
	err := post(t.Context(), newTransport(t, cfg), p.URL, "k")
	if after, _ := comeBack(err); !errors.Is(err, circuitbreaker.ErrOpen) || certain(err) || after <= 0 {
		t.Errorf("the error is %v", err)
	}
	p.check(t, "k", 3)
}

func TestAnOpenCircuitIsNotWaitedFor(t *testing.T) {
	p := serve(t, status(500))
	transport := newTransport(t, httpeffect.Config{BreakerFailures: 1, Initial: time.Hour})
	_ = post(t.Context(), transport, p.URL, "") // without a key it is sent once
	start := time.Now()
	err := post(t.Context(), transport, p.URL, "k")
	if took := time.Since(start); !errors.Is(err, circuitbreaker.ErrOpen) || took > 100*time.Millisecond {
		t.Errorf("%v after %v", err, took)
	}
}

// A probe that is given up, or panics, neither closes the circuit nor leaves
// everybody waiting for it.
func TestAProbeThatComesToNoEnd(t *testing.T) {
	for name, bad := range map[string]func(ctx context.Context, cancel func()) error{
		"given up": func(ctx context.Context, cancel func()) error { cancel(); return ctx.Err() },
		"panics":   func(context.Context, func()) error { panic("base") },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		answer := func() error { return errors.New("no answer") }
		cfg := brittle()
		cfg.Base = roundTrip(func(req *http.Request) (*http.Response, error) {
			if err := answer(); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		})
		transport := newTransport(t, cfg)
		open(t, transport, "http://provider.example")
		answer = func() error { return bad(ctx, cancel) }
		func() {
			defer func() { _ = recover() }()
			if err := post(ctx, transport, "http://provider.example", "k"); errors.Is(err, circuitbreaker.ErrOpen) {
				t.Errorf("%s: there was no probe: %v", name, err)
			}
		}()
		answer = func() error { return nil }
		isOpen(t, post(t.Context(), transport, "http://provider.example", "k"))
		if err := post(t.Context(), transport, "http://provider.example", "k"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

func TestHostsThatAreMadeUpAreForgotten(t *testing.T) {
	cfg := brittle()
	sent := 0
	cfg.Base = roundTrip(func(*http.Request) (*http.Response, error) { sent++; return nil, errors.New("no answer") })
	transport := newTransport(t, cfg)
	for i := range 2500 {
		_ = post(t.Context(), transport, fmt.Sprintf("http://host-%d.example", i), "k")
	}
	if n := httpeffect.Hosts(transport); sent != 2500 || n > 1000 {
		t.Errorf("%d circuits after %d requests", n, sent)
	}
}
