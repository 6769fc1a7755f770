package httpeffect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider answers as a script says, and honours keys.
type provider struct {
	*httptest.Server
	mu     sync.Mutex
	script []http.HandlerFunc // one for each request; then it sells
	seen   []string           // "key body" of each request
	sold   map[string]int     // by key; "" is for those without
}

func serve(t *testing.T, script ...http.HandlerFunc) *provider {
	t.Helper()
	p := &provider{script: script, sold: map[string]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	p.seen = append(p.seen, key+" "+string(body))
	var step http.HandlerFunc
	if len(p.script) > 0 {
		step, p.script = p.script[0], p.script[1:]
	}
	p.mu.Unlock()
	if step != nil {
		step(w, r)
		return
	}
	p.sell(key)
	_, _ = io.WriteString(w, "label")
}

// sell sells once for each key.
func (p *provider) sell(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key == "" || p.sold[key] == 0 {
		p.sold[key]++
	}
}

func (p *provider) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		http.Error(w, "because\x1b[2J", code)
	}
}

// cut cuts the connection; acts has it sell before.
func cut(p **provider, acts bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if acts {
			(*p).sell(r.Header.Get("Idempotency-Key"))
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}
}

var quick = httpeffect.Config{Initial: time.Millisecond, Max: 5 * time.Millisecond}

func newTransport(t *testing.T, cfg httpeffect.Config) *httpeffect.Transport {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	if cfg.Base == nil {
		cfg.Base = base
	}
	transport, err := httpeffect.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return transport
}

// post sends "an order" under a key.
func post(ctx context.Context, t *httpeffect.Transport, url, key string) error {
	if key != "" {
		ctx = effect.WithCall(ctx, effect.Call{IdempotencyKey: key})
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("an order"))
	if err != nil {
		return err
	}
	resp, err := t.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return err
}

// What an error says of the effect.
func certain(err error) bool {
	// What a ledger would record.
	rows := &recorder{}
	_, _ = effect.Do(context.Background(), effect.New(rows, "c", effect.Config{}), "m", "e", func(context.Context, effect.Call) (int, error) { return 0, err })
	return rows.state == effect.Failed
}

type recorder struct{ state effect.State }

func (r *recorder) Start(_ context.Context, id effect.ID, key string, _ time.Duration) (effect.Row, bool, error) {
	return effect.Row{ID: id, IdempotencyKey: key, Attempt: 1}, true, nil
}

func (r *recorder) Take(context.Context, effect.Row, time.Duration) (effect.Row, bool, error) {
	return effect.Row{}, false, nil
}

func (r *recorder) Extend(context.Context, effect.Row, time.Duration) (bool, error) { return true, nil }
func (r *recorder) Bind(context.Context, effect.Row, []byte) error                  { return nil }
func (r *recorder) Check(context.Context) error                                     { return nil }
func (r *recorder) End(_ context.Context, _ effect.Row, to effect.State, _ []byte, _ string) error {
	r.state = to
	return nil
}

func isPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

func TestWhatIsTriedAgainAndWhatItsEndMeans(t *testing.T) {
	var p *provider
	for name, c := range map[string]struct {
		script    []http.HandlerFunc
		key       string
		requests  int
		fails     bool
		certain   bool // that it has not happened
		permanent bool
	}{
		"success":                                {nil, "k", 1, false, false, false},
		"429 then success":                       {[]http.HandlerFunc{status(429)}, "k", 2, false, false, false},
		"429 without a key":                      {[]http.HandlerFunc{status(429)}, "", 1, true, true, false},
		"429 for ever":                           {[]http.HandlerFunc{status(429), status(429), status(429), status(429)}, "k", 4, true, true, false},
		"503 with Retry-After":                   {[]http.HandlerFunc{status(503, "Retry-After", "0")}, "k", 2, false, false, false},
		"503 without, with a key":                {[]http.HandlerFunc{status(503)}, "k", 2, false, false, false},
		"503 without, without a key":             {[]http.HandlerFunc{status(503)}, "", 1, true, false, false},
		"500 with a key":                         {[]http.HandlerFunc{status(500), status(502), status(504)}, "k", 4, false, false, false},
		"500 without a key":                      {[]http.HandlerFunc{status(500)}, "", 1, true, false, false},
		"409 is in progress":                     {[]http.HandlerFunc{status(409)}, "k", 2, false, false, false},
		"409 for ever":                           {[]http.HandlerFunc{status(409), status(409), status(409), status(409)}, "k", 4, true, false, false},
		"422":                                    {[]http.HandlerFunc{status(422)}, "k", 1, true, false, true},
		"400":                                    {[]http.HandlerFunc{status(400)}, "k", 1, true, true, true},
		"404 behind a 500":                       {[]http.HandlerFunc{status(500), status(404)}, "k", 2, true, false, true},
		"429 for ever behind a 500":              {[]http.HandlerFunc{status(500), status(429), status(429), status(429)}, "k", 4, true, false, false},
		"cut, with a key":                        {[]http.HandlerFunc{cut(&p, false)}, "k", 2, false, false, false},
		"cut after it has acted, with a key":     {[]http.HandlerFunc{cut(&p, true)}, "k", 2, false, false, false},
		"cut after it has acted, without a key":  {[]http.HandlerFunc{cut(&p, true)}, "", 1, true, false, false},
		"cut for ever":                           {[]http.HandlerFunc{cut(&p, true), cut(&p, true), cut(&p, true), cut(&p, true)}, "k", 4, true, false, false},
		"a Retry-After that is longer than wait": {[]http.HandlerFunc{status(503, "Retry-After", "3600")}, "k", 1, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p = serve(t, c.script...)
			err := post(t.Context(), newTransport(t, quick), p.URL, c.key)
			if (err != nil) != c.fails {
				t.Fatalf("the error is %v", err)
			}
			seen := p.requests()
			if len(seen) != c.requests {
				t.Errorf("%d requests, want %d: %q", len(seen), c.requests, seen)
			}
			for _, s := range seen {
				if s != c.key+" an order" {
					t.Errorf("a request was %q", s)
				}
			}
			if n := p.sold[c.key]; n > 1 {
				t.Errorf("%d labels", n)
			}
			if err == nil {
				return
			}
			if certain(err) != c.certain || isPermanent(err) != c.permanent {
				t.Errorf("%v: certainly not done %v, permanent %v", err, certain(err), isPermanent(err))
			}
			if strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("the error sends commands to the terminal: %q", err)
			}
		})
	}
}

func TestRetryAfterIsReadInSecondsAndAsADate(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		"3600": {time.Hour, time.Hour},
		time.Now().Add(time.Hour).UTC().Format(http.TimeFormat): {59 * time.Minute, time.Hour},
		"99999999999": {24 * time.Hour, 24 * time.Hour},
	} {
		p := serve(t, status(503, "Retry-After", text))
		err := post(t.Context(), newTransport(t, quick), p.URL, "k")
		var l interface{ RetryAfter() time.Duration }
		if !errors.As(err, &l) || l.RetryAfter() < want[0] || l.RetryAfter() > want[1] {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"-1", "soon", "0", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)} {
		p := serve(t, status(429, "Retry-After", text))
		if err := post(t.Context(), newTransport(t, quick), p.URL, "k"); err != nil || len(p.requests()) != 2 {
			t.Errorf("%q: %v after %d requests", text, err, len(p.requests()))
		}
	}
}

func TestAConnectionThatIsRefusedIsCertainlyNotDone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://user:geheim@" + listener.Addr().String() + "/?token=geheim"
	_ = listener.Close()
	for _, key := range []string{"k", ""} {
		err := post(t.Context(), newTransport(t, quick), url, key)
		if err == nil || !certain(err) || isPermanent(err) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

func TestAnAttemptThatTakesTooLongIsTriedAgain(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	cfg := quick
	cfg.AttemptTimeout = 50 * time.Millisecond
	if err := post(t.Context(), newTransport(t, cfg), p.URL, "k"); err != nil || len(p.requests()) != 2 {
		t.Errorf("%v after %d requests", err, len(p.requests()))
	}
}

func TestTheContextIsObeyedWhileItWaits(t *testing.T) {
	p := serve(t, status(503, "Retry-After", "20"))
	ctx, cancel := context.WithCancel(t.Context())
	cfg := quick
	done := make(chan error, 1)
	transport := newTransport(t, cfg)
	go func() { done <- post(ctx, transport, p.URL, "k") }()
	for len(p.requests()) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on waiting")
	}
}

func TestACircuitOpensAndCloses(t *testing.T) {
	p := serve(t, status(500), status(500), status(500))
	cfg := quick
	cfg.MaxAttempts, cfg.BreakerFailures, cfg.BreakerDelay = 1, 3, 200*time.Millisecond
	transport := newTransport(t, cfg)
	for range 3 {
		if err := post(t.Context(), transport, p.URL, "k"); err == nil || errors.Is(err, circuitbreaker.ErrOpen) {
			t.Errorf("the error is %v", err)
		}
	}
	err := post(t.Context(), transport, p.URL, "k")
	var l interface{ RetryAfter() time.Duration }
	if !errors.Is(err, circuitbreaker.ErrOpen) || !certain(err) || !errors.As(err, &l) || l.RetryAfter() <= 0 || l.RetryAfter() > 300*time.Millisecond {
		t.Fatalf("the circuit is not open: %v", err)
	}
	other := serve(t)
	if err := post(t.Context(), transport, other.URL, "k"); err != nil {
		t.Errorf("another host: %v", err)
	}
	if n := len(p.requests()); n != 3 {
		t.Errorf("%d requests to a host whose circuit is open", n)
	}
	<-time.After(l.RetryAfter() + 50*time.Millisecond)
	if err := post(t.Context(), transport, p.URL, "k"); err != nil {
		t.Errorf("after its delay: %v", err)
	}
}

func TestAThousandClientsAfterAnOutageArriveSpreadOut(t *testing.T) {
	const clients, bucket = 1000, 100 * time.Millisecond
	var mu sync.Mutex
	var arrivals []time.Time
	var down atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Add(1) <= clients {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		arrivals = append(arrivals, time.Now())
	}))
	defer server.Close()
	base := &http.Transport{MaxIdleConnsPerHost: clients}
	defer base.CloseIdleConnections()
	transport := newTransport(t, httpeffect.Config{Base: base, BreakerFailures: 10 * clients, Initial: time.Second, MaxAttempts: 5})
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			if err := post(t.Context(), transport, server.URL, fmt.Sprint("k", i)); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	slices.SortFunc(arrivals, time.Time.Compare)
	histogram := map[int]int{}
	for _, a := range arrivals {
		histogram[int(a.Sub(arrivals[0])/bucket)]++
	}
	most := 0
	for _, n := range histogram {
		most = max(most, n)
	}
	t.Logf("arrivals in buckets of %v: %v", bucket, histogram)
	// Together they would come in one or two buckets.
	if len(arrivals) != clients || most > clients/3 {
		t.Errorf("%d arrivals, %d of them in one bucket of %v: %v", len(arrivals), most, bucket, histogram)
	}
}

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

func TestRequestsThatCannotBeMeantAreRefused(t *testing.T) {
	p := serve(t)
	cfg := quick
	cfg.MaxBody = 3
	transport := newTransport(t, cfg)
	if err := post(t.Context(), transport, p.URL, "k"); err == nil || !isPermanent(err) {
		t.Errorf("a body that is too long: %v", err)
	}
	req, _ := http.NewRequestWithContext(effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k"}), http.MethodPost, p.URL, nil)
	req.Header.Set("Idempotency-Key", "another")
	if _, err := transport.Do(req); err == nil || !isPermanent(err) {
		t.Errorf("two keys: %v", err)
	}
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	for name, cfg := range map[string]httpeffect.Config{
		"header": {Header: "a b"}, "attempts": {MaxAttempts: -1}, "wait": {MaxWait: -1}, "timeout": {AttemptTimeout: -1},
		"breaker": {BreakerFailures: -1}, "body": {MaxBody: -1}, "pause": {Initial: -1},
	} {
		if _, err := httpeffect.New(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAClientGetsTheLastAnswerWhateverItsStatus(t *testing.T) {
	p := serve(t, status(500), status(404))
	client := &http.Client{Transport: newTransport(t, quick)}
	req, _ := http.NewRequestWithContext(effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k"}), http.MethodPost, p.URL, strings.NewReader("x"))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	err = httpeffect.Check(resp)
	var said *httpeffect.StatusError
	if !errors.As(err, &said) || said.Status != 404 || said.Text != "because [2J" || certain(err) {
		t.Errorf("the error is %v", err)
	}
}
