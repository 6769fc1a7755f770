package sekalitest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
)

// brokenBy returns the case of the broken consumer of a name.
func brokenBy(t *testing.T, name string) func(testing.TB) Case[*sql.Tx] {
	t.Helper()
	i := slices.IndexFunc(brokens, func(b broken) bool { return b.name == name })
	if i < 0 {
		t.Fatalf("no consumer is broken by %q", name)
	}
	return brokenCase(brokens[i].breaks)
}

func TestEachDeliveryCatchesSomething(t *testing.T) {
	catches := map[string]bool{"at once, 8 consumers": true, "reversed": true, "crash after Prepare": true, "provider slow": true, "provider refuses": true, "provider acts without an answer": true} // see special_test.go
	for _, b := range brokens {
		for _, name := range b.caught {
			catches[name] = true
		}
	}
	for _, d := range named(3, 0, true, true) {
		if !catches[d.name] {
			t.Errorf("%q catches none of the broken consumers", d.name)
		}
		delete(catches, d.name)
	}
	for name := range catches {
		t.Errorf("no delivery is called %q", name)
	}
}

func TestAFailureIsPlayedAgainWithItsShortestHistory(t *testing.T) {
	for name, want := range map[string]history{
		"the key is the time of publication":          {{arrive: []int{0, 0}}},
		"a redriven message is taken for done":        {{arrive: []int{0}, troubles: []trouble{{poisoned, 0}}}, {redrive: true}},
		"the claim is committed before the handler":   {{arrive: []int{0}, troubles: []trouble{{crashClaimed, 0}}}},
		"errors of statements are swallowed":          {{arrive: []int{0}, troubles: []trouble{{cancelling, 0}}}},
		"the consumer's name changes with each start": {{arrive: []int{0}}, {again: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSuite(t, brokenBy(t, name))
			for _, d := range s.deliveries() {
				f := s.prove(t, d)
				if f == nil || d.name == "at once, 2 consumers" {
					continue
				}
				for i := range f.history { // Delete leaves empty slices behind
					if len(f.history[i].arrive) == 0 {
						f.history[i].arrive = nil
					}
				}
				same := slices.EqualFunc(f.history, want, func(a, b life) bool {
					if len(a.troubles) > 0 && len(b.troubles) > 0 {
						a.troubles[0].message = b.troubles[0].message
					}
					if len(a.arrive) == len(b.arrive) { // which message it is does not matter
						a.arrive = b.arrive
					}
					return a.String() == b.String()
				})
				if d.name != "at once, 8 consumers" && d.name != "crash after the commit" && !same {
					t.Errorf("%s: the shortest history is\n%swant\n%s", d.name, f.history, want)
				}
				return
			}
			t.Error("no delivery catches it")
		})
	}
}

func TestASeedIsAHistory(t *testing.T) {
	kinds, again, redrive := map[kind]bool{}, false, false
	for seed := range uint64(200) {
		h := random(seed, 3, false, true)
		if !reflect.DeepEqual(h, random(seed, 3, false, true)) {
			t.Fatalf("seed %d makes two histories", seed)
		}
		for _, l := range h {
			again, redrive = again || l.again, redrive || l.redrive
			for _, tr := range l.troubles {
				kinds[tr.kind] = true
			}
		}
		if n := len(h.messages()); n != 3 {
			t.Errorf("seed %d has %d of 3 messages", seed, n)
		}
	}
	if len(kinds) != 11 || !again || !redrive {
		t.Errorf("200 histories have %d kinds of trouble, want 11; the broker begins again: %v; redrives: %v", len(kinds), again, redrive)
	}
}

// childEnv has the test binary play a broken consumer.
const childEnv = "SEKALITEST_CHILD"

func TestChildWithABrokenConsumer(t *testing.T) {
	name := os.Getenv(childEnv)
	if name == "" {
		return // it is for TestRunFailsAndSaysWhy, which starts this test in a process of its own
	}
	Run(t, brokenBy(t, name))
}

// child runs the test above on a broken consumer, and returns what it said.
func child(t *testing.T, name, only string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", only)
	cmd.Env = append(append(os.Environ(), childEnv+"="+name, "SEKALITEST_HISTORIES=3"), env...)
	output, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the broken consumer %q passed", name)
	}
	return string(output)
}

func TestRunFailsAndSaysWhy(t *testing.T) {
	said := child(t, "a redriven message is taken for done", "^TestChildWithABrokenConsumer$/^redrive$")
	for _, want := range []string{
		"the effect is not that of each message once",
		"want: KOPI-250 | 100\n                    TEH-100 | 97",
		"got:  KOPI-250 | 100\n                    TEH-100 | 100",
		"1. published: messages 2; a process starts; the handler of message 2 always fails after its work",
		"2. dead letters are redriven; a process starts",
		`message 2 (key "2") becomes a dead letter: permanent`,
		`message 2 (key "2"): processed`,
		"Repeat it: go test -run '^TestChildWithABrokenConsumer$/^redrive$'",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

func TestARandomFailureSaysItsSeedWhichRepeatsIt(t *testing.T) {
	seed := uint64(1)
	for !publishesTwice(random(seed, len(shopMessages), false, false)) {
		seed++
	}
	said := child(t, "the key is the time of publication", "^TestChildWithABrokenConsumer$", fmt.Sprint("SEKALITEST_SEED=", seed))
	if !strings.Contains(said, fmt.Sprintf("Repeat it: SEKALITEST_SEED=%d go test -run '^TestChildWithABrokenConsumer$'", seed)) ||
		strings.Contains(said, "twice_in_a_row") {
		t.Errorf("seed %d plays something else, or does not say so:\n%s", seed, said)
	}
}

// publishesTwice tells whether a message of a history comes as a copy.
func publishesTwice(h history) bool {
	n := 0
	for _, l := range h {
		n += len(l.arrive)
	}
	return n > len(h.messages())
}

func TestWithoutAStandardNothingElseIsPlayed(t *testing.T) {
	said := child(t, "nothing is done", "^TestChildWithABrokenConsumer$")
	if !strings.Contains(said, "the effect is not that of Case.Want") || strings.Contains(said, "twice_in_a_row") ||
		!strings.Contains(said, "the other deliveries are not played") {
		t.Errorf("it says\n%s", said)
	}
}

func TestADatabaseWhoseStatementsAreNotSeenIsSaid(t *testing.T) {
	world := func(t testing.TB) Case[*sql.Tx] {
		c := shopCase(nil)(t)
		file := t.TempDir() + "/plain.db"
		bytes, err := template()
		if err == nil {
			err = os.WriteFile(file, bytes, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(sqliteConnector(file))
		t.Cleanup(func() { _ = db.Close() })
		execute(t, db, []string{shopSchema})
		c.Consumer = func(source broker.Source) shop { return newShop(db, source) }
		c.Snapshot = Rows(db, shopQueries...)
		return c
	}
	if caught := caughtBy(t, world); !slices.Equal(caught, []string{"cancelled at every statement", "error at every statement", "panic at every statement"}) {
		t.Errorf("caught by %q", caught)
	}
}

func TestWhatACaseLacksIsSaid(t *testing.T) {
	good := shopCase(nil)
	for name, change := range map[string]func(*Case[*sql.Tx]){
		"Case.Consumer is not set": func(c *Case[*sql.Tx]) { c.Consumer = nil },
		"Case.Snapshot is not set": func(c *Case[*sql.Tx]) { c.Snapshot = nil },
		"Case.Messages is empty":   func(c *Case[*sql.Tx]) { c.Messages = nil },
	} {
		said := recorded(t, func(t testing.TB) {
			newSuite(t, func(t testing.TB) Case[*sql.Tx] {
				c := good(t)
				change(&c)
				return c
			})
		})
		if !strings.Contains(said, name) {
			t.Errorf("%q is said, want %q", said, name)
		}
	}
}

func TestABatchHandlerPassesEveryDelivery(t *testing.T) {
	Run(t, shopCase(func(cfg *shop, _ *sql.DB) {
		handle := cfg.Handle
		cfg.Handle = nil
		cfg.HandleBatch = func(ctx context.Context, tx *sql.Tx, all []*sekali.Message) error {
			for _, m := range all {
				if err := handle(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}
	}))
}

func TestMessagesWithAnOrderPassEveryDelivery(t *testing.T) {
	Run(t, func(t testing.TB) Case[*sql.Tx] {
		c := shopCase(nil)(t)
		consumer := c.Consumer
		c.Consumer = func(source broker.Source) shop {
			cfg := consumer(source)
			cfg.OnBlocked = sekali.HoldKey
			return cfg
		}
		c.Messages = slices.Clone(c.Messages)
		for i := range c.Messages {
			c.Messages[i].OrderingKey = []byte{"aba"[i]}
		}
		return c
	})
}

func TestAHandlerThatAsksForTimeGetsItAtOnce(t *testing.T) {
	world := func(t testing.TB) Case[*sql.Tx] {
		db := SQLite(t, shopSchema, "INSERT INTO processed_messages (consumer_name, message_key) VALUES ('other', 'k')")
		return Case[*sql.Tx]{
			Consumer: func(source broker.Source) shop {
				cfg, asked := newShop(db, source), map[string]bool{}
				handle := cfg.Handle
				cfg.Batch.Size = 1
				cfg.Handle = func(ctx context.Context, tx *sql.Tx, m *sekali.Message) error {
					if !asked[m.Key()] {
						asked[m.Key()] = true
						return sekali.RetryAfter(errors.New("not yet"), time.Hour)
					}
					return handle(ctx, tx, m)
				}
				return cfg
			},
			Messages: shopMessages[:2],
			Snapshot: Rows(db, append(shopQueries, "SELECT round(24 * (julianday('now') - julianday(processed_at))) FROM processed_messages WHERE consumer_name = 'other'")...),
		}
	}
	s := newSuite(t, world)
	w := s.newWorld(t)
	defer w.scope.close()
	if err := w.play(t.Context(), history{{arrive: []int{0, 1}}}); err != nil {
		t.Fatal(err)
	}
	got, err := w.state(t.Context())
	if err != nil || got.snapshot != "KOPI-250 | 98\nTEH-100 | 97\n\n1 | 2\n2 | 3\n\n2\n" {
		t.Errorf("%v, and an hour for each message is to have passed:\n%s", err, got.snapshot)
	}
}
