package sekalitest

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/effect"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
	"github.com/sekali/sekali/store/sqlstore/sqlite"
)

// letPass tries what Elapse is for: leases end, keys grow old.
func letPass[DB any](t *testing.T, db DB, elapse func(testing.TB, DB, time.Duration), rows effect.Rows, ages store.Ager, age func(key string)) {
	t.Helper()
	id := effect.ID{Consumer: "c", MessageKey: "m", Name: "mail"}
	if _, ours, err := rows.Start(t.Context(), id, "key", time.Minute); err != nil || !ours {
		t.Fatalf("start: %v, %v", ours, err)
	}
	age("k")
	elapse(t, db, 40*time.Second)
	r, _, err := rows.Start(t.Context(), id, "key", time.Minute)
	if err != nil || r.LeaseLeft > 20*time.Second || r.LeaseLeft < 10*time.Second || r.SinceFirst < 40*time.Second {
		t.Errorf("after 40 s: %v of a minute's lease is left, it was started %v ago: %v", r.LeaseLeft, r.SinceFirst, err)
	}
	elapse(t, db, 24*time.Hour+1500*time.Millisecond)
	if r, _, err = rows.Start(t.Context(), id, "key", time.Minute); err != nil || r.LeaseLeft != 0 {
		t.Errorf("after a day: %v of the lease is left: %v", r.LeaseLeft, err)
	}
	got, err := ages.Ages(t.Context(), store.Claim{Consumer: "c", Keys: []store.Key{{Raw: "k"}}})
	want := 24*time.Hour + 41500*time.Millisecond
	if err != nil || len(got) != 1 || got[0] < want || got[0] > want+time.Minute {
		t.Errorf("the key is %v old, want %v: %v", got, want, err)
	}
}

func claimOn[Tx any](t *testing.T, s store.Store[Tx]) func(string) {
	return func(key string) {
		tx, _, err := s.Begin(t.Context(), store.Claim{Consumer: "c", Keys: []store.Key{{Raw: key}}})
		if err == nil {
			err = s.Commit(t.Context(), tx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTimePassesOnSQLite(t *testing.T) {
	db := SQLite(t)
	s := sqlstore.New(db, sqlite.Dialect)
	letPass(t, db, Elapse[*sql.DB], s.Effects(), store.Ager(s), claimOn(t, s))
}

func TestTimePassesInEveryColumnThatIsATime(t *testing.T) {
	db := SQLite(t)
	a := aged{db, "sqlite"}
	// What is a time by its name or type, and stays as it is.
	stays := map[string]bool{"consumer_stats.at_minute": true}
	rows, err := db.Query("SELECT m.name, c.name, c.type FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'" +
		" AND m.name NOT LIKE 'sqlite%' AND m.name NOT LIKE '%migrations%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	known := map[string]bool{}
	for _, table := range tables() {
		known[table] = true
	}
	n := 0
	for rows.Next() {
		var table, name, kind string
		if err := rows.Scan(&table, &name, &kind); err != nil {
			t.Fatal(err)
		}
		looks := kind == "TIMESTAMP" || strings.Contains("_"+name+"_", "_at_") || strings.Contains(name, "until") || strings.Contains(name, "before")
		switch {
		case !known[table]:
			t.Errorf("table %s is one of Sekali's, and Elapse does not know it", table)
		case looks && !stays[table+"."+name] && a.older(name, strings.ToLower(kind), time.Second) == "":
			t.Errorf("%s.%s looks like a time, and does not pass", table, name)
		case looks:
			n++
		}
	}
	if n < 10 {
		t.Errorf("only %d columns look like times", n)
	}
}
