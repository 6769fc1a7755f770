//go:build !fast

package runtest

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is built once for all tests.
var binary struct {
	sync.Once
	folder, path string
	err          error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if binary.folder != "" {
		_ = os.RemoveAll(binary.folder)
	}
	os.Exit(code)
}

// sekali returns the path of the binary.
func sekali(t testing.TB) string {
	t.Helper()
	binary.Do(func() {
		if binary.folder, binary.err = os.MkdirTemp("", "sekali-runtest-"); binary.err != nil {
			return
		}
		binary.path = filepath.Join(binary.folder, "sekali")
		build := exec.Command("go", "build", "-o", binary.path, "github.com/sekali/sekali/cmd/sekali")
		if out, err := build.CombinedOutput(); err != nil {
			binary.err = &exec.Error{Name: "go build: " + string(out), Err: err}
		}
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// command runs the binary to its end, which has to be a good one.
func command(t testing.TB, env []string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), sekali(t), args...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("sekali %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// process is a sekali run.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
	err error
	// started is closed when its consumer has said so.
	started chan struct{}
}

// Write implements io.Writer: it takes the log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.Write(b)
	if bytes.Contains(p.log.Bytes(), []byte("sekali: started")) {
		select {
		case <-p.started:
		default:
			close(p.started)
		}
	}
	return len(b), nil
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start starts one, and waits until it works.
func start(t testing.TB, env []string, folder string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{}), started: make(chan struct{})}
	p.cmd = exec.Command(sekali(t), "run")
	p.cmd.Env, p.cmd.Dir = append(os.Environ(), env...), folder
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			said := p.said()
			t.Logf("it said at last: %s", said[max(0, len(said)-3000):])
		}
	})
	select {
	case <-p.started:
	case <-p.ended:
		t.Fatalf("it does not start: %v: %s", p.err, p.said())
	case <-time.After(time.Minute):
		t.Fatalf("it does not start: %s", p.said())
	}
	return p
}

// kill kills it, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// term asks it to stop, which it has to do in good order.
func (p *process) term() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatalf("it does not stop: %s", p.said())
	}
	if p.err != nil || !strings.Contains(p.said(), "sekali: stopped") {
		p.t.Fatalf("it did not stop in good order: %v: %s", p.err, p.said())
	}
}

// without names what scripts/services could not get here.
const (
	without    = "SEKALI_TEST_WITHOUT"
	pythonPath = "SEKALI_TEST_PYTHONPATH"
)

// message is one for the producer.
type message struct {
	Key  string
	Body any // becomes JSON
}

// produce starts a producer in Python. The function that it returns waits until
// the broker has confirmed all.
func produce(t testing.TB, url, topic string, messages []message) (wait func()) {
	t.Helper()
	path := os.Getenv(pythonPath)
	if path == "" && slices.Contains(strings.Fields(os.Getenv(without)), "python") {
		t.Skipf("not run: it needs Python's clients of brokers, and %s says that this machine cannot have them", without)
	}
	if path == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` and `eval \"$(scripts/services env)\"`", pythonPath)
	}
	var in, out, errs bytes.Buffer
	encoder := json.NewEncoder(&in)
	for _, m := range messages {
		body, err := json.Marshal(m.Body)
		if err == nil {
			// As text: Python would round numbers.
			err = encoder.Encode(map[string]string{"key": m.Key, "body": string(body)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	c := exec.CommandContext(ctx, "python3", filepath.Join("testdata", "producer.py"), url, topic)
	c.Env = append(os.Environ(), "PYTHONPATH="+path)
	c.Stdin, c.Stdout, c.Stderr = &in, &out, &errs
	if err := c.Start(); err != nil {
		cancel()
		t.Fatalf("start a producer in Python: %v: is python3 there?", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	var once sync.Once
	end := func() {
		once.Do(func() {
			defer cancel()
			if err := <-ended; err != nil {
				t.Errorf("the producer failed: %v: %s%s", err, out.String(), errs.String())
			}
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			cancel()
		}
		end()
	})
	return end
}

// freeAddress returns one of this machine on which nobody listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
