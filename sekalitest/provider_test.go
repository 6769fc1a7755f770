package sekalitest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// ask sends a request to a provider, and returns status and body.
func ask(t *testing.T, p *Provider, key, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/labels", io.MultiReader(strings.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestAProviderActsOnceForEachKey(t *testing.T) {
	p := NewProvider(t)
	_, first, _ := ask(t, p, "k1", "a")
	status, second, err := ask(t, p, "k1", "a")
	if err != nil || status != 200 || first != second || first == "" || p.Acts() != 1 {
		t.Errorf("the same again: %d %q after %q, %d acts, %v; want 200, the same answer, 1 act", status, second, first, p.Acts(), err)
	}
	if _, other, _ := ask(t, p, "k2", "b"); other == first || p.Acts() != 2 {
		t.Errorf("another key: %q, %d acts; want another answer, 2 acts", other, p.Acts())
	}
	if status, _, _ := ask(t, p, "k1", "other"); status != http.StatusUnprocessableEntity || p.Acts() != 2 {
		t.Errorf("another body under the key: %d, %d acts; want 422, 2 acts", status, p.Acts())
	}
	for range 2 {
		if status, _, _ := ask(t, p, "", "a"); status != 200 {
			t.Errorf("without a key: %d", status)
		}
	}
	if p.Acts() != 4 {
		t.Errorf("two requests without a key: %d acts in all, want 4", p.Acts())
	}
	if n := p.Requests(); n["k1"] != 3 || n["k2"] != 1 || n[""] != 2 {
		t.Errorf("requests by key: %v", n)
	}
}

func TestAProviderMeetsOneRequestWithEachFault(t *testing.T) {
	p := NewProvider(t)
	p.Next(Refuse, Mute, Slow)
	if status, _, _ := ask(t, p, "k", "a"); status != http.StatusServiceUnavailable || p.Acts() != 0 {
		t.Errorf("refused: %d, %d acts; want 503, none", status, p.Acts())
	}
	if _, _, err := ask(t, p, "k", "a"); !errors.Is(err, io.EOF) || p.Acts() != 1 {
		t.Errorf("mute: %v, %d acts; want EOF, 1", err, p.Acts())
	}
	if status, _, _ := ask(t, p, "k", "a"); status != 200 || p.Acts() != 1 {
		t.Errorf("slow: %d, %d acts; want 200, 1", status, p.Acts())
	}
}

func TestAProviderAnswers409WhileTheFirstRequestIsUnderWay(t *testing.T) {
	p := NewProvider(t)
	acting, goOn := make(chan struct{}), make(chan struct{})
	p.Next(Slow)
	p.slow = func(context.Context) { close(acting); <-goOn }
	done := make(chan int)
	go func() {
		status, _, _ := ask(t, p, "k", "a")
		done <- status
	}()
	<-acting
	if status, _, _ := ask(t, p, "k", "a"); status != http.StatusConflict {
		t.Errorf("while it is under way: %d, want 409", status)
	}
	close(goOn)
	if status := <-done; status != 200 || p.Acts() != 1 {
		t.Errorf("the first: %d, %d acts; want 200, 1", status, p.Acts())
	}
}
