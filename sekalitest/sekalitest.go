// Package sekalitest is the kit with which a user proves that a consumer is
// idempotent: that each message has its effect once, however it is delivered
// and whatever fails on the way.
//
//	func TestShippingIsIdempotent(t *testing.T) {
//		sekalitest.Run(t, func(t testing.TB) sekalitest.Case[*sql.Tx] {
//			db := sekalitest.SQLite(t, shop.Schema)
//			return sekalitest.Case[*sql.Tx]{
//				Consumer: func(source broker.Source) sekali.Config[*sql.Tx] { return shop.New(db, source) },
//				Messages: []broker.Message{{Body: []byte(`{"order":"42","sku":"KOPI-250"}`)}},
//				Snapshot: sekalitest.Rows(db, "SELECT sku, quantity FROM stock ORDER BY sku"),
//			}
//		})
//	}
//
// Run plays deliveries, each a subtest on a database of its own, and compares
// what is in the database afterwards, and how many messages are recorded as
// processed, with what is there when the same messages come one at a time and
// nothing fails. It looks at the database, not at calls. A failure is played
// again with less and less of its history, as long as it still fails, and the
// shortest is printed.
//
// SQLite and Postgres make the database of a test; through OpenDB Run sees the
// statements on another one; NewProvider is somebody else's service with whom
// effects happen; Elapse lets time pass; GoldenKeys pins how message keys are
// formed. The package is for tests: it imports testing. docs/testing.md says
// more.
package sekalitest

import (
	"context"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// Case is a consumer with what it is to be tried on. Consumer, Messages and
// Snapshot are required.
type Case[Tx any] struct {
	// Consumer returns what a process that starts would make: the Config of the
	// consumer as it runs in production, with source in its field Source (left
	// empty, it is filled in). It is called for each process, several of which
	// may run at once, so what it keeps in memory is lost with a restart, as in
	// production.
	//
	// What Run changes in the Config: pauses are short; what a handler asks to wait
	// for (sekali.RetryAfter) has passed at once; MaxAttempts is 5 at least,
	// Workers 1 but where several processes run; statistics are not written.
	Consumer func(source broker.Source) sekali.Config[Tx]
	// Messages, each of them something that is to have an effect once, in the
	// order in which they are published. Two or three of one entity, and one of
	// another, show the most. None may become a dead letter by itself. Where ID
	// is empty each copy that is published has another one, as a position in a
	// broker would be; PublishedAt is Run's.
	Messages []broker.Message
	// Refused are messages that the consumer is to refuse: each of them must
	// become a dead letter, without an effect. They are published behind
	// Messages, and share batches with them. Defaults to none.
	Refused []broker.Message
	// Snapshot reads back what the handler has changed, all of it, in an order
	// of its own: see Rows. What differs from run to run, such as a time, must
	// not be in it.
	Snapshot func(ctx context.Context) (string, error)
	// Want is what Snapshot is to return when each of Messages has had its
	// effect once, in their order. Defaults to what it returns when they come
	// one at a time and nothing fails, which a handler that never does its work
	// passes.
	Want string
	// AnyOrder says that Messages must leave the same in whatever order they
	// come. Else they may leave what they leave in the order in which they took
	// effect. True if Config.Version is set.
	AnyOrder bool
	// Provider is where the consumer has its effects, if it has any: Run has it
	// be slow, fail, and act without an answer, and counts what it did.
	Provider *Provider
}

// Run plays the deliveries, one after another. world is called for each with
// the subtest, or for a part of it: it makes a new database, and a Case on it;
// what it hands to t.Cleanup is done when the delivery is over. The deliveries:
//
//	once                              each message, in order
//	twice in a row                    the producer sent each message twice
//	at once, 2 / 8 consumers          all get every message, together
//	crash after the claim / after the handler / after the commit / before the ack
//	handler error then success        it fails after its work
//	panic                             it panics after its work
//	cancelled at every statement      its context ends before each of them, one after another
//	error / panic at every statement  each of them fails, one after another
//	stop                              the process is stopped while a message is in work, and others wait
//	poison neighbour                  a message of the batch always fails
//	redrive                           the dead letter of such a one is processed again
//	restart                           a new process gets everything again
//	late                              the first message comes again after all others
//	reversed                          the last message comes first
//	crash after Prepare, provider slow / refuses / acts without an answer
//	any history                       random ones of all this
//
// "reversed" is played if AnyOrder is true, "crash after Prepare" and those of
// the provider if there is one. Of "any history" it plays 10, or
// SEKALITEST_HISTORIES; a failure says the seed to set SEKALITEST_SEED to, with
// which that history alone is played.
func Run[Tx any](t *testing.T, world func(t testing.TB) Case[Tx]) {
	t.Helper()
	s := newSuite(t, world)
	for _, d := range s.deliveries() {
		t.Run(d.name, func(t *testing.T) {
			if f := s.prove(t, d); f != nil {
				t.Error(f.report(t.Name(), d))
			}
		})
		if s.hopeless {
			t.Fatal("the other deliveries are not played: they are compared with the one that failed")
		}
	}
}
