package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/otelsekali"
)

// Mount puts pages beside /metrics, /healthz and /readyz, on the address of
// http.listen, as soon as the database is there. What they show is the desk's.
type Mount func(mux *http.ServeMux, desk admin.Admin)

// drainTimeout bounds how long answers that are under way are waited for.
const drainTimeout = 3 * time.Second

// serve serves metrics and health until the process ends. It leaves out
// nothing for want of a database: that it is missing is what health tells.
func (e *engine) serve(ctx context.Context, listen config.Text) error {
	metrics, err := e.metrics()
	if err != nil {
		return err
	}
	e.mux = http.NewServeMux()
	e.mux.Handle("GET /metrics", metrics)
	e.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, text, _ := e.health.told(time.Now())
		fmt.Fprintln(w, text)
	})
	e.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ok, text := e.health.ready(r.Context())
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, text)
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen.Value)
	if err != nil {
		return config.Problems{listen.Problem("nothing can be served there: "+err.Error(), "end what listens there, or give another address")}
	}
	server := &http.Server{Handler: e.mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	e.closers = append(e.closers, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // whoever is left has had time
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listen.Value, err)
		}
		return nil
	})
	return nil
}

// metrics makes the telemetry of this process and returns what Prometheus reads.
// There are no traces: nothing here exports them.
func (e *engine) metrics() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	e.closers = append(e.closers, provider.Shutdown)
	e.telemetry, err = otelsekali.New(otelsekali.Config{MeterProvider: provider, TracerProvider: noop.NewTracerProvider()})
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	// More readers than these are turned away, not kept waiting.
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}), nil
}

// opened has what is served look at the database.
func (e *engine) opened(s any) error {
	if e.mux == nil {
		return nil
	}
	e.health.database(e.db.SQL.PingContext)
	desk, ok := deskOf(s)
	if !ok {
		return fmt.Errorf("a %T has no desk", s)
	}
	for _, mount := range e.options.Mounts {
		mount(e.mux, desk)
	}
	stop, err := e.telemetry.Watch(desk.Health, 0)
	if err != nil {
		return err
	}
	e.closers = append(e.closers, func(context.Context) error { return stop() })
	return nil
}
