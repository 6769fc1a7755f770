//go:build !fast

package redistest_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/redistest"
)

func TestAKeyIsGoneAfterItsTest(t *testing.T) {
	var key string
	t.Run("test", func(t *testing.T) {
		key = redistest.Key(t)
		if err := redistest.Client(t).Set(t.Context(), key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
	})
	if n, err := redistest.Client(t).Exists(t.Context(), key).Result(); err != nil || n != 0 {
		t.Errorf("the key is still there (%v)", err)
	}
}

func TestWiresBreakConnectionsAndTheDeadMakeNoOthers(t *testing.T) {
	w := &redistest.Wires{}
	o := redistest.Options(t)
	o.Dialer, o.DialerRetries, o.MaxRetries = w.Dial, 1, -1
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	id := func() (int64, error) { return c.ClientID(t.Context()).Result() }
	first, err := id()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := id(); err != nil || again != first {
		t.Errorf("the connection is %d, then %d (%v)", first, again, err)
	}
	w.Cut()
	if again, err := id(); err != nil || again == first {
		t.Errorf("after the cut it is still the connection %d (%v)", again, err)
	}
	w.Kill()
	if _, err := id(); err == nil {
		t.Error("a dead process's client connects")
	}
}
