package sekali_test

import (
	"strings"
	"testing"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/internal/memstore"
)

// A consumer that was renamed and replays its history must not have its effects
// again.
func TestARenamedConsumerKnowsWhatItProcessedUnderItsOldName(t *testing.T) {
	for stored, want := range map[string]int{"": 2, "stock-service": 1} {
		memory := memstore.New()
		old := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) { c.Store = memory })
		old.source.push("a")
		old.events.wait(t, 1, kind(sekali.Finished))
		if err := old.stop(); err != nil {
			t.Fatal(err)
		}
		r := start(t, func(c *sekali.Config[*memstore.Tx], _ *rig) {
			c.Store, c.Name, c.StoredName = memory, "warehouse", stored
		})
		r.source.push("a")
		copied := delivery("b", "")
		copied.Message.Headers = broker.Headers{{Name: sekali.HeaderKey, Value: []byte("a")}, {Name: sekali.HeaderConsumer, Value: []byte("stock-service")}}
		r.source.pushed <- copied
		r.events.wait(t, 2, kind(sekali.Finished))
		keyless := delivery("", "")
		r.source.pushed <- keyless
		r.events.wait(t, 1, kind(sekali.DeadLettered))
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if n := memory.Counter("sold a"); n != want {
			t.Errorf("stored as %q, it was sold %d times, want %d", stored, n, want)
		}
		if n := memory.Counter("sold b"); n != want-1 {
			t.Errorf("stored as %q, a copy that it made was sold %d times, want %d", stored, n, want-1)
		}
		if n := r.events.count(func(e sekali.Event) bool { return e.Consumer != "warehouse" }); n != 0 {
			t.Errorf("stored as %q, %d events have another name than Name", stored, n)
		}
		letters, err := memory.DeadLetters().List(t.Context(), deadletter.Filter{})
		if name := map[bool]string{true: "warehouse", false: stored}[stored == ""]; err != nil || len(letters) != 1 || letters[0].Consumer != name {
			t.Errorf("stored as %q, the letters are %+v, %v", stored, letters, err)
		}
	}
}

func TestAStoredNameThatCannotBeStoredIsRefused(t *testing.T) {
	_, err := sekali.NewConsumer(sekali.Config[*memstore.Tx]{
		Name: "n", StoredName: strings.Repeat("n", 101), Source: newScript(), Store: memstore.New(), Key: sekali.MessageID(), Handle: sell,
	})
	if err == nil || !strings.Contains(err.Error(), "StoredName") {
		t.Errorf("the error is %v", err)
	}
}
