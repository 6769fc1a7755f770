package natsbroker_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/natsbroker"
)

func told(t *testing.T, f fixture) {
	s := f.source(t)
	want := func(age time.Duration) {
		t.Helper()
		got, limited, err := broker.Retention(s).Retention(t.Context())
		if err != nil || got != age || limited != (age > 0) {
			t.Errorf("told %v, %v, %v; want %v", got, limited, err, age)
		}
	}
	want(0) // no limit of time
	keep := func(age time.Duration) {
		t.Helper()
		_, err := f.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: f.name, Subjects: []string{f.name + ".>"}, MaxAge: age})
		if err != nil {
			t.Fatal(err)
		}
	}
	keep(36 * time.Hour)
	want(36 * time.Hour)
	keep(48 * time.Hour)
	want(48 * time.Hour)
	s = f.source(t, func(c *natsbroker.SourceConfig) { c.Stream = "NO_SUCH_STREAM" })
	if _, _, err := s.Retention(t.Context()); err == nil {
		t.Error("the retention of a stream that is not there was told")
	}
}
