//go:build !fast

package redisbroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/broker/redisbroker"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/redistest"
)

// proxied returns a proxy before the server and a client that goes through it.
func (b *bench) proxied() (*faulty.Proxy, *redis.Client) {
	b.Helper()
	o := redistest.Options(b)
	proxy, err := faulty.NewProxy(o.Addr)
	b.ok(err)
	b.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			b.Error(err)
		}
	})
	o.Addr, o.DialerRetries = proxy.Addr(), 1
	c := redis.NewClient(o)
	b.Cleanup(func() { _ = c.Close() })
	return proxy, c
}

// The server has handed entries over, and the connection breaks under the
// answer: they come soon, not after AckWait, and as never delivered.
func TestEntriesWhoseAnswerIsLostComeAgainSoon(t *testing.T) {
	for name, pattern := range map[string]string{"new": "xreadgroup", "claimed": "evalsha"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.group()
			b.add(5)
			proxy, c := b.proxied()
			s := b.sourceOn(c)
			if pattern == "evalsha" {
				other := b.source()
				b.ok(settle(t, other, broker.Retry, receive(t, other, 5)...))
			}
			rule := proxy.DropAnswer(pattern, 2)
			begun := time.Now()
			d := receive(t, s, 5)
			if took := time.Since(begun); took > 8*time.Second || rule.Fired() != 2 {
				t.Errorf("it took %v after %d lost answers", took, rule.Fired())
			}
			want := 1
			if pattern == "evalsha" {
				want = 2
			}
			for _, x := range d {
				if x.Attempt != want {
					t.Errorf("%s is attempt %d, want %d", x.Message.Body, x.Attempt, want)
				}
			}
			if got := slices.Sorted(slices.Values(bodies(d))); strings.Join(got, "") != "12345" {
				t.Errorf("received %q", got)
			}
			b.ok(settle(t, s, broker.Ack, d...))
			b.wantPending(0)
		})
	}
}

func TestASettlementWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	b := newBench(t)
	b.add(4)
	proxy, c := b.proxied()
	s := b.sourceOn(c)
	d := receive(t, s, 4)
	proxy.DropAnswer("xack", 1)
	b.ok(settle(t, s, broker.Ack, d[:2]...))
	b.wantPending(2)
	proxy.DropAnswer("evalsha", 1)
	b.ok(settle(t, s, broker.Retry, d[2]))
	again := receive(t, s, 1)
	if again[0].Attempt != 2 {
		t.Errorf("attempt %d, want 2", again[0].Attempt)
	}
	// One that certainly did not arrive is an error, and what it was about comes
	// again.
	proxy.CutBefore("xack", -1)
	if err := settle(t, s, broker.Ack, d[3]); err == nil {
		t.Fatal("an acknowledgement that never arrived was confirmed")
	}
	if last := receive(t, s, 1); string(last[0].Message.Body) != string(d[3].Message.Body) {
		t.Errorf("received %q, want %q", last[0].Message.Body, d[3].Message.Body)
	}
}

func TestReceiveWakesUpWhileTheServerIsSilent(t *testing.T) {
	b := newBench(t)
	proxy, c := b.proxied()
	s := b.sourceOn(c)
	b.add(1)
	receive(t, s, 1)
	proxy.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := s.Receive(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Receive returned %v", err)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("Receive took %v", took)
	}
	proxy.Resume()
	b.add(1)
	receive(t, s, 1)
}

func TestAMessageWhoseConfirmationIsLostIsAnErrorAndIsNotSentTwice(t *testing.T) {
	b := newBench(t)
	proxy, c := b.proxied()
	p, err := redisbroker.NewPublisher(c, redisbroker.PublisherConfig{})
	b.ok(err)
	m := broker.Message{Topic: b.stream, Body: []byte("1")}
	for _, fault := range []func(string, int) *faulty.Rule{proxy.DropAnswer, proxy.CutBefore} {
		rule := fault("xadd", 1)
		err := p.Publish(t.Context(), m, m)
		var failed *broker.PublishError
		if !errors.As(err, &failed) || failed.Errs[0] == nil || failed.Errs[1] == nil {
			t.Errorf("Publish returned %v, want an error for both", err)
		}
		if n := b.XLen(t.Context(), b.stream).Val(); n != 2 || rule.Fired() != 1 {
			t.Errorf("there are %d entries, want the first 2", n)
		}
	}
	b.ok(p.Publish(t.Context(), m))
}

// counter is a hook that counts the commands that a client sends.
type counter struct {
	mu    sync.Mutex
	sent  map[string]int
	block int64 // of the last XREADGROUP
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		c.sent[cmd.Name()]++
		if i := slices.Index(cmd.Args(), any("block")); i > 0 {
			c.block, _ = cmd.Args()[i+1].(int64)
		}
		c.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counter) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent[name]
}

func (c *counter) blocked() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.block
}

func TestASettleCostsOneCommandForEachWayToSettle(t *testing.T) {
	b := newBench(t)
	b.add(200)
	c, hook := redistest.Client(t), &counter{sent: map[string]int{}}
	c.AddHook(hook)
	s := b.sourceOn(c)
	d := receive(t, s, 200)
	b.ok(settle(t, s, broker.Ack, d[:100]...))
	if n := hook.count("xack"); n != 1 {
		t.Errorf("100 acknowledgements were %d XACKs, want 1", n)
	}
	before := hook.count("evalsha")
	b.ok(settle(t, s, broker.Retry, d[100:]...))
	if n := hook.count("evalsha") - before; n > 2 { // a question for old entries may have been under way
		t.Errorf("giving 100 back took %d scripts, want 1", n)
	}
	if n := hook.count("xack"); n != 1 {
		t.Errorf("giving back made %d XACKs", n-1)
	}
}

func TestAGroupThatVanishesIsMadeAgainFromTheFirstEntry(t *testing.T) {
	for name, x := range map[string]struct {
		remove func(b *bench) error
		want   []string
	}{
		"XGROUP DESTROY": {func(b *bench) error { return b.XGroupDestroy(b.Context(), b.stream, group).Err() }, []string{"2", "3"}},
		"DEL":            {func(b *bench) error { return b.Del(b.Context(), b.stream).Err() }, []string{"3"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.add(1)
			s := b.source(onlyNew)
			// It is connected, and its group there, when its Receive has waited.
			once, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if d, err := s.Receive(once, 10); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("received %q, %v: only new ones were asked for", bodies(d), err)
			}
			b.add(1)
			held := receive(t, s, 1)
			b.ok(x.remove(b))
			b.ok(settle(t, s, broker.Ack, held...))
			err := b.trouble(s)
			if errors.Is(err, broker.ErrClosed) || !strings.Contains(err.Error(), "deleted") {
				t.Errorf("Receive returned %v", err)
			}
			b.add(1)
			var got []string
			for len(got) < 2 && !slices.Contains(got, "3") {
				got = append(got, bodies(receive(t, s, 1))...)
			}
			if name == "XGROUP DESTROY" { // the first of all too: nothing is passed over
				x.want = []string{"1", "2", "3"}
				for !slices.Contains(got, "3") {
					got = append(got, bodies(receive(t, s, 1))...)
				}
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("received %q, want %q", got, x.want)
			}
		})
	}
}

func TestGivingBackToAGroupThatIsGoneSaysThatItIsLost(t *testing.T) {
	b := newBench(t)
	b.add(1)
	s := b.source()
	d := receive(t, s, 1)
	b.ok(b.XGroupDestroy(t.Context(), b.stream, group).Err())
	if err := settle(t, s, broker.Retry, d...); !errors.Is(err, broker.ErrLost) {
		t.Errorf("Settle returned %v, want ErrLost", err)
	}
	if err := s.KeepAlive(t.Context(), d); err == nil {
		t.Error("KeepAlive without a group returned no error")
	}
	if got := receive(t, s, 1); string(got[0].Message.Body) != "1" {
		t.Errorf("received %q", got[0].Message.Body)
	}
	other := &broker.Delivery{Handle: "of another broker"}
	if err := settle(t, s, broker.Ack, other); !errors.Is(err, broker.ErrLost) {
		t.Errorf("settling what is not ours returned %v, want ErrLost", err)
	}
}

func TestAKeyThatIsNoStreamIsAnErrorThatPasses(t *testing.T) {
	b := newBench(t)
	b.ok(b.Set(t.Context(), b.stream, "x", 0).Err())
	s := b.source()
	if err := b.trouble(s); errors.Is(err, broker.ErrClosed) {
		t.Errorf("Receive returned %v", err)
	}
	p, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{})
	b.ok(err)
	if err := p.Publish(t.Context(), broker.Message{Topic: b.stream}); err == nil {
		t.Error("Publish returned no error")
	}
	b.ok(b.Del(t.Context(), b.stream).Err())
	b.add(1)
	receive(t, s, 1)
}

func TestWhatOpensAClientClosesIt(t *testing.T) {
	b := newBench(t)
	url := redistest.URL(t)
	p, err := redisbroker.OpenPublisher(url, redisbroker.PublisherConfig{})
	b.ok(err)
	s, err := redisbroker.OpenSource(url, redisbroker.SourceConfig{Stream: b.stream, Group: group})
	b.ok(err)
	b.ok(p.Publish(t.Context(), broker.Message{Topic: b.stream}))
	receive(t, s, 1)
	// goleak finds the connections if they stay.
	b.ok(errors.Join(s.Close(t.Context()), p.Close(t.Context())))
	if _, err := redisbroker.OpenSource(url, redisbroker.SourceConfig{}); err == nil {
		t.Error("an empty config is no error")
	}
}

// A client that waits for an answer for less than a question may wait on the
// server would take its silence for a broken connection.
func TestAQuestionWaitsForLessThanTheClientDoes(t *testing.T) {
	b := newBench(t)
	for timeout, want := range map[time.Duration]int64{0: 250, 100 * time.Millisecond: 50, time.Second: 250} {
		o := redistest.Options(t)
		o.ReadTimeout = timeout
		c, hook := redis.NewClient(o), &counter{sent: map[string]int{}}
		t.Cleanup(func() { _ = c.Close() })
		c.AddHook(hook)
		s := b.sourceOn(c)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		for hook.count("xreadgroup") == 0 { // the first may not be sent yet when its time is over
			once, done := context.WithTimeout(ctx, 50*time.Millisecond)
			_, _ = s.Receive(once, 1)
			done()
			b.ok(ctx.Err())
		}
		cancel()
		b.close(s)
		if got := hook.blocked(); got != want {
			t.Errorf("with a ReadTimeout of %v a question waits for %d ms, want %d", timeout, got, want)
		}
	}
}

func TestReplicasThatAreNotThereAreAnError(t *testing.T) {
	b := newBench(t)
	p, err := redisbroker.NewPublisher(b.Client, redisbroker.PublisherConfig{Replicas: 1})
	b.ok(err)
	err = p.Publish(t.Context(), broker.Message{Topic: b.stream})
	if !errors.Is(err, redisbroker.ErrNotReplicated) {
		t.Errorf("Publish returned %v", err)
	}
}

func TestAServerThatIsUnreachableAtCloseIsNamed(t *testing.T) {
	b := newBench(t)
	b.add(1)
	proxy, c := b.proxied()
	s := b.sourceOn(c)
	receive(t, s, 1)
	proxy.Refuse()
	proxy.Cut()
	err := s.Close(t.Context())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(redisbroker.DefaultAckWait)) {
		t.Errorf("Close returned %v", err)
	}
}

func TestCloseGivesBackWhatWasReceivedAndHandedToNobody(t *testing.T) {
	b := newBench(t)
	s := b.source()
	ended, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Receive(ended, 5); !errors.Is(err, context.DeadlineExceeded) { // its question is under way
		t.Fatalf("Receive returned %v", err)
	}
	b.add(3)
	b.close(s)
	for _, d := range receive(t, b.source(), 3) {
		if d.Attempt != 1 || d.Redelivered {
			t.Errorf("%s is attempt %d, redelivered %v", d.Message.Body, d.Attempt, d.Redelivered)
		}
	}
}
