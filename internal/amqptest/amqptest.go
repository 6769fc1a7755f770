// Package amqptest gives tests a broker that speaks AMQP 1.0: the real server
// that the environment names, and queues of their own on it.
//
// Files with tests that need the server bear the build constraint !fast.
package amqptest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/sekali/sekali/broker/amqpbroker"
	"github.com/sekali/sekali/internal/faulty"
)

const (
	// realURL is the environment's variable with the URL of a real server.
	realURL = "SEKALI_TEST_AMQP10_URL"
	// without names the servers that scripts/services could not get here. The
	// run's last lines tell of them, and CI fails.
	without = "SEKALI_TEST_WITHOUT"
	// artemisHome is the variable with the folder of Artemis' distribution.
	artemisHome = "SEKALI_TEST_ARTEMIS_HOME"
)

// URL returns the URL of the real server that tests are to use,
// amqp10://user:password@host:port. Where Artemis cannot be had, that may be
// RabbitMQ, with its AMQP 1.0 plugin: see IsArtemis.
func URL(t testing.TB) string {
	t.Helper()
	raw := os.Getenv(realURL)
	if raw == "" && slices.Contains(strings.Fields(os.Getenv(without)), "amqp10") {
		t.Skipf("not run: it needs a broker that speaks AMQP 1.0, and %s says that this machine cannot have one: set %s to a server of yours", without, realURL)
	}
	if raw == "" {
		t.Fatalf("%s is not set: run `make test`; or `scripts/services up` (Maven or Docker) and `eval \"$(scripts/services env)\"`;"+
			" or set it to the URL of a server of yours, amqp10://user:password@host:5672", realURL)
	}
	if !strings.HasPrefix(raw, "amqp10://") {
		// Not the URL itself: it may hold a password.
		t.Fatalf("the URL of the AMQP 1.0 broker for tests does not begin with amqp10://: set %s so", realURL)
	}
	return raw
}

// Connect returns a connection that is closed at the end of the test.
func Connect(t testing.TB) *amqp.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := amqpbroker.Connect(ctx, URL(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// IsArtemis tells whether the server is ActiveMQ Artemis, and not one that
// stands in for it.
func IsArtemis(t testing.TB) bool {
	t.Helper()
	product, _ := Connect(t).Properties()["product"].(string)
	return strings.Contains(product, "artemis") || strings.Contains(product, "activemq")
}

// Queue returns the address of a queue of the test's own, which the broker
// makes when it is first used: Artemis by itself, RabbitMQ by its address.
func Queue(t testing.TB) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text())
	if !IsArtemis(t) {
		return "/queue/" + name
	}
	return name
}

// Home returns the folder of Artemis' distribution, which has a JMS client.
func Home(t testing.TB) string {
	t.Helper()
	home := os.Getenv(artemisHome)
	if home == "" && os.Getenv(without) != "" {
		t.Skipf("not run: it needs Artemis' distribution, and %s says that this machine cannot have it", without)
	}
	if home == "" {
		t.Fatalf("%s is not set: `scripts/services up amqp10` and `eval \"$(scripts/services env)\"`", artemisHome)
	}
	return home
}

// Proxied returns the URL of a proxy before the server, and the proxy.
func Proxied(t testing.TB) (string, *faulty.Proxy) {
	t.Helper()
	u, err := url.Parse(URL(t))
	if err != nil {
		t.Fatal("the URL of the AMQP 1.0 broker for tests cannot be read")
	}
	p, err := faulty.NewProxy(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	u.Host = p.Addr()
	return u.String(), p
}

// JMS runs a JMS client (testdata/Client.java) with Artemis' own libraries,
// and returns the lines that it prints. do is "send" or "receive".
func JMS(t testing.TB, do, queue string) []string {
	t.Helper()
	u, err := url.Parse(URL(t))
	if err != nil {
		t.Fatal("the URL of the AMQP 1.0 broker for tests cannot be read")
	}
	_, file, _, _ := runtime.Caller(0)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := exec.CommandContext(ctx, "java", "-cp", filepath.Join(Home(t), "lib", "*"),
		filepath.Join(filepath.Dir(file), "testdata", "Client.java"), do, "amqp://"+u.Host, queue)
	password, _ := u.User.Password()
	client.Env = append(os.Environ(), "AMQP_USER="+u.User.Username(), "AMQP_PASSWORD="+password)
	out, err := client.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("the JMS client failed: %v: %s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatalf("run a JMS client: %v: is a JDK of 11 or newer in the PATH?", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
