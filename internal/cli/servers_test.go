//go:build !fast

package cli_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dbtest"
	"github.com/sekali/sekali/internal/natstest"
)

func TestMigrateIntoASchemaThatIsNotThereSaysSo(t *testing.T) {
	u, err := url.Parse(dbtest.Postgres(t, dbtest.Empty()).URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "no_such_schema")
	u.RawQuery = q.Encode()
	r := run(t, "migrate", "up", "--database", u.String())
	if r.status != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "CREATE SCHEMA") {
		t.Errorf("status %d, %q", r.status, r.stderr)
	}
}

func TestTheDemoIsExactOnServers(t *testing.T) {
	for name, open := range map[string]func(testing.TB, ...dbtest.Option) *dbtest.DB{
		"PostgreSQL": dbtest.Postgres, "MariaDB": dbtest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, dbtest.Empty())
			places := `SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'sekali_demo_%'`
			var before, after int
			if err := db.SQL.QueryRow(places).Scan(&before); err != nil {
				t.Fatal(err)
			}
			r := run(t, append(small, "--database", db.URL, "--broker", natstest.RealURL(t))...)
			checkReport(t, r)
			if strings.Contains(r.stdout, "sekali:sekali@") {
				t.Errorf("the report shows the password: %s", r.stdout)
			}
			if err := db.SQL.QueryRow(places).Scan(&after); err != nil || after != before {
				t.Errorf("%d demo schemas before, %d after (%v)", before, after, err)
			}
		})
	}
}
