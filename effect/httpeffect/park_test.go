package httpeffect_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/effect"
)

// An effect that is parked, or looked up, when its outcome is unknown: then a
// provider without keys must not be asked twice.
func TestWhatIsParkedOrLookedUpIsSentOnceUnlessItWasCertainlyNotDone(t *testing.T) {
	for name, c := range map[string]struct {
		script   []http.HandlerFunc
		method   string
		requests int
	}{
		"cut off":       {[]http.HandlerFunc{cutOff}, http.MethodPost, 1},
		"500":           {[]http.HandlerFunc{status(500)}, http.MethodPost, 1},
		"409":           {[]http.HandlerFunc{status(409)}, http.MethodPost, 1},
		"429":           {[]http.HandlerFunc{status(429)}, http.MethodPost, 2},
		"429, then 500": {[]http.HandlerFunc{status(429), status(500)}, http.MethodPost, 2},
		"500 of a PUT":  {[]http.HandlerFunc{status(500)}, http.MethodPut, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, c.script...)
			transport := newTransport(t, quick)
			ctx := effect.WithCall(context.Background(), effect.Call{IdempotencyKey: "k"})
			req, err := http.NewRequestWithContext(ctx, c.method, p.URL, strings.NewReader("an order"))
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := transport.Do(req); err == nil {
				_ = resp.Body.Close()
			}
			if n := len(p.requests()); n != c.requests {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
		})
	}
}

// cutOff cuts the connection.
func cutOff(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}
