package admin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/admin"
	"github.com/sekali/sekali/deadletter"
	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/outbox"
	"github.com/sekali/sekali/store"
)

// well are facts of a database of which nothing is to be said, close to limits.
func well() (admin.Facts, admin.Question) {
	return admin.Facts{
		Database: "PostgreSQL 17.2", Isolation: "repeatable read", ClockAhead: -2900 * time.Millisecond, ClockWithin: time.Second,
		Prepares: true, Pool: 4, Connections: 100, InUse: 89,
		Overview: admin.Overview{
			DeadLetters: map[deadletter.Status]admin.Waiting{
				deadletter.Held: {Count: 1, Oldest: time.Hour}, deadletter.Waiting: {Count: 1, Oldest: time.Hour},
				deadletter.Requested: {Count: 1, Oldest: 9 * time.Minute},
			},
			Effects: map[effect.State]admin.Waiting{
				effect.Unknown: {Count: 1, Oldest: 9 * time.Minute}, effect.Started: {Count: 1, Oldest: 9 * time.Minute},
			},
			Outbox:    outbox.Stats{Pending: 10, Lag: 59 * time.Second},
			Consumers: []admin.Consumer{{Name: "stock", HasKeys: true, LastActive: time.Now()}, {Name: "new", LastActive: time.Now()}},
		},
	}, admin.Question{
		Workers: 4, Retention: 10 * 24 * time.Hour, BrokerRetention: 7 * 24 * time.Hour,
	}
}

func TestADiagnosisNamesWhatIsBeyondItsLimit(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	type facts = *admin.Facts
	type question = *admin.Question
	letters := func(s deadletter.Status, w admin.Waiting) func(facts, question) {
		return func(f facts, _ question) { f.Overview.DeadLetters[s] = w }
	}
	effects := func(s effect.State, w admin.Waiting) func(facts, question) {
		return func(f facts, _ question) { f.Overview.Effects[s] = w }
	}
	for name, c := range map[string]struct {
		spoil func(facts, question)
		want  string // severity, check: part of the text
	}{
		"nothing":          {func(facts, question) {}, ""},
		"nothing is asked": {func(_ facts, q question) { *q = admin.Question{} }, ""},
		"processed_messages is unfit": {func(f facts, _ question) {
			f.Unfit = []admin.Unfit{{Table: "p", Main: true, Cause: "folds", SQL: "ALTER"}}
		}, "error schema: folds"},
		"and its index is missing": {func(f facts, _ question) {
			f.Unfit, f.NoIndex = []admin.Unfit{{Main: true, Cause: "folds"}}, []string{"x"}
		}, "error schema: folds"},
		"another table is unfit":         {func(f facts, _ question) { f.Unfit = []admin.Unfit{{Table: "d", Cause: "missing"}} }, "warning schema: missing"},
		"an index is missing":            {func(f facts, _ question) { f.NoIndex = []string{"processed_at"} }, "warning index: processed_at"},
		"a replica":                      {func(f facts, _ question) { f.ReadOnly = "the server is a replica" }, "error writable: replica"},
		"fsync off":                      {func(f facts, _ question) { f.Volatile, f.SomewhatVolatile = "fsync = off", "x" }, "error durability: destroy"},
		"synchronous_commit off":         {func(f facts, _ question) { f.SomewhatVolatile = "synchronous_commit = off" }, "warning durability: last commits"},
		"read uncommitted":               {func(f facts, _ question) { f.Isolation = "read uncommitted" }, "error isolation: not committed"},
		"serializable":                   {func(f facts, _ question) { f.Isolation = "serializable" }, "warning isolation: serializable"},
		"a pooler":                       {func(f facts, _ question) { f.SharedSession = true }, "warning pooler: one session"},
		"a pooler and nothing else":      {func(f facts, _ question) { f.Confused, f.ReadOnly, f.Volatile = true, "x", "y" }, "error pooler: wrong one"},
		"a pool for fewer":               {func(f facts, _ question) { f.Pool = 3 }, "warning pool: 3 connections at most for 4 workers"},
		"a pool without a limit":         {func(f facts, _ question) { f.Pool = 0 }, ""},
		"a full server":                  {func(f facts, _ question) { f.InUse = 90 }, "warning connections: 90 of the server's 100"},
		"a small server":                 {func(f facts, _ question) { f.Connections = 3 }, "error connections: 3 connections"},
		"a clock behind":                 {func(f facts, _ question) { f.ClockAhead = -3100 * time.Millisecond }, "warning clock: 3.1s behind"},
		"a clock far ahead":              {func(f facts, _ question) { f.ClockAhead = 6 * time.Minute }, "error clock: 6m0s ahead"},
		"a clock that answers slowly":    {func(f facts, _ question) { f.ClockAhead, f.ClockWithin = 6*time.Second, 5*time.Second }, ""},
		"short retention":                {func(_ facts, q question) { q.Retention -= hour }, "error retention: for 239h0m0s"},
		"no retention":                   {func(_ facts, q question) { q.Retention = 0 }, ""},
		"a broker that forgets nothing":  {func(_ facts, q question) { q.BrokerUnlimited, q.BrokerRetention = true, 0 }, "warning retention: for ever"},
		"a broker of which nobody knows": {func(_ facts, q question) { q.BrokerRetention = 0 }, ""},
		"dead rows":                      {func(f facts, _ question) { f.Wastes = []admin.Waste{{Table: "p", Share: .75, Rows: 30_000}} }, "warning bloat: 75% of it is empty (30000 dead rows)"},
		"empty room":                     {func(f facts, _ question) { f.Wastes = []admin.Waste{{Table: "p", Share: .75, Bytes: 30 << 20}} }, "warning bloat: 75% of it is empty (30 MiB)"},
		"open letters":                   {letters(deadletter.Open, admin.Waiting{Count: 2, Oldest: hour}), "warning dead letters: 2 dead letters are open, the oldest for 1h0m0s; 1 messages are held"},
		"many open letters":              {letters(deadletter.Open, admin.Waiting{Count: admin.MaxCount}), "warning dead letters: 100000 or more"},
		"letters that nobody takes":      {letters(deadletter.Requested, admin.Waiting{Count: 1, Oldest: 11 * time.Minute}), "warning dead letters: nobody takes"},
		"unknown effects":                {effects(effect.Unknown, admin.Waiting{Count: 1, Oldest: 11 * time.Minute}), "warning effects: outcome of 1 effects"},
		"effects of the dead":            {effects(effect.Started, admin.Waiting{Count: 1, Oldest: 11 * time.Minute}), "warning effects: processes that ended"},
		"parked effects":                 {effects(effect.Parked, admin.Waiting{Count: 1}), "warning effects: 1 effects are parked"},
		"a slow relay":                   {func(f facts, _ question) { f.Overview.Outbox.Lag = 61 * time.Second }, "warning outbox: of 10 events has waited for 1m1s"},
		"no relay":                       {func(f facts, _ question) { f.Overview.Outbox.Lag = 16 * time.Minute }, "error outbox: 16m0s"},
		"events that are refused":        {func(f facts, _ question) { f.Overview.Outbox.Parked = 3 }, "warning outbox: refuses 3 events"},
		"a name of nobody":               {func(f facts, _ question) { f.Overview.Consumers[1] = admin.Consumer{Name: "old", HasKeys: true} }, "warning names: did nothing for 30 days"},
		"no statistics at all":           {func(f facts, _ question) { f.Overview.Consumers = []admin.Consumer{{Name: "old", HasKeys: true}} }, ""},
		"two at once, the worse first": {func(f facts, _ question) {
			f.SharedSession, f.Overview.Outbox.Lag = true, day
		}, "error outbox: 24h0m0s|warning pooler: one session"},
	} {
		f, q := well()
		c.spoil(&f, &q)
		findings := admin.Diagnose(f, q)
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "|")
		}
		if len(findings) != len(want) {
			t.Errorf("%s: %d findings: %+v", name, len(findings), findings)
			continue
		}
		for i, got := range findings {
			head, text, _ := strings.Cut(want[i], ": ")
			if string(got.Severity)+" "+got.Check != head || !strings.Contains(got.About+": "+got.Found, text) {
				t.Errorf("%s: %+v, want %s", name, got, want[i])
			}
			if got.Means == "" && got.Check != "schema" || got.Mend == "" && got.Check != "schema" && got.Check != "bloat" || !slices.Contains(admin.Checks(), got.Check) {
				t.Errorf("%s: it does not say what comes of it or what mends it: %+v", name, got)
			}
		}
	}
}

func TestATextMayBeAKeyOrItsStoredForm(t *testing.T) {
	stored := store.StoredKey(strings.Repeat("k", 300))
	for text, want := range map[string][]string{
		"k":                          {"k"},
		stored:                       {store.StoredKey(stored), stored},
		strings.ToUpper(stored):      {strings.ToUpper(stored)},
		stored[:len(stored)-1]:       {store.StoredKey(stored[:len(stored)-1])},
		stored[:len(stored)-1] + "g": {store.StoredKey(stored[:len(stored)-1] + "g")},
	} {
		if got := admin.Forms(text); !slices.Equal(got, want) {
			t.Errorf("%q may be %q, want %q", text, got, want)
		}
	}
}
