//go:build !fast

package demo

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/redistest"
)

// openRedisFeed opens a feed of the test's own; it is closed at the end.
func openRedisFeed(t *testing.T) *redisFeed {
	t.Helper()
	f, err := openFeed(t.Context(), redistest.URL(t), redistest.Key(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.close(context.Background(), false) })
	return f.(*redisFeed)
}

// streams returns how many of a run's streams are on the server.
func streams(t *testing.T, c *redis.Client, pattern string) []string {
	t.Helper()
	found, err := c.Keys(t.Context(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestTheDemoIsExactOnRedis(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := redistest.Client(t)
	report, err := Play(t.Context(), Config{
		Orders: 100, Duplicates: 0.2, Crashes: 1, Seed: 1, Broker: redistest.URL(t), Keep: true, Command: []string{os.Args[0]},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK {
		t.Errorf("the report is %+v", report)
	}
	kept := ""
	for _, k := range report.Kept {
		if _, rest, ok := strings.Cut(k, "the stream "); ok {
			kept, _, _ = strings.Cut(rest, " ")
		}
	}
	if found := streams(t, c, kept); kept == "" || len(found) != 1 {
		t.Errorf("the report says that %q was kept; of that stream there are %v", report.Kept, found)
	}
	if err := c.Del(t.Context(), kept).Err(); err != nil {
		t.Error(err)
	}
}

func TestARedisFeedLeavesNothingUnlessItIsKept(t *testing.T) {
	for _, keep := range []bool{true, false} {
		f := openRedisFeed(t)
		if err := publish(t, f, newPlan(Config{Orders: 5, Seed: 1})); err != nil {
			t.Fatal(err)
		}
		if err := f.close(t.Context(), keep); err != nil {
			t.Fatal(err)
		}
		c := redistest.Client(t)
		if found := streams(t, c, f.stream); len(found) == 1 != keep {
			t.Errorf("kept: %v, and on the server is %v", keep, found)
		}
		if err := c.Del(t.Context(), f.stream).Err(); err != nil {
			t.Error(err)
		}
	}
}

func TestARedisGroupHasDrainedWhenItHadTheLastOrderAndNothingIsPending(t *testing.T) {
	f := openRedisFeed(t)
	want := func(when, consumer string, drained bool) {
		t.Helper()
		if got, err := f.drained(t.Context(), consumer); err != nil || got != drained {
			t.Errorf("%s: drained %v, %v", when, got, err)
		}
	}
	if err := publish(t, f, newPlan(Config{Orders: 5, Seed: 1})); err != nil {
		t.Fatal(err)
	}
	want("there is no group", stockService, false)
	if err := f.client.XGroupCreate(t.Context(), f.stream, stockService, "0").Err(); err != nil {
		t.Fatal(err)
	}
	want("nothing was read", stockService, false)
	read := func(count int64) (ids []string) {
		t.Helper()
		got, err := f.client.XReadGroup(t.Context(), &redis.XReadGroupArgs{
			Group: stockService, Consumer: "one", Streams: []string{f.stream, ">"}, Count: count,
		}).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got[0].Messages {
			ids = append(ids, m.ID)
		}
		if err := f.client.XAck(t.Context(), f.stream, stockService, ids[1:]...).Err(); err != nil {
			t.Fatal(err)
		}
		return ids[:1]
	}
	first := read(2)
	rest := read(100)
	want("two are pending", stockService, false)
	ack := func(ids []string) {
		if err := f.client.XAck(t.Context(), f.stream, stockService, ids...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ack(first)
	want("one is pending", stockService, false)
	ack(rest)
	want("all are acknowledged", stockService, true)
	want("it is another group", courierService, false)
	if err := publish(t, f, newPlan(Config{Orders: 1, Seed: 2})); err != nil {
		t.Fatal(err)
	}
	want("there is a new one", stockService, false)
}

func TestTheRedisFeedShowsNoPassword(t *testing.T) {
	f := &redisFeed{url: "redis://kopi:geheim@127.0.0.1:1"}
	if got := f.String(); strings.Contains(got, "geheim") || got != redisbroker.RedactURL(f.url) {
		t.Errorf("it is called %s", got)
	}
	if _, err := openFeed(t.Context(), f.url, "run", t.TempDir()); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("the error is %v", err)
	}
}
