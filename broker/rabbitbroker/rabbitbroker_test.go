package rabbitbroker_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/broker/brokertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const keyHeader = "ordering-key"

// soon is a context for what must end in time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), brokertest.Patience)
	t.Cleanup(cancel)
	return ctx
}
