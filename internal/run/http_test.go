package run_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/run"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/otelsekali"
)

// served runs a file with http: until the function that it returns is called.
type served struct {
	t       *testing.T
	address string
	client  *http.Client
}

func (s *shop) serve(text string, mounts ...run.Mount) (_ *served, stop func()) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	v := &served{s.t, listener.Addr().String(), &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}}
	_ = listener.Close()
	plan := s.load(text + "http: {listen: \"" + v.address + "\"}\n")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run.Run(ctx, plan, run.Options{Source: s.broker.NewSource("stock-service"), Log: slog.New(slog.DiscardHandler), Mounts: mounts})
	}()
	return v, func() {
		v.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	}
}

// get returns a page; a status of 0: nobody listens.
func (v *served) get(path string) (status int, text string) {
	v.t.Helper()
	answer, err := v.client.Get("http://" + v.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// await gets a page until it is as it should be.
func (v *served) await(path string, good func(status int, text string) bool) string {
	v.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		status, text := v.get(path)
		if good(status, text) {
			return text
		}
		if time.Now().After(end) {
			v.t.Fatalf("%s: %d %s", path, status, text)
		}
	}
}

func (v *served) awaitLine(lines ...string) string {
	v.t.Helper()
	return v.await("/metrics", func(_ int, text string) bool {
		return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(text, l) })
	})
}

const taking = `
handle:
  - sql: UPDATE stock SET quantity = quantity - :n WHERE sku = :sku
    params: {n: body.n, sku: body.sku}
    rows: 1
`

func TestMetricsAndHealthAreServedWhileItRuns(t *testing.T) {
	everywhere(t, func(t *testing.T, s *shop) {
		desks := make(chan admin.Admin, 1)
		v, stop := s.serve(taking+"retention: {keep: 240h, max_duplicate_age: 24h, every: 1s}\noutbox: {relay: false}\n", func(mux *http.ServeMux, desk admin.Admin) {
			mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") })
			desks <- desk
		})
		ready := v.await("/readyz", func(status int, _ string) bool { return status == http.StatusOK })
		if ready != "running\n" {
			t.Errorf("it says %q of itself", ready)
		}
		s.publish("order-1", `{"n":1,"sku":"KOPI"}`)
		s.publish("order-1", `{"n":1,"sku":"KOPI"}`)
		s.publish("order-2", `{"n":1,"sku":"NONE"}`)
		text := v.awaitLine(
			`sekali_messages_total{consumer="stock-service",outcome="processed"} 1`, `sekali_duplicates_total{cause="repeat",consumer="stock-service"} 1`,
			`sekali_duplicate_age_seconds_count{consumer="stock-service"} 1`, `sekali_dead_letters_total{consumer="stock-service",reason="permanent"} 1`,
			`sekali_prune_runs_total{result="done"}`, `sekali_consumers{consumer="stock-service"} 1`, "go_goroutines ", "process_start_time_seconds ",
			`sekali_database_up 1`, `sekali_outbox_depth{status="pending"} 0`,
		)
		if strings.Contains(text, "order-") || strings.Contains(text, "KOPI") {
			t.Errorf("metrics show keys or bodies:\n%s", text)
		}
		if _, page := v.get("/"); page != "the page" {
			t.Errorf("the page is %q", page)
		}
		if letters, err := (<-desks).DeadLetters.List(t.Context(), deadletter.Filter{}); err != nil || len(letters) != 1 {
			t.Errorf("the page's desk shows %v, %v", letters, err)
		}
		if status, health := v.get("/healthz"); status != http.StatusOK || health != "running\n" {
			t.Errorf("it lives: %d %q", status, health)
		}
		stop()
		if status, text := v.get("/healthz"); status != 0 {
			t.Errorf("after the end it says %d %q", status, text)
		}
	})
}

func TestWhileItStopsItServesAndIsNotReady(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t))
	called, release := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(called) })
	courier := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		first()
		<-release
	}))
	defer courier.Close()
	v, stop := s.serve("effects:\n  - {name: label, url: " + courier.URL + "/}\n")
	v.await("/readyz", func(status int, _ string) bool { return status == http.StatusOK })
	s.publish("order-1", `{}`)
	<-called // it does not end before this has
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	v.await("/readyz", func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.HasPrefix(text, "stopping")
	})
	if status, _ := v.get("/metrics"); status != http.StatusOK {
		t.Errorf("metrics have the status %d", status)
	}
	close(release)
	<-ended
}

func TestAnAddressThatIsTakenIsToldByItsLine(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	plan := s.load(taking + "http:\n  listen: " + listener.Addr().String() + "\n")
	err = run.Run(t.Context(), plan, run.Options{Source: s.broker.NewSource("stock-service"), Log: slog.New(slog.DiscardHandler)})
	problems := config.Problems(nil)
	if !errors.As(err, &problems) || !strings.HasPrefix(err.Error(), "line 14, column 11: http.listen: ") || !strings.Contains(err.Error(), "another address") {
		t.Errorf("it says %v", err)
	}
}

func TestAProcessWithoutItsDatabaseLivesAndIsNotReady(t *testing.T) {
	s := newShop(t, dbtest.SQLite(t))
	s.db.URL = "mysql://nobody@127.0.0.1:1/none"
	v, stop := s.serve(taking)
	text := v.await("/readyz", func(status int, _ string) bool { return status == http.StatusServiceUnavailable })
	if status, _ := v.get("/healthz"); status != http.StatusOK || text != "starting\n" {
		t.Errorf("%d, %q", status, text)
	}
	stop()
}

// What the alert rules of the docs ask for has to be there.
func TestTheDocsAlertsNameMetricsThatAreServed(t *testing.T) {
	docs, err := os.ReadFile("../../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\bsekali_[a-z_]+`).FindAllString(string(docs), -1)
	if len(names) < 8 {
		t.Fatalf("the docs name %q", names)
	}
	known := map[string]bool{}
	for _, m := range otelsekali.Metrics() {
		name := strings.ReplaceAll(m.Name, ".", "_")
		if m.Unit == "s" {
			name += "_seconds"
		}
		switch m.Kind {
		case otelsekali.Counter:
			known[name+"_total"] = true
		case otelsekali.Histogram:
			known[name+"_bucket"], known[name+"_count"], known[name+"_sum"] = true, true, true
		default:
			known[name] = true
		}
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("docs/telemetry.md asks for %s, which is not there", name)
		}
	}
	// And the names above are those that are served.
	s := newShop(t, dbtest.SQLite(t))
	v, stop := s.serve(taking)
	defer stop()
	s.publish("order-1", `{"n":1,"sku":"KOPI"}`)
	text := v.awaitLine("sekali_settled_total", "sekali_outbox_lag_seconds", "sekali_handler_duration_seconds_bucket")
	for _, line := range regexp.MustCompile(`(?m)^sekali_[a-z_]+`).FindAllString(text, -1) {
		if !known[line] {
			t.Errorf("%s is served, and was not expected", line)
		}
	}
}
