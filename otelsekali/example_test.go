package otelsekali_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker/membroker"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/otelsekali"
)

// Metrics of a consumer, as Prometheus reads them.
func Example() {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	if err != nil {
		log.Fatal(err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	telemetry, err := otelsekali.New(otelsekali.Config{MeterProvider: meters, System: "memory"})
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	orders, store := membroker.New(membroker.Options{}), memstore.New()
	consumer, err := sekali.NewConsumer(sekali.Config[*memstore.Tx]{
		Name: "stock-service", Source: orders.NewSource("stock-service"), Store: store, Key: sekali.MessageID(), Observer: telemetry,
		Handle: func(context.Context, *memstore.Tx, *sekali.Message) error { return nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		_ = orders.Publish(ctx, sekali.Message{}.Message, sekali.Message{}.Message)
		_ = orders.WaitEmpty(ctx, "stock-service")
		stop()
	}()
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}

	families, _ := registry.Gather()
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "sekali_messages") {
			for _, m := range f.GetMetric() {
				fmt.Println(f.GetName(), m.GetLabel()[1].GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// sekali_messages_total processed 2
}
