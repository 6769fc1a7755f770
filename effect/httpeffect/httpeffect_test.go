package httpeffect_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
)

// quiet is for what a server says about tests that mean it.
var quiet = log.New(io.Discard, "", 0)

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
		ctx = effect.WithCall(ctx, effect.Call{IdempotencyKey: key, Repeats: true})
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
	four := func(h http.HandlerFunc) []http.HandlerFunc { return []http.HandlerFunc{h, h, h, h} }
	for name, c := range map[string]struct {
		script    []http.HandlerFunc
		key       string
		requests  int
		fails     bool
		certain   bool // that it has not happened
		permanent bool
		later     bool // it says when to come back
	}{
		"success":                               {nil, "k", 1, false, false, false, false},
		"429 then success":                      {[]http.HandlerFunc{status(429)}, "k", 2, false, false, false, false},
		"429 without a key":                     {[]http.HandlerFunc{status(429)}, "", 1, true, true, false, false},
		"429 for ever":                          {four(status(429)), "k", 4, true, true, false, false},
		"429 for ever, with a Retry-After":      {[]http.HandlerFunc{status(429, "Retry-After", "31")}, "k", 1, true, true, false, true},
		"503 with Retry-After":                  {[]http.HandlerFunc{status(503, "Retry-After", "0")}, "k", 2, false, false, false, false},
		"503 with one, without a key":           {[]http.HandlerFunc{status(503, "Retry-After", "1")}, "", 1, true, true, false, true},
		"503 with one of zero for ever":         {four(status(503, "Retry-After", "0")), "k", 4, true, true, false, false},
		"503 with one that is garbage":          {four(status(503, "Retry-After", "soon")), "k", 4, true, false, false, false},
		"503 with one that is too long":         {[]http.HandlerFunc{status(503, "Retry-After", "3600")}, "k", 1, true, true, false, true},
		"503 without, with a key":               {[]http.HandlerFunc{status(503)}, "k", 2, false, false, false, false},
		"503 without, without a key":            {[]http.HandlerFunc{status(503)}, "", 1, true, false, false, false},
		"500 with a key":                        {[]http.HandlerFunc{status(500), status(502), status(504)}, "k", 4, false, false, false, false},
		"500 without a key":                     {[]http.HandlerFunc{status(500)}, "", 1, true, false, false, false},
		"500 for ever":                          {four(status(500)), "k", 4, true, false, false, false},
		"408":                                   {[]http.HandlerFunc{status(408)}, "k", 2, false, false, false, false},
		"409 is in progress":                    {[]http.HandlerFunc{status(409)}, "k", 2, false, false, false, false},
		"409 without a key":                     {[]http.HandlerFunc{status(409)}, "", 1, true, false, false, false},
		"409 for ever":                          {four(status(409)), "k", 4, true, false, false, false},
		"409 for long":                          {[]http.HandlerFunc{status(409, "Retry-After", "60")}, "k", 1, true, false, false, true},
		"422":                                   {[]http.HandlerFunc{status(422)}, "k", 1, true, false, true, false},
		"400":                                   {[]http.HandlerFunc{status(400)}, "k", 1, true, true, true, false},
		"403 with a Retry-After":                {[]http.HandlerFunc{status(403, "Retry-After", "5")}, "k", 1, true, true, true, false},
		"404 behind a 500":                      {[]http.HandlerFunc{status(500), status(404)}, "k", 2, true, false, true, false},
		"404 behind a 429":                      {[]http.HandlerFunc{status(429), status(404)}, "k", 2, true, true, true, false},
		"429 for ever behind a 500":             {[]http.HandlerFunc{status(500), status(429), status(429), status(429)}, "k", 4, true, false, false, false},
		"a redirect":                            {[]http.HandlerFunc{status(302, "Location", "/")}, "k", 1, true, false, true, false},
		"a redirect of the POST":                {[]http.HandlerFunc{status(308, "Location", "/")}, "k", 1, true, false, true, false},
		"doubt that the provider makes up":      {[]http.HandlerFunc{status(400, "Sekali-Earlier-Attempt", "unknown")}, "k", 1, true, true, true, false},
		"cut, with a key":                       {[]http.HandlerFunc{cut(&p, false)}, "k", 2, false, false, false, false},
		"cut after it has acted, with a key":    {[]http.HandlerFunc{cut(&p, true)}, "k", 2, false, false, false, false},
		"cut after it has acted, without a key": {[]http.HandlerFunc{cut(&p, true)}, "", 1, true, false, false, false},
		"cut for ever":                          {four(cut(&p, true)), "k", 4, true, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p = serve(t, c.script...)
			err := post(t.Context(), newTransport(t, quick), p.URL, c.key)
			if (err != nil) != c.fails {
				t.Fatalf("the error is %v", err)
			}
			p.check(t, c.key, c.requests)
			if err == nil {
				return
			}
			if _, later := comeBack(err); certain(err) != c.certain || isPermanent(err) != c.permanent || later != c.later {
				t.Errorf("%v: certainly not done %v, permanent %v, later %v", err, certain(err), isPermanent(err), later)
			}
			if strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("the error sends commands to the terminal: %q", err)
			}
		})
	}
}

// check checks that all requests were the same, and sold at most once.
func (p *provider) check(t *testing.T, key string, requests int) {
	t.Helper()
	seen := p.requests()
	if len(seen) != requests {
		t.Errorf("%d requests, want %d: %q", len(seen), requests, seen)
	}
	for _, s := range seen {
		if s != key+" an order" {
			t.Errorf("a request was %q", s)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.sold[key]; n > 1 || len(p.sold) > 1 {
		t.Errorf("sold: %v", p.sold)
	}
}

// comeBack tells when an error wants one to come back.
func comeBack(err error) (time.Duration, bool) {
	var l interface{ RetryAfter() time.Duration }
	if !errors.As(err, &l) {
		return 0, false
	}
	return l.RetryAfter(), true
}

func TestWithoutAKeyTheMethodDecidesWhatIsSentAgain(t *testing.T) {
	for method, want := range map[string]map[int]int{
		http.MethodGet:     {429: 2, 500: 2, 409: 1},
		http.MethodHead:    {429: 2, 500: 2, 409: 1},
		http.MethodOptions: {429: 2, 500: 2, 409: 1},
		http.MethodPut:     {429: 2, 500: 2, 409: 1},
		http.MethodDelete:  {429: 2, 500: 2, 409: 1},
		http.MethodPost:    {429: 1, 500: 1, 409: 1},
		http.MethodPatch:   {429: 1, 500: 1, 409: 1},
	} {
		for code, requests := range want {
			p := serve(t, status(code))
			req, err := http.NewRequestWithContext(t.Context(), method, p.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := newTransport(t, quick).Do(req)
			if (err == nil) != (requests == 2) || len(p.requests()) != requests {
				t.Errorf("%s that gets %d: %v after %d requests, want %d", method, code, err, len(p.requests()), requests)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}
}

func TestAKeyInTheRequestsHeaderIsAKeyToo(t *testing.T) {
	p := serve(t, status(500))
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL, strings.NewReader("an order"))
	req.Header.Set("Idempotency-Key", "k")
	resp, err := newTransport(t, quick).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	p.check(t, "k", 2)
}

func TestAClientGetsTheLastAnswerWhateverItsStatus(t *testing.T) {
	p := serve(t, status(500), status(404), status(307, "Location", "/elsewhere"))
	base := &http.Transport{}
	cfg := quick
	cfg.Base = base
	client := httpeffect.Client(cfg)
	defer client.CloseIdleConnections()
	client.Timeout = time.Minute // it wraps the answer's body
	for _, code := range []int{404, 307} {
		req, _ := http.NewRequestWithContext(effect.WithCall(t.Context(), effect.Call{IdempotencyKey: "k", Repeats: true}), http.MethodPost, p.URL, strings.NewReader("an order"))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Request.Method != http.MethodPost || resp.Request.Context().Err() != nil {
			t.Errorf("the answer's request is %v", resp.Request)
		}
		err = httpeffect.Check(resp)
		var said *httpeffect.StatusError
		if !errors.As(err, &said) || said.Status != code || said.Text != "because [2J" || certain(err) || !isPermanent(err) {
			t.Errorf("the error is %v", err)
		}
	}
	p.check(t, "k", 3)
}

func TestAClientsErrorsAreUnderstoodAndCanHideTheURL(t *testing.T) {
	for name, client := range map[string]*http.Client{
		"a wrong Config": httpeffect.Client(httpeffect.Config{MaxAttempts: -1}),
		"no connection": httpeffect.Client(httpeffect.Config{MaxAttempts: 1, Base: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.DNSError{Err: "no such host", Name: "nowhere"}
			},
		}}),
	} {
		resp, err := client.Post("http://user:geheim@nowhere/?token=geheim", "text/plain", strings.NewReader("x"))
		if err == nil {
			_ = resp.Body.Close()
			t.Fatalf("%s: there is an answer", name)
		}
		if hidden := httpeffect.WithoutURL(err); !certain(err) || !certain(hidden) || strings.Contains(hidden.Error(), "geheim") {
			t.Errorf("%s: %v", name, hidden)
		}
	}
	if err := httpeffect.WithoutURL(nil); err != nil {
		t.Error(err)
	}
}
