package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// What goes wrong at the courier, by chance.
const (
	refuses   = 0.010 // says that it is too busy, and does nothing
	slow      = 0.005 // takes a while
	neverSays = 0.002 // sells the label and never answers
	cutsOff   = 0.002 // sells the label and cuts the connection

	slowness = 30 * time.Millisecond
	// maxOutages is how often it is down for a moment, with all connections cut.
	maxOutages = 2
	outage     = 100 * time.Millisecond
)

// courier is another company: an HTTP server that sells labels for parcels.
// It honours the header Idempotency-Key, and it is as bad as others are.
type courier struct {
	url    string
	plan   int // orders, for the outages
	mu     sync.Mutex
	chance *rand.Rand
	server *http.Server
	asked  int
	downs  int // how often it was down
	shops  map[string]*account
	ended  sync.WaitGroup
	closed bool
}

// account is what a customer has bought.
type account struct {
	byKey  map[string]int // labels by idempotency key
	orders map[string]int // labels by order
	labels int
}

// openCourier starts the server on a port of its own.
func openCourier(seed uint64, orders int) (*courier, error) {
	c := &courier{chance: rand.New(rand.NewPCG(seed, 0xc0)), plan: orders, shops: map[string]*account{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the courier: %w", err)
	}
	c.url = "http://" + listener.Addr().String()
	c.serve(listener)
	return c, nil
}

// serve starts a server; with the lock, or before there are others.
func (c *courier) serve(listener net.Listener) {
	server := &http.Server{Handler: http.HandlerFunc(c.sell), ReadHeaderTimeout: time.Second}
	c.server = server
	c.ended.Go(func() { _ = server.Serve(listener) }) // until it is closed
}

// sell sells a label: "POST /customer" with the order's ID as the body.
func (c *courier) sell(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 100))
	if err != nil || r.Method != http.MethodPost {
		http.Error(w, "POST the order's ID", http.StatusBadRequest)
		return
	}
	luck := c.luck()
	if luck -= refuses; luck < 0 {
		http.Error(w, "too busy", http.StatusServiceUnavailable)
		return
	}
	label := c.bought(r.URL.Path, r.Header.Get("Idempotency-Key"), string(body))
	if luck -= slow; luck < 0 {
		time.Sleep(slowness)
	} else if luck -= neverSays; luck < 0 {
		<-r.Context().Done()
		return
	} else if luck -= cutsOff; luck < 0 {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]int{"label": label}) // who asked may be dead
}

// luck throws the dice, and now and then has the whole courier fail.
func (c *courier) luck() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if part := 2 * c.plan / (maxOutages + 1); part > 0 && c.asked%part == 0 && c.asked/part <= maxOutages && !c.closed {
		c.ended.Go(func() { c.fail(c.server) })
	}
	return c.chance.Float64()
}

// fail takes the server down for a moment. What it has sold stays sold.
func (c *courier) fail(server *http.Server) {
	_ = server.Close()
	time.Sleep(outage)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if listener, err := net.Listen("tcp", c.url[len("http://"):]); err == nil {
		c.downs++
		c.serve(listener)
	}
}

// bought returns the number of a label: a new one, unless the key is known.
func (c *courier) bought(customer, key, order string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.shops[customer]
	if a == nil {
		a = &account{byKey: map[string]int{}, orders: map[string]int{}}
		c.shops[customer] = a
	}
	if label, known := a.byKey[key]; known && key != "" {
		return label
	}
	a.labels++
	a.orders[order]++
	if key != "" {
		a.byKey[key] = a.labels
	}
	return a.labels
}

// sold returns how many labels a customer has bought, and for how many orders.
func (c *courier) sold(customer string) (labels, orders int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.shops["/"+customer]
	if a == nil {
		return 0, 0
	}
	return a.labels, len(a.orders)
}

// outages returns how often it was down.
func (c *courier) outages() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.downs
}

func (c *courier) close(context.Context, bool) error {
	c.mu.Lock()
	c.closed = true
	server := c.server
	c.mu.Unlock()
	err := server.Close()
	c.ended.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}
