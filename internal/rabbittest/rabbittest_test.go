package rabbittest_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/internal/rabbittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is a test that notes how it ended.
type told struct {
	testing.TB
	how string
}

func (t *told) Helper() {}

func (t *told) Skipf(format string, args ...any) { t.end("skipped", format, args) }

func (t *told) Fatalf(format string, args ...any) { t.end("failed", format, args) }

func (t *told) end(how, format string, args []any) {
	t.how = how + ": " + fmt.Sprintf(format, args...)
	panic(t)
}

// ending returns how a test ends that does do.
func ending(t *testing.T, do func(testing.TB)) string {
	fake := &told{TB: t}
	func() {
		defer func() { _ = recover() }()
		do(fake)
	}()
	return fake.how
}

func TestAMissingServerFailsTheTestUnlessThisMachineCannotHaveOne(t *testing.T) {
	for name, c := range map[string]struct{ url, without, want string }{
		"nothing is set":                   {"", "", "failed: SEKALI_TEST_RABBITMQ_URL is not set"},
		"the machine cannot have another":  {"", "kafka rabbitmqs", "failed: "},
		"the machine cannot have RabbitMQ": {"", "kafka rabbitmq", "skipped: not run: it needs a real RabbitMQ"},
		"there is one all the same":        {"rabbitmq://127.0.0.1:5672/", "rabbitmq", ""},
		"another scheme":                   {"http://kopi:geheim@127.0.0.1", "", "failed: the URL of the RabbitMQ"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SEKALI_TEST_RABBITMQ_URL", c.url)
			t.Setenv("SEKALI_TEST_WITHOUT", c.without)
			got := ending(t, func(tb testing.TB) { rabbittest.URL(tb) })
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "geheim") {
				t.Errorf("the test ended so: %q, want %q", got, c.want)
			}
		})
	}
}
