package faulty_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errFault = errors.New("a fault")

func TestAStoreFailsBeforeOrAfterTheRealCommit(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		at   faulty.Point
		keys int
	}{{faulty.Commit, 0}, {faulty.CommitAfter, 1}} {
		real := memstore.New()
		s := faulty.NewStore(real)
		s.Fail(c.at, 1, errFault)
		tx, _, err := s.Begin(ctx, store.Claim{Consumer: "n", Keys: []store.Key{{Raw: "k"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(ctx, tx); !errors.Is(err, errFault) {
			t.Errorf("%s: the error is %v", c.at, err)
		}
		if real.Keys() != c.keys || real.Open() != 0 {
			t.Errorf("%s: %d keys, %d open transactions; want %d and none", c.at, real.Keys(), real.Open(), c.keys)
		}
	}
}

func TestAStoreFailsAsOftenAsItIsToldAndCounts(t *testing.T) {
	ctx := t.Context()
	s := faulty.NewStore(memstore.New())
	s.Fail(faulty.Begin, 2, errFault)
	for i := range 4 {
		tx, _, err := s.Begin(ctx, store.Claim{Consumer: "n", Keys: []store.Key{{Raw: "k"}}})
		if failed := err != nil; failed != (i < 2) {
			t.Errorf("call %d: %v", i+1, err)
		}
		if err == nil {
			if err := s.Rollback(ctx, tx); err != nil {
				t.Error(err)
			}
		}
	}
	if s.Calls(faulty.Begin) != 4 || s.Calls(faulty.Rollback) != 2 {
		t.Errorf("%d and %d calls were counted", s.Calls(faulty.Begin), s.Calls(faulty.Rollback))
	}
	if _, ok := store.As[*memstore.Store](s); !ok {
		t.Error("store.As does not see the real store")
	}
}

func TestACallCanBeHeldBack(t *testing.T) {
	s := faulty.NewStore(memstore.New())
	entered, release := s.Hold(faulty.Check)
	done := make(chan error)
	go func() { done <- s.Check(context.Background()) }()
	<-entered
	select {
	case <-done:
		t.Error("the call was not held back")
	default:
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Check(t.Context()); err != nil { // only one is held
		t.Error(err)
	}
}

// settled is a source that counts settlements.
type settled struct {
	broker.Source
	n int
}

func (s *settled) Settle(_ context.Context, batch []broker.Settlement) error {
	s.n += len(batch)
	return nil
}
func (s *settled) MaxDelay() time.Duration { return time.Hour }

func TestASourceFailsBeforeOrAfterTheBrokerIsTold(t *testing.T) {
	real := &settled{}
	s := faulty.NewSource(real)
	s.Fail(faulty.Settle, 1, errFault)
	s.Fail(faulty.SettleAfter, 1, errFault)
	for _, want := range []int{0, 1, 2} {
		err := s.Settle(t.Context(), make([]broker.Settlement, 1))
		if (err != nil) != (want < 2) || real.n != want {
			t.Errorf("%v, and %d settlements instead of %d", err, real.n, want)
		}
	}
	if _, ok := broker.As[broker.DelayedRetry](s); !ok {
		t.Error("broker.As does not see the real source's interfaces")
	}
}

func TestASinkFailsBeforeOrAfterTheLetterIsWritten(t *testing.T) {
	real := memstore.New().DeadLetters()
	s := faulty.NewSink(real)
	s.Fail(faulty.Put, 1, errFault)
	s.Fail(faulty.PutAfter, 1, errFault)
	for i, want := range []int{0, 1, 1} {
		err := s.Put(t.Context(), deadletter.Letter{Consumer: "n", Key: "k"})
		letters, _ := real.List(t.Context(), deadletter.Filter{})
		if (err != nil) != (i < 2) || len(letters) != want {
			t.Errorf("call %d: %v, and %d letters instead of %d", i+1, err, len(letters), want)
		}
	}
}

// echo is a server that answers each line with the same line, and remembers.
type echo struct {
	mu    sync.Mutex
	lines []string
}

func (e *echo) got() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.lines)
}

func startEcho(t *testing.T) (*echo, *faulty.Proxy) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					e.mu.Lock()
					e.lines = append(e.lines, lines.Text())
					e.mu.Unlock()
					_, _ = conn.Write([]byte(lines.Text() + "\n"))
				}
			})
		}
	})
	proxy, err := faulty.NewProxy(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
		_ = listener.Close()
		running.Wait()
	})
	return e, proxy
}

// client is a connection through the proxy.
type client struct {
	net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, p *faulty.Proxy) client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return client{conn, bufio.NewReader(conn)}
}

// say sends pieces and returns the answer; an error if the connection breaks.
func (c client) say(pieces ...string) (string, error) {
	for _, piece := range pieces {
		if _, err := c.Write([]byte(piece)); err != nil {
			return "", err
		}
	}
	line, err := c.answers.ReadString('\n')
	return line, err
}

func TestAProxyPassesWhatNoRuleForbids(t *testing.T) {
	_, p := startEcho(t)
	c := dial(t, p)
	for _, line := range []string{"BEGIN\n", "COMMIT\n"} {
		if got, err := c.say(line); got != line || err != nil {
			t.Errorf("%q was answered with %q, %v", line, got, err)
		}
	}
}

func TestADroppedAnswerIsOfSomethingThatHappened(t *testing.T) {
	e, p := startEcho(t)
	rule := p.DropAnswer("COMMIT", 2)
	for i := range 3 {
		c := dial(t, p)
		if _, err := c.say("BEGIN\n"); err != nil {
			t.Fatal(err)
		}
		_, err := c.say("COM", "MIT\n") // in two pieces
		if lost := err != nil; lost != (i < 2) {
			t.Errorf("time %d: %v", i+1, err)
		}
		if e.got() != 2*(i+1) {
			t.Errorf("time %d: the server got %d lines", i+1, e.got())
		}
	}
	if rule.Fired() != 2 {
		t.Errorf("the rule acted %d times", rule.Fired())
	}
}

func TestACutBeforeIsOfSomethingThatDidNotHappen(t *testing.T) {
	e, p := startEcho(t)
	rule := p.CutBefore("COMMIT", 1)
	if _, err := dial(t, p).say("COMMIT\n"); err == nil || e.got() != 0 || rule.Fired() != 1 {
		t.Errorf("%v, %d lines, %d times", err, e.got(), rule.Fired())
	}
	if _, err := dial(t, p).say("COMMIT\n"); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestADelayedPieceArrivesLater(t *testing.T) {
	_, p := startEcho(t)
	p.Delay("COMMIT", 50*time.Millisecond, 1)
	began := time.Now()
	if _, err := dial(t, p).say("COMMIT\n"); err != nil || time.Since(began) < 50*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestConnectionsCanBeCutRefusedAndHeldBack(t *testing.T) {
	_, p := startEcho(t)
	c := dial(t, p)
	if _, err := c.say("a\n"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := c.say("b\n"); err == nil {
		t.Error("the connection was not cut")
	}
	p.Refuse()
	if _, err := dial(t, p).say("c\n"); err == nil {
		t.Error("the connection was not refused")
	}
	p.Accept()
	c = dial(t, p)
	p.Pause()
	answered := make(chan error, 1)
	go func() {
		_, err := c.say("d\n")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("it was not held back: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	p.Resume()
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestAForgottenConnectionIsSilentAndNewOnesWork(t *testing.T) {
	e, p := startEcho(t)
	old := dial(t, p)
	if _, err := old.say("a\n"); err != nil {
		t.Fatal(err)
	}
	p.Forget()
	_ = old.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := old.say("b\n"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the old one: %v", err)
	}
	if got, err := dial(t, p).say("c\n"); got != "c\n" || err != nil || e.got() != 2 {
		t.Errorf("a new one: %q, %v, the server got %d lines", got, err, e.got())
	}
}
