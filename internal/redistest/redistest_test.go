package redistest_test

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/internal/redistest"
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
		"nothing is set":                   {"", "", "failed: SEKALI_TEST_REDIS_URL is not set"},
		"the machine cannot have another":  {"", "redistribution kafka", "failed: "},
		"the machine cannot have Redis":    {"", "kafka redis", "skipped: not run: it needs a real Redis"},
		"there is one all the same":        {"redis://127.0.0.1:6379", "redis", ""},
		"a password, which is shown never": {"redis://kopi:geheim@127.0.0.1:port", "", "failed: the URL of the Redis"},
		"not a URL":                        {"127.0.0.1:6379", "", "failed: the URL of the Redis"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SEKALI_TEST_REDIS_URL", c.url)
			t.Setenv("SEKALI_TEST_WITHOUT", c.without)
			got := ending(t, func(tb testing.TB) { redistest.Options(tb) })
			if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "geheim") {
				t.Errorf("the test ended so: %q, want %q", got, c.want)
			}
		})
	}
}
