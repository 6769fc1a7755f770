//go:build !fast

package natsbroker_test

import (
	"testing"

	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/internal/natstest"
)

func TestSuiteOnARealServer(t *testing.T) {
	url := natstest.RealURL(t)
	brokertest.Run(t, harness(url))
}

func TestCasesOnARealServer(t *testing.T) { cases(t, natstest.RealURL(t)) }
