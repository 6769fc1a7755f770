//go:build !fast

package kafkatest_test

import (
	"testing"

	"github.com/sekali/sekali/internal/kafkatest"
)

func TestTheRealServerCarriesARecord(t *testing.T) { carries(t, kafkatest.URL(t)) }
