package weakfilter_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/weakfilter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nobody(t *testing.T) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func is[Tx any](v any) bool {
	_, is := v.(store.Store[Tx])
	return is
}

// A type that lacks a method of an interface cannot be handed where that is
// wanted: the compiler refuses it.
func TestAFilterIsNoStore(t *testing.T) {
	t.Parallel()
	filter := &weakfilter.Filter{}
	if is[pgx.Tx](filter) || is[*sql.Tx](filter) || is[any](filter) {
		t.Error("it is a store")
	}
	has := reflect.TypeOf(filter)
	for method := range reflect.TypeFor[store.Store[any]]().Methods() {
		if _, found := has.MethodByName(method.Name); found {
			t.Errorf("it has the method %s of a store", method.Name)
		}
	}
	for _, name := range []string{"Unwrap", "Effects", "Outbox", "DeadLetters", "Admin"} {
		if _, found := has.MethodByName(name); found {
			t.Errorf("it has the method %s, by which stores are found", name)
		}
	}
}

func TestContradictionsAreRefusedWithWhatToChange(t *testing.T) {
	t.Parallel()
	c := nobody(t)
	for says, cfg := range map[string]weakfilter.Config{
		"name is empty":        {},
		"negative":             {Name: "n", Lease: -1},
		"100ms at least":       {Name: "n", Lease: time.Millisecond},
		"make it longer":       {Name: "n", Retention: time.Second},
		"a control character":  {Name: "a\nb"},
		"starts or ends with ": {Name: " n"},
	} {
		if _, err := weakfilter.New(c, cfg); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: got %v, want one line with %q", cfg, err, says)
		}
	}
}

func TestWithoutRedisWorkIsNotBegun(t *testing.T) {
	t.Parallel()
	f, err := weakfilter.New(nobody(t), weakfilter.Config{Name: "mailer"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]error{"": store.ErrNoKey, " \t": store.ErrNoKey, "key": nil} {
		outcome, err := f.Do(t.Context(), key, func(context.Context) error {
			t.Error("work was begun")
			return nil
		})
		if outcome != weakfilter.Failed || err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("key %q: %v, %v", key, outcome, err)
		}
	}
}

func TestOutcomesHaveNames(t *testing.T) {
	t.Parallel()
	for o, want := range map[weakfilter.Outcome]string{
		weakfilter.Failed: "failed", weakfilter.Processed: "processed", weakfilter.Duplicate: "duplicate",
		weakfilter.InProgress: "in progress", 9: "unknown",
	} {
		if o.String() != want {
			t.Errorf("%d is called %q, want %q", o, o, want)
		}
	}
}
