//go:build !fast

package redisbroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/redistest"
)

// bench is a stream of a test's own, with helpers that fail the test.
type bench struct {
	*testing.T
	*redis.Client
	stream string
	n      int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	b := &bench{T: t, stream: redistest.Key(t)}
	b.Client = redistest.Client(t) // closed before the key is deleted
	return b
}

// source opens a source; edit changes its config.
func (b *bench) source(edit ...func(*redisbroker.SourceConfig)) *redisbroker.Source {
	b.Helper()
	return b.sourceOn(b.Client, edit...)
}

func (b *bench) sourceOn(c redis.UniversalClient, edit ...func(*redisbroker.SourceConfig)) *redisbroker.Source {
	b.Helper()
	cfg := redisbroker.SourceConfig{Stream: b.stream, Group: group}
	for _, e := range edit {
		e(&cfg)
	}
	return newSource(b.T, c, cfg)
}

func short(c *redisbroker.SourceConfig) { c.AckWait = 500 * time.Millisecond }

func onlyNew(c *redisbroker.SourceConfig) { c.OnlyNew = true }

// add adds n entries and returns their ids.
func (b *bench) add(n int) []string {
	b.Helper()
	ids := make([]string, n)
	for i := range ids {
		b.n++
		id, err := b.XAdd(b.Context(), &redis.XAddArgs{Stream: b.stream, Values: []any{"body", fmt.Sprint(b.n)}}).Result()
		if err != nil {
			b.Fatal(err)
		}
		ids[i] = id
	}
	return ids
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) close(s broker.Source) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b.ok(s.Close(ctx))
}

// pending returns the owners of pending entries with their counts of
// deliveries, in the stream's order.
func (b *bench) pending() (owners []string, counts []int64) {
	b.Helper()
	all, err := b.XPendingExt(b.Context(), &redis.XPendingExtArgs{Stream: b.stream, Group: group, Start: "-", End: "+", Count: 10_000}).Result()
	b.ok(err)
	for _, p := range all {
		owners, counts = append(owners, p.Consumer), append(counts, p.RetryCount)
	}
	return owners, counts
}

func (b *bench) wantPending(n int) {
	b.Helper()
	if owners, _ := b.pending(); len(owners) != n {
		b.Errorf("%d entries are pending, want %d", len(owners), n)
	}
}

// consumers returns the names in the group.
func (b *bench) consumers() (names []string) {
	b.Helper()
	all, err := b.XInfoConsumers(b.Context(), b.stream, group).Result()
	b.ok(err)
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// expires waits for the time of a delivery that has little left.
func (b *bench) expires(d *broker.Delivery) {
	b.Helper()
	for limit := time.Now().Add(5 * time.Second); !d.Expired(); {
		if time.Now().After(limit) {
			b.Fatalf("%s was kept alive, and is somebody else's", d.Message.Body)
		}
		b.ok(b.Ping(b.Context()).Err())
	}
}

func bodies(d []*broker.Delivery) (all []string) {
	for _, x := range d {
		all = append(all, string(x.Message.Body))
	}
	return all
}

// trouble returns the next error of Receive.
func (b *bench) trouble(s broker.Source) error {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	d, err := s.Receive(ctx, 10)
	if err == nil || ctx.Err() != nil {
		b.Fatalf("received %q and %v, want an error", bodies(d), err)
	}
	return err
}

// dead reads n entries as a consumer that then dies.
func (b *bench) dead(name string, n int) {
	b.Helper()
	_, err := b.XReadGroup(b.Context(), &redis.XReadGroupArgs{
		Group: group, Consumer: name, Streams: []string{b.stream, ">"}, Count: int64(n),
	}).Result()
	b.ok(err)
}

func (b *bench) group() { b.ok(b.XGroupCreateMkStream(b.Context(), b.stream, group, "0").Err()) }

func TestEntriesOfADeadConsumerAreClaimedAndItsNameIsRemoved(t *testing.T) {
	b := newBench(t)
	b.group()
	b.add(3)
	b.dead("sekali-dead", 2)
	b.ok(b.XGroupCreateConsumer(t.Context(), b.stream, group, "somebody-else").Err())
	s := b.source(short)
	got := receive(t, s, 1) // the new one is there at once
	got = append(got, receive(t, s, 2)...)
	if want := []string{"3", "1", "2"}; !slices.Equal(bodies(got), want) {
		t.Errorf("received %q, want %q", bodies(got), want)
	}
	for i, attempt := range []int{1, 2, 2} {
		if got[i].Attempt != attempt || got[i].Redelivered != (attempt > 1) {
			t.Errorf("%s is attempt %d, redelivered %v", got[i].Message.Body, got[i].Attempt, got[i].Redelivered)
		}
	}
	b.ok(settle(t, s, broker.Ack, got...))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for slices.Contains(b.consumers(), "sekali-dead") { // it is idle for 10 AckWaits first
		once, done := context.WithTimeout(ctx, 300*time.Millisecond)
		if _, err := s.Receive(once, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Receive returned %v", err)
		}
		done()
		b.ok(ctx.Err())
	}
	if !slices.Contains(b.consumers(), "somebody-else") {
		t.Error("a consumer that is not ours was removed")
	}
}

func TestANameWithPendingEntriesIsNotRemoved(t *testing.T) {
	b := newBench(t)
	b.group()
	const n = 30
	b.add(n)
	b.dead("sekali-dead", n)
	const ackWait = 500 * time.Millisecond
	<-time.After(10*ackWait + 200*time.Millisecond) // now its name may go, were nothing pending
	s := b.source(short)
	seen := map[string]bool{}
	for len(seen) < n {
		d := receive(t, s, 1)
		b.ok(settle(t, s, broker.Ack, d...))
		seen[string(d[0].Message.Body)] = true
		if len(seen) == 1 {
			<-time.After(ackWait + 100*time.Millisecond) // the source looks for names now
		}
	}
	b.wantPending(0)
}

func TestEntriesDeletedFromADeadConsumersListAreReportedOnce(t *testing.T) {
	for name, remove := range map[string]func(b *bench, ids []string) error{
		"XDEL":  func(b *bench, ids []string) error { return b.XDel(b.Context(), b.stream, ids[:5]...).Err() },
		"XTRIM": func(b *bench, ids []string) error { return b.XTrimMinID(b.Context(), b.stream, ids[5]).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.group()
			ids := b.add(7)
			b.dead("sekali-dead", 6)
			b.ok(remove(b, ids))
			s := b.source(short)
			var told []error
			var got []*broker.Delivery
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for len(got) < 2 || len(told) == 0 {
				d, err := s.Receive(ctx, 10)
				got = append(got, d...)
				b.ok(settle(t, s, broker.Ack, d...))
				if err != nil {
					b.ok(ctx.Err())
					told = append(told, err)
				}
			}
			if !errors.Is(told[0], redisbroker.ErrTrimmed) || errors.Is(told[0], broker.ErrClosed) ||
				!strings.Contains(told[0].Error(), ids[0]) || !strings.Contains(told[0].Error(), "5 are lost") {
				t.Errorf("Receive told %v", told)
			}
			if want := []string{"6", "7"}; !slices.Equal(slices.Sorted(slices.Values(bodies(got))), want) {
				t.Errorf("received %q, want %q", bodies(got), want)
			}
			b.wantPending(0)
			b.add(1)
			d, err := s.Receive(ctx, 10) // it goes on, and does not tell again
			if err != nil || len(d) != 1 {
				t.Errorf("received %q, %v", bodies(d), err)
			}
		})
	}
}

func TestAnEntryThatIsDeletedInHandIsKeptAndReportedOnlyIfItIsGivenBack(t *testing.T) {
	b := newBench(t)
	ids := b.add(4)
	s := b.source()
	d := receive(t, s, 4)
	b.ok(b.XDel(t.Context(), b.stream, ids...).Err())
	b.ok(s.KeepAlive(t.Context(), d[:1]))
	d[0].Extend(time.Second)
	d[1].Extend(time.Second)
	b.ok(s.KeepAlive(t.Context(), d[:1])) // Redis has forgotten that it is pending
	b.expires(d[1])
	if d[0].Expired() {
		t.Error("what nobody else can have has expired")
	}
	b.ok(settle(t, s, broker.Ack, d[2:]...))
	d[1].Extend(time.Minute)
	b.ok(settle(t, s, broker.Retry, d[0], d[1]))
	if err := b.trouble(s); !errors.Is(err, redisbroker.ErrTrimmed) || !strings.Contains(err.Error(), "2 are lost") {
		t.Errorf("Receive returned %v", err)
	}
	b.wantPending(0)
}

// A source that froze finds that another consumer has claimed what it holds.
func TestWhatAnotherHasClaimedIsNotTakenFromIt(t *testing.T) {
	b := newBench(t)
	ids := b.add(4)
	s := b.source()
	d := receive(t, s, 4)
	other := func(ids ...string) *redis.XClaimArgs {
		return &redis.XClaimArgs{Stream: b.stream, Group: group, Consumer: "other", Messages: ids}
	}
	b.ok(b.XClaim(t.Context(), other(ids[1])).Err())
	b.ok(b.XClaimJustID(t.Context(), other(ids[0], ids[2])).Err()) // which leaves their counts as they are
	b.ok(settle(t, s, broker.Retry, d[0]))
	if err := settle(t, s, broker.Ack, d[1]); err != nil { // its effect is committed
		t.Errorf("a late acknowledgement: %v", err)
	}
	d[2].Extend(200 * time.Millisecond)
	b.ok(s.KeepAlive(t.Context(), d[2:]))
	b.close(s)
	owners, counts := b.pending()
	if want := []string{"other", "other", "sekali-released"}; !slices.Equal(owners, want) || !slices.Equal(counts, []int64{1, 1, 1}) {
		t.Errorf("pending with %q, delivered %d times, want %q", owners, counts, want)
	}
	b.expires(d[2])
	if d[3].Expired() {
		t.Error("what was kept alive has expired")
	}
}

// A source may claim from itself what it did not settle in time. The earlier
// delivery must not speak for the later one.
func TestAnEarlierDeliveryOfAnEntryDoesNotGiveTheLaterOneBack(t *testing.T) {
	b := newBench(t)
	ids := b.add(1)
	s := b.source()
	early := receive(t, s, 1)
	b.ok(b.XClaimJustID(t.Context(), &redis.XClaimArgs{Stream: b.stream, Group: group, Consumer: "sekali-dead", Messages: ids}).Err())
	_, err := b.Do(t.Context(), "xclaim", b.stream, group, "sekali-dead", 0, ids[0], "IDLE", time.Minute.Milliseconds(), "JUSTID").Result()
	b.ok(err)
	late := receive(t, s, 1)
	if late[0].Attempt != 2 {
		t.Fatalf("attempt %d, want 2", late[0].Attempt)
	}
	b.ok(settle(t, s, broker.Retry, early...))
	early[0].Extend(200 * time.Millisecond)
	b.ok(s.KeepAlive(t.Context(), early))
	owners, _ := b.pending()
	if len(owners) != 1 || owners[0] == "sekali-released" {
		t.Errorf("pending with %q, want the source", owners)
	}
	b.expires(early[0])
	b.ok(settle(t, s, broker.Retry, late...))
	if again := receive(t, s, 1); again[0].Attempt != 3 {
		t.Errorf("attempt %d, want 3", again[0].Attempt)
	}
}

func TestOldAndNewEntriesDoNotStarveEachOther(t *testing.T) {
	b := newBench(t)
	b.group()
	b.add(40)
	b.dead("sekali-dead", 40)
	ids, err := b.XRange(t.Context(), b.stream, "-", "+").Result()
	b.ok(err)
	for _, x := range ids {
		b.ok(b.Do(t.Context(), "xclaim", b.stream, group, "sekali-dead", 0, x.ID, "IDLE", time.Minute.Milliseconds(), "JUSTID").Err())
	}
	b.add(40)
	s := b.source()
	for turn := range 3 {
		got := receive(t, s, 10)
		old := 0
		for _, d := range got {
			if d.Redelivered {
				old++
			}
		}
		if old != 5 {
			t.Errorf("turn %d brought %d old ones of 10, want 5", turn, old)
		}
	}
	olds := ""
	for range 6 {
		if receive(t, s, 1)[0].Redelivered {
			olds += "o"
		} else {
			olds += "n"
		}
	}
	if !strings.Contains(olds, "onon") {
		t.Errorf("one by one came %s, want old and new ones in turn", olds)
	}
}

func TestAReceiveThatEndsLosesNothing(t *testing.T) {
	b := newBench(t)
	const n = 400
	s := b.source()
	added := make(chan struct{})
	go func() {
		defer close(added)
		for range n / 4 {
			b.add(4)
		}
	}()
	seen := map[string]int{}
	var ended int
	for i := 0; len(seen) < n-20 || !closed(added); i++ {
		ctx, cancel := context.WithCancel(t.Context())
		if i%3 == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(i%7)*200*time.Microsecond, cancel)
		}
		d, err := s.Receive(ctx, 1+i%9)
		cancel()
		if errors.Is(err, context.Canceled) {
			ended++
		} else if err != nil {
			t.Fatal(err)
		}
		for _, x := range d {
			seen[string(x.Message.Body)]++
			b.ok(settle(t, s, broker.Ack, x))
		}
	}
	// What is in nobody's hand when the source closes is given back, uncounted.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = s.Receive(ctx, 1)
	b.close(s)
	if names := b.consumers(); slices.ContainsFunc(names, func(n string) bool { return n != "sekali-released" }) {
		t.Errorf("after Close there are the consumers %q", names)
	}
	other := b.source()
	for _, d := range receive(t, other, n-len(seen)) {
		seen[string(d.Message.Body)]++
		if d.Redelivered {
			t.Errorf("%s was never handed over, and is marked as delivered again", d.Message.Body)
		}
		b.ok(settle(t, other, broker.Ack, d))
	}
	b.wantPending(0)
	for body, times := range seen {
		if times != 1 {
			t.Errorf("%s came %d times", body, times)
		}
	}
	if len(seen) != n || ended < 20 {
		t.Errorf("%d of %d came, while %d Receives ended early", len(seen), n, ended)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
