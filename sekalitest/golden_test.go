package sekalitest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali"
)

// recorder is a testing.TB that keeps what fails.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Helper()      {}
func (r *recorder) Failed() bool { return len(r.said) > 0 }

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

type fatal struct{}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(fatal{})
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// recorded returns what f says of a test that fails.
func recorded(t *testing.T, f func(t testing.TB)) string {
	r := &recorder{TB: t}
	func() {
		defer func() {
			if v := recover(); v != nil && v != (fatal{}) {
				panic(v)
			}
		}()
		f(r)
	}()
	return strings.Join(r.said, "\n")
}

var exampleKey = sekali.FirstOf(sekali.Header("idempotency-key"), sekali.Business(sekali.JSON("/order"), sekali.JSON("/event")))

func TestGoldenKeysOfThisPackage(t *testing.T) {
	GoldenKeys(t, exampleKey, "testdata/keys")
}

func TestGoldenKeysNoticeEachChange(t *testing.T) {
	read := func(extract sekali.KeyFunc, dir string) string {
		return recorded(t, func(t testing.TB) { GoldenKeys(t, extract, dir) })
	}
	n := 0
	restless := func(*sekali.Message) (string, error) { n++; return fmt.Sprint(n), nil }
	empty, bad, fresh := t.TempDir(), t.TempDir(), t.TempDir()
	for file, content := range map[string]string{
		filepath.Join(bad, "a.msg"):    "idempotency-key x\n\n{}",
		filepath.Join(fresh, "a.json"): `{"order":"1","event":"paid"}`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ got, want string }{
		"another key":        {read(sekali.Scoped("eu", exampleKey), "testdata/keys"), "in another way than before"},
		"a key of the clock": {read(restless, "testdata/keys"), "must depend on the message alone"},
		"no message":         {read(exampleKey, empty), "has no message"},
		"a broken message":   {read(exampleKey, bad), "is no header"},
		"no golden file":     {read(exampleKey, fresh), "SEKALITEST_UPDATE=1"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("%s: %q, want %q in it", name, c.got, c.want)
		}
	}
	t.Setenv("SEKALITEST_UPDATE", "1")
	if said := read(exampleKey, fresh); said != "" {
		t.Errorf("the update said %q", said)
	}
	t.Setenv("SEKALITEST_UPDATE", "")
	if said := read(exampleKey, fresh); said != "" {
		t.Errorf("after the update: %q", said)
	}
}
