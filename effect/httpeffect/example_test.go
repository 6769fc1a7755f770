package httpeffect_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/effect/httpeffect"
)

// A courier that acts, and whose answer is lost: the request is repeated under
// the same key, and one label is bought.
func Example() {
	labels := map[string]int{}
	courier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if labels[key] == 0 {
			labels[key] = len(labels) + 1
			panic(http.ErrAbortHandler) // the label is bought, and nobody hears of it
		}
		_, _ = fmt.Fprintf(w, "label %d", labels[key])
	}))
	defer courier.Close()

	transport, err := httpeffect.New(httpeffect.Config{Initial: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.CloseIdleConnections()
	createLabel := func(ctx context.Context, order string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, courier.URL, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		resp, err := transport.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		label, err := io.ReadAll(resp.Body)
		return string(label), err
	}

	// In a Consumer's Prepare, effect.Do makes this context.
	ctx := effect.WithCall(context.Background(), effect.Call{
		IdempotencyKey: effect.IdempotencyKey("stock-service", "order-42:paid", "create-label"),
		Repeats:        true,
	})
	label, err := createLabel(ctx, "order 42")
	fmt.Println(label, err, "- labels bought:", len(labels))
	// Output: label 1 <nil> - labels bought: 1
}

// A client of one's own library, which wants an *http.Client.
func ExampleClient() {
	courier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		http.Error(w, "closed for stocktaking", http.StatusServiceUnavailable)
	}))
	defer courier.Close()

	client := httpeffect.Client(httpeffect.Config{})
	defer client.CloseIdleConnections()
	resp, err := client.Post(courier.URL+"/?token=secret", "text/plain", strings.NewReader("order 42"))
	if err != nil {
		fmt.Println(httpeffect.WithoutURL(err))
		return
	}
	err = httpeffect.Check(resp)
	fmt.Println(err)
	var later interface{ RetryAfter() time.Duration }
	if errors.As(err, &later) {
		fmt.Println("come back in", later.RetryAfter())
	}
	// Output:
	// the provider says 503 Service Unavailable: closed for stocktaking
	// come back in 2m0s
}
