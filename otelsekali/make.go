package otelsekali

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maker makes instruments as the table has them.
type maker struct {
	meter metric.Meter
	errs  []error
}

// described returns the table's line.
func (m *maker) described(name string, kind Kind) Metric {
	i := slices.IndexFunc(table, func(x Metric) bool { return x.Name == name && x.Kind == kind })
	if i < 0 {
		m.failed(name, fmt.Errorf("the table has no such %s", kind))
		return Metric{Name: name}
	}
	return table[i]
}

func (m *maker) failed(name string, err error) {
	if err != nil {
		m.errs = append(m.errs, fmt.Errorf("make metric %s: %w", name, err))
	}
}

func (m *maker) err() error { return errors.Join(m.errs...) }

func (m *maker) counter(name string) metric.Int64Counter {
	d := m.described(name, Counter)
	c, err := m.meter.Int64Counter(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.failed(name, err)
	return c
}

func (m *maker) upDown(name string) metric.Int64UpDownCounter {
	d := m.described(name, UpDownCounter)
	c, err := m.meter.Int64UpDownCounter(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.failed(name, err)
	return c
}

func (m *maker) histogram(name string) metric.Float64Histogram {
	d := m.described(name, Histogram)
	h, err := m.meter.Float64Histogram(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help), metric.WithExplicitBucketBoundaries(d.bounds...))
	m.failed(name, err)
	return h
}

func (m *maker) gauge(name string) metric.Int64Gauge {
	d := m.described(name, Gauge)
	g, err := m.meter.Int64Gauge(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.failed(name, err)
	return g
}

func (m *maker) observed(name string) metric.Float64ObservableGauge {
	d := m.described(name, Gauge)
	g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Help))
	m.failed(name, err)
	return g
}

// count is a counter with its attributes, which are made once: for each
// message they would cost more than the counting. The zero value counts
// nothing.
type count struct {
	counter metric.Int64Counter
	with    []metric.AddOption
}

func counted(c metric.Int64Counter, attributes ...attribute.KeyValue) count {
	return count{c, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}}
}

func (c count) add(n int) {
	if c.counter != nil {
		c.counter.Add(context.Background(), int64(n), c.with...)
	}
}

// record is a histogram with its attributes.
type record struct {
	histogram metric.Float64Histogram
	with      []metric.RecordOption
}

func recorded(h metric.Float64Histogram, attributes ...attribute.KeyValue) record {
	return record{h, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}}
}

func (r record) value(v float64)      { r.histogram.Record(context.Background(), v, r.with...) }
func (r record) took(d time.Duration) { r.value(d.Seconds()) }
