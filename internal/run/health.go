package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sekali/sekali"
)

// health is how the consumer does, by what it tells its Observer.
type health struct {
	mu      sync.Mutex
	state   string // starting, running, stopping, stopped
	trouble map[sekali.EventKind]string
}

func newHealth() *health {
	return &health{state: "starting", trouble: map[sekali.EventKind]string{}}
}

// troubles are cleared by the event beside them.
var troubles = map[sekali.EventKind][]sekali.EventKind{
	sekali.Started:   {sekali.CheckFailed},
	sekali.Received:  {sekali.ReceiveFailed},
	sekali.Committed: {sekali.Interrupted, sekali.DeadLetterFailed},
	sekali.Settled:   {sekali.SettleFailed},
}

// Observe implements sekali.Observer.
func (h *health) Observe(e sekali.Event) {
	cleared, clears := troubles[e.Kind]
	switch e.Kind {
	case sekali.Started, sekali.Stopped, sekali.CheckFailed, sekali.ReceiveFailed, sekali.Interrupted, sekali.DeadLetterFailed, sekali.SettleFailed:
	default:
		if !clears {
			return
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, kind := range cleared {
		delete(h.trouble, kind)
	}
	switch e.Kind {
	case sekali.Started:
		h.state = "running"
	case sekali.Stopped:
		h.state = "stopped"
	case sekali.CheckFailed, sekali.ReceiveFailed, sekali.Interrupted, sekali.DeadLetterFailed, sekali.SettleFailed:
		h.trouble[e.Kind] = e.Kind.String()
	}
}

func (h *health) stopping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != "stopped" {
		h.state = "stopping"
	}
}

// ready tells whether it works, and what it says of itself.
func (h *health) ready() (bool, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := h.state
	for _, t := range h.trouble {
		text += "; " + t
	}
	return h.state == "running" && len(h.trouble) == 0, text
}

// Mount puts pages on the address that listen: names, beside /healthz and
// /readyz.
type Mount func(mux *http.ServeMux)

// serve serves health, and what is mounted, until ctx ends.
func serve(ctx context.Context, address string, h *health, mounts []Mount) (wait func() error, err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, text := h.ready()
		fmt.Fprintln(w, text)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ok, text := h.ready()
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, text)
	})
	for _, m := range mounts {
		m(mux)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: is the address free?", address, err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() error {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err := server.Shutdown(closing)
		if err != nil {
			err = server.Close()
		}
		if e := <-done; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}
