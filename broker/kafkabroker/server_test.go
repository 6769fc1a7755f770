//go:build !fast

package kafkabroker_test

import (
	"testing"

	"github.com/sekali/sekali/broker/brokertest"
	"github.com/sekali/sekali/internal/kafkatest"
)

// real returns the real server, with both ways of sharing a group's
// partitions.
func real(t *testing.T) map[string]kafka {
	t.Helper()
	brokers := kafkatest.Brokers(t)
	return map[string]kafka{
		"members assign":     {brokers: brokers},
		"the server assigns": {brokers: brokers, serverSide: true},
	}
}

func TestSuiteOnARealServer(t *testing.T) {
	for name, k := range real(t) {
		t.Run(name, func(t *testing.T) { brokertest.Run(t, k.harness()) })
	}
}

func TestCasesOnARealServer(t *testing.T) {
	for name, k := range real(t) {
		t.Run(name, func(t *testing.T) { cases(t, k) })
	}
}
