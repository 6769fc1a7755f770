package retention_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/faulty"
	"github.com/sekali/sekali/internal/memstore"
	"github.com/sekali/sekali/migrate"
	"github.com/sekali/sekali/retention"
	"github.com/sekali/sekali/store"
	"github.com/sekali/sekali/store/sqlstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onEach runs a test on a database of each kind.
func onEach(t *testing.T, f func(t *testing.T, db *dbtest.DB, s *sqlstore.Store)) {
	for name, d := range databases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := d.open(t)
			f(t, db, sqlstore.New(db.SQL, d.dialect))
		})
	}
}

// hours is a policy for rows that are hours old.
func hours(keep time.Duration) retention.Policy {
	return retention.Policy{Keys: keep, DeadLetters: retention.Forever, MaxDuplicateAge: keep / 2, Margin: keep / 2}
}

// keys makes processed keys that are so old.
func keys(t *testing.T, db *dbtest.DB, s *sqlstore.Store, prefix string, n int, age time.Duration) {
	t.Helper()
	c := store.Claim{Consumer: "stock-service"}
	for i := range n {
		c.Keys = append(c.Keys, store.Key{Raw: fmt.Sprint(prefix, i)})
	}
	tx, _, err := s.Begin(t.Context(), c)
	if err == nil {
		err = s.Commit(t.Context(), tx)
	}
	if err != nil {
		t.Fatal(err)
	}
	older := map[migrate.Dialect]string{
		migrate.Postgres: "processed_at - interval '%d seconds'",
		migrate.MySQL:    "processed_at - INTERVAL %d SECOND",
		migrate.SQLite:   "strftime('%%Y-%%m-%%d %%H:%%M:%%f', processed_at, '-%d seconds')",
	}[db.Dialect]
	exec(t, db.SQL, "UPDATE processed_messages SET processed_at = "+fmt.Sprintf(older, int(age.Seconds()))+" WHERE message_key LIKE '"+prefix+"%'")
}

func exec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func count(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

const rows = "SELECT COUNT(*) FROM processed_messages"

func TestARunRemovesWhatIsOldInSmallBatchesAndTellsHowFarItIs(t *testing.T) {
	onEach(t, func(t *testing.T, db *dbtest.DB, s *sqlstore.Store) {
		keys(t, db, s, "old", 2500, 3*time.Hour)
		keys(t, db, s, "young", 10, 0)
		var steps []int64
		p, err := retention.New(s, retention.Config{Policy: hours(2 * time.Hour), Pause: time.Millisecond, Progress: func(p retention.Progress) {
			if p.Rows == store.PruneKeys {
				steps = append(steps, p.Removed)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		dry, err := p.DryRun(t.Context())
		if err != nil || dry.Removed() != 2500 {
			t.Errorf("a dry run finds %d, %v", dry.Removed(), err)
		}
		if n := count(t, db.SQL, rows); n != 2510 {
			t.Errorf("after a dry run %d rows are left", n)
		}
		report, err := p.Run(t.Context())
		if err != nil || report.Removed() != 2500 || count(t, db.SQL, rows) != 10 {
			t.Errorf("%d rows went, %v", report.Removed(), err)
		}
		if fmt.Sprint(steps) != "[1000 2000 2500]" {
			t.Errorf("it told of %v", steps)
		}
	})
}

func TestAPolicyThatIsTooShortRemovesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db *dbtest.DB, s *sqlstore.Store) {
		keys(t, db, s, "old", 5, 900*day)
		p, err := retention.New(s, retention.Config{Policy: retention.Policy{Keys: 9 * day, Sources: sources(source{age: 7 * day, limited: true})}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(t.Context()); !errors.Is(err, retention.ErrTooShort) {
			t.Errorf("it ran: %v", err)
		}
		if _, err := p.DryRun(t.Context()); !errors.Is(err, retention.ErrTooShort) {
			t.Errorf("the dry run ran: %v", err)
		}
		if n := count(t, db.SQL, rows); n != 5 {
			t.Errorf("%d rows are left", n)
		}
	})
}

func TestTwoRunsAtOnceAreOneRun(t *testing.T) {
	onEach(t, func(t *testing.T, db *dbtest.DB, s *sqlstore.Store) {
		keys(t, db, s, "old", 300, 3*time.Hour)
		var running sync.WaitGroup
		var second sync.Once
		var other error
		var config retention.Config
		config = retention.Config{Policy: hours(2 * time.Hour), Batch: 50, Pause: time.Millisecond, Progress: func(retention.Progress) {
			second.Do(func() {
				// In the middle of the first.
				running.Go(func() {
					config := config
					config.Progress = nil
					p, err := retention.New(s, config)
					if err == nil {
						_, err = p.Run(context.Background())
					}
					other = err
				})
				running.Wait()
			})
		}}
		p, err := retention.New(s, config)
		if err != nil {
			t.Fatal(err)
		}
		report, err := p.Run(t.Context())
		if err != nil || report.Removed() != 300 {
			t.Errorf("%d rows went, %v", report.Removed(), err)
		}
		if !errors.Is(other, store.ErrPruning) {
			t.Errorf("the other says %v", other)
		}
		if _, err := p.Run(t.Context()); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestAPrunerThatStopsInTheMiddleLeavesTheRestToTheNext(t *testing.T) {
	onEach(t, func(t *testing.T, db *dbtest.DB, s *sqlstore.Store) {
		keys(t, db, s, "old", 300, 3*time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		config := retention.Config{Policy: hours(2 * time.Hour), Batch: 50, Progress: func(retention.Progress) { cancel() }}
		p, err := retention.New(s, config)
		if err != nil {
			t.Fatal(err)
		}
		report, err := p.Run(ctx)
		if !errors.Is(err, context.Canceled) || report.Removed() != 50 {
			t.Errorf("%d rows went, %v", report.Removed(), err)
		}
		if report, err = p.Run(t.Context()); err != nil || report.Removed() != 250 {
			t.Errorf("then %d rows went, %v", report.Removed(), err)
		}
	})
}

func TestEveryRunsAgainUntilItsContextEnds(t *testing.T) {
	onEach(t, func(t *testing.T, db *dbtest.DB, s *sqlstore.Store) {
		p, err := retention.New(faulty.NewStore(s), retention.Config{Policy: hours(2 * time.Hour)}) // found through a wrapper
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		p.Every(ctx, time.Millisecond, func(_ retention.Report, err error) {
			if err != nil {
				t.Error(err)
			}
			if runs++; runs == 3 {
				cancel()
			}
		})
		if runs != 3 {
			t.Errorf("%d runs", runs)
		}
	})
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, c := range map[string]retention.Config{
		"no keys":        {},
		"batch":          {Policy: hours(2 * time.Hour), Batch: -1},
		"negative pause": {Policy: hours(2 * time.Hour), Pause: -1},
	} {
		if _, err := retention.New(&sqlstore.Store{}, c); err == nil {
			t.Errorf("%s: was not refused", name)
		}
	}
	if _, err := retention.New(memstore.New(), retention.Config{Policy: hours(2 * time.Hour)}); err == nil || !strings.Contains(err.Error(), "pgxstore") {
		t.Errorf("a store that removes nothing: %v", err)
	}
}
