package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/sekali/sekali/effect"
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

// buyLabel buys a label for an order. key is the idempotency key; the naive
// consumer has none.
func buyLabel(ctx context.Context, client *http.Client, url, key, orderID string) (label int, err error) {
	ctx, cancel := context.WithTimeout(ctx, courierPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(orderID))
	if err != nil {
		return 0, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
		req.GetBody = nil // net/http would send it again by itself
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return 0, effect.NotDone(err)
	case err != nil:
		return 0, err // whether it has happened, nobody knows
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode == http.StatusServiceUnavailable:
		return 0, effect.NotDone(fmt.Errorf("the courier says: %s", strings.TrimSpace(string(text))))
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("the courier says: %s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	var answer struct{ Label int }
	err = json.Unmarshal(text, &answer)
	return answer.Label, err
}
