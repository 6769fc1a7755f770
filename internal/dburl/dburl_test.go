package dburl_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/sekali/sekali/internal/dburl"
)

func TestMySQLURLBecomesADataSourceName(t *testing.T) {
	u, err := url.Parse("mysql://us%40er:p%3Aw%2F@[::1]/shop?parseTime=true&time_zone=%27%2B07%3A00%27")
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := dburl.MySQLDSN(u)
	if err != nil {
		t.Fatal(err)
	}
	got, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "us@er" || got.Passwd != "p:w/" || got.Addr != "[::1]:3306" || got.DBName != "shop" ||
		!got.ParseTime || got.Params["time_zone"] != "'+07:00'" {
		t.Errorf("got %+v", got)
	}
}

func TestOtherSchemesAreRefused(t *testing.T) {
	if dsn, err := dburl.MySQLDSN(&url.URL{Scheme: "postgres", Host: "h"}); err == nil {
		t.Errorf("postgres:// became %q", dsn)
	}
}

func TestPasswordsAreNotShown(t *testing.T) {
	for raw, want := range map[string]string{
		"postgres://u:hidden@h/db?sslmode=disable": "postgres://u:xxxxx@h/db?sslmode=disable",
		"postgres://u@h/db":                        "postgres://u@h/db",
		"postgres://h/db?user=u&password=hidden":   "postgres://h/db?password=xxxxx&user=u",
		"nats://h:4222":                            "nats://h:4222",
		"sqlite:/tmp/a.db":                         "sqlite:/tmp/a.db",
	} {
		if got := dburl.Redact(raw); got != want {
			t.Errorf("Redact(%q) = %q, want %q", raw, got, want)
		}
	}
	if got := dburl.Redact("mysql://u:hid den\x7f@h"); strings.Contains(got, "hid") {
		t.Errorf("an unreadable URL is shown as %q", got)
	}
}
