package httpeffect_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
)

func TestAConnectionThatIsRefusedIsCertainlyNotDone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://user:geheim@" + listener.Addr().String() + "/?token=geheim"
	_ = listener.Close()
	for _, key := range []string{"k", ""} {
		err := post(t.Context(), newTransport(t, quick), url, key)
		if !errors.Is(err, syscall.ECONNREFUSED) || !certain(err) || isPermanent(err) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// Whatever goes wrong before there is a connection, nothing was sent.
func TestWithoutAConnectionItIsCertainlyNotDone(t *testing.T) {
	distrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	distrusted.Config.ErrorLog = quiet
	distrusted.StartTLS()
	defer distrusted.Close()
	proxy := httptest.NewServer(status(http.StatusBadGateway))
	defer proxy.Close()
	throughProxy, _ := url.Parse(proxy.URL)
	dials := func(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
		return &http.Transport{DialContext: dial}
	}
	for name, c := range map[string]struct {
		base *http.Transport
		url  string
	}{
		"a certificate nobody knows": {&http.Transport{}, distrusted.URL},
		"no TLS there":               {&http.Transport{}, strings.Replace(proxy.URL, "http:", "https:", 1)},
		"a proxy that cannot":        {&http.Transport{Proxy: http.ProxyURL(throughProxy)}, "https://provider.example"},
		"a connection takes too long": {dials(func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}), "http://provider.example"},
		"no such host": {dials(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
		}), "http://provider.example"},
	} {
		cfg := quick
		cfg.Base, cfg.MaxAttempts, cfg.AttemptTimeout = c.base, 2, 200*time.Millisecond
		if name == "a certificate nobody knows" || name == "no TLS there" || name == "a proxy that cannot" {
			cfg.AttemptTimeout = time.Minute
		}
		if err := post(t.Context(), newTransport(t, cfg), c.url, "k"); !certain(err) || isPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
		c.base.CloseIdleConnections()
	}
}

func TestABaseThatDoesNotReportIsBelievedByItsErrors(t *testing.T) {
	for _, c := range []struct {
		err     error
		certain bool
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&url.Error{Op: "Post", URL: "https://user:geheim@x/?token=geheim", Err: &net.DNSError{Err: "no such host"}}, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false},
		{io.ErrUnexpectedEOF, false},
	} {
		cfg := quick
		sent := 0
		cfg.Base = roundTrip(func(*http.Request) (*http.Response, error) { sent++; return nil, c.err })
		err := post(t.Context(), newTransport(t, cfg), "http://provider.example", "k")
		if certain(err) != c.certain || sent != 4 || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%v after %d attempts", err, sent)
		}
	}
}

func TestWhatActsAndThenTimesOutIsRepeatedUnderTheSameKey(t *testing.T) {
	var p *provider
	p = serve(t, func(w http.ResponseWriter, r *http.Request) {
		p.sell(r.Header.Get("Idempotency-Key"))
		<-r.Context().Done()
	})
	cfg := quick
	cfg.AttemptTimeout, cfg.MaxAttempts = 200*time.Millisecond, 10
	if err := post(t.Context(), newTransport(t, cfg), p.URL, "k"); err != nil {
		t.Error(err)
	}
	if n := len(p.requests()); n < 2 {
		t.Errorf("%d requests", n)
	}
	p.check(t, "k", len(p.requests()))
}

func TestWhatTimesOutForEverIsUnknown(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	p := serve(t, hang, hang)
	cfg := quick
	cfg.AttemptTimeout, cfg.MaxAttempts = 50*time.Millisecond, 2
	if err := post(t.Context(), newTransport(t, cfg), p.URL, "k"); !errors.Is(err, context.DeadlineExceeded) || certain(err) || isPermanent(err) {
		t.Errorf("the error is %v", err)
	}
}

func TestTheContextEndsWhileTheRequestIsUnderWay(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the lease is lost")
	p := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done()
	})
	err := post(ctx, newTransport(t, quick), p.URL, "k")
	if !errors.Is(err, why) || certain(err) || isPermanent(err) {
		t.Errorf("the error is %v", err)
	}
	p.check(t, "k", 1)
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := serve(t)
	if err := post(ctx, newTransport(t, quick), p.URL, "k"); !errors.Is(err, context.Canceled) || !certain(err) {
		t.Errorf("the error is %v", err)
	}
	p.check(t, "k", 0)
}

// net/http sends a request without a body again by itself, if it has an
// Idempotency-Key and its connection had been used before.
func TestWhatNetHTTPSendsAgainByItselfIsUnknown(t *testing.T) {
	for name, answer := range map[string]string{
		"then refused":  "",
		"then told 429": "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
		"then told 404": "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		acted := make(chan int, 1)
		go func() { acted <- replayed(listener, answer) }()
		cfg := quick
		cfg.MaxAttempts = 1
		transport := newTransport(t, cfg)
		empty := func() error {
			ctx := effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k", Repeats: true})
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String(), nil)
			resp, err := transport.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		if err := empty(); err != nil {
			t.Fatal(err)
		}
		if err := empty(); err == nil || certain(err) {
			t.Errorf("acted, %s: %v", name, err)
		}
		if n := <-acted; n != 2 {
			t.Errorf("%s: it acted on %d requests", name, n)
		}
	}
}

// With a body net/http could do so too: each attempt is one of ours.
func TestARequestWithABodyIsSentOnceInAnAttempt(t *testing.T) {
	var p *provider
	p = serve(t, status(200), cut(&p, true))
	cfg := quick
	cfg.MaxAttempts = 1
	transport := newTransport(t, cfg)
	if err := post(t.Context(), transport, p.URL, "k"); err != nil {
		t.Fatal(err)
	}
	if err := post(t.Context(), transport, p.URL, "k"); err == nil || certain(err) {
		t.Errorf("the error is %v", err)
	}
	p.check(t, "k", 2)
}

// replayed acts on two requests of a connection, but answers only the first;
// then it closes, or answers to one more.
func replayed(listener net.Listener, answer string) (acted int) {
	defer listener.Close()
	conn, err := listener.Accept()
	if err != nil {
		return 0
	}
	defer conn.Close()
	for r := bufio.NewReader(conn); acted < 2; acted++ {
		if _, err := http.ReadRequest(r); err != nil {
			return acted
		}
		if acted == 0 {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}
	if answer == "" {
		_ = listener.Close()
		return acted
	}
	_ = conn.Close()
	again, err := listener.Accept()
	if err != nil {
		return acted
	}
	defer again.Close()
	_, _ = http.ReadRequest(bufio.NewReader(again))
	_, _ = io.WriteString(again, answer)
	return acted
}

func TestOverHTTP2ItIsTheSame(t *testing.T) {
	p := &provider{sold: map[string]int{}}
	aborts := func(_ http.ResponseWriter, r *http.Request) {
		p.sell(r.Header.Get("Idempotency-Key"))
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct{ aborted, requests int }{{1, 2}, {4, 4}} {
		p.script, p.seen = nil, nil
		for range c.aborted {
			p.script = append(p.script, aborts)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
		server.EnableHTTP2 = true
		server.StartTLS()
		cfg := quick
		cfg.Base = server.Client().Transport
		err := post(t.Context(), newTransport(t, cfg), server.URL, "k")
		if (err != nil) != (c.aborted == 4) || err != nil && (certain(err) || isPermanent(err)) {
			t.Errorf("%d aborted: %v", c.aborted, err)
		}
		p.check(t, "k", c.requests)
		httpeffect.Client(cfg).CloseIdleConnections()
		server.Close()
	}
}

func TestAnswersThatNobodyGetsGiveTheirConnectionBack(t *testing.T) {
	large := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
	}
	p := serve(t, large, large, large, status(400))
	dialed := 0
	cfg := quick
	cfg.Base = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	transport := newTransport(t, cfg)
	defer transport.CloseIdleConnections()
	if err := post(t.Context(), transport, p.URL, "k"); err == nil {
		t.Error("no error")
	}
	p.check(t, "k", 4)
	if dialed != 1 {
		t.Errorf("%d connections", dialed)
	}
}

func TestAnAnswerWithoutAnEndHoldsNobodyUp(t *testing.T) {
	released := make(chan struct{})
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(released)
		w.WriteHeader(http.StatusInternalServerError)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	start := time.Now()
	if err := post(t.Context(), newTransport(t, quick), p.URL, "k"); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second { // an attempt may take 30 s
		t.Errorf("it took %v", took)
	}
	<-released
	p.check(t, "k", 2)
}
