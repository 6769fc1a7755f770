package demo

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/sekali/sekali/effect/httpeffect"
)

const (
	// courierPatience is how long a label is waited for.
	courierPatience = 200 * time.Millisecond
	// effectLease is short, so that what a killed consumer was buying is gone
	// on with soon.
	effectLease = time.Second
	// keyWindow is how long the courier remembers keys: longer than any demo.
	keyWindow = time.Hour
)

// newCourierTransport sends what the courier-service asks for, again where
// that is safe.
func newCourierTransport() (*httpeffect.Transport, error) {
	return httpeffect.New(httpeffect.Config{
		Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond, AttemptTimeout: courierPatience,
		BreakerDelay: 100 * time.Millisecond,
	})
}

// buyLabel buys a label for an order, in the way of whoever sends: with the
// idempotency key of its effect, or without.
func buyLabel(ctx context.Context, send func(*http.Request) (*http.Response, error), url, orderID string) (label int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(orderID))
	if err != nil {
		return 0, err
	}
	resp, err := send(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct{ Label int }
	err = json.NewDecoder(resp.Body).Decode(&answer)
	return answer.Label, err
}

// naively sends as it is often written: no key, and what gets no answer is
// sent again when the message comes again.
func naively(req *http.Request) (*http.Response, error) {
	resp, err := (&http.Client{Timeout: courierPatience}).Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err = errors.New("the courier says " + resp.Status)
	}
	return resp, err
}
