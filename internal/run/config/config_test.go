package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/run/config"
)

const file = `consumer: ${NAME:-stock-service}
source: {url: "${BROKER}", queue: "$${literal}"}
database: postgres://app:${DB_PASSWORD}@db:5432/shop
key: message-id
vars: {warehouse: "${HOUSE:-}main", empty: "${EMPTY:-}"}
handle:
  - sql: |
      SELECT '${NOT_EXPANDED}'
    when: "body.x == '${ALSO_NOT}'"
effects:
  - name: a
    url: https://x.example/
    headers: {X-Plain: text, Authorization: "Bearer ${COURIER}"}
`

func lookup(name string) (string, bool) {
	value, set := map[string]string{
		"BROKER": "rabbitmq://u:brokerpassword@h:5672", "DB_PASSWORD": "hunter2", "COURIER": "abc", "EMPTY": "",
	}[name]
	return value, set
}

func TestValuesOfTheEnvironmentAreInTextsAndNotInSQLAndExpressions(t *testing.T) {
	c, err := config.Read(file, lookup)
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]string{
		"a default":          {c.Consumer.Value, "stock-service"},
		"a whole value":      {c.Source.URL.Value, "rabbitmq://u:brokerpassword@h:5672"},
		"what is shown":      {c.Source.URL.Written, "${BROKER}"},
		"an escaped one":     {c.Source.Queue.Value, "${literal}"},
		"within a value":     {c.Database.Value, "postgres://app:hunter2@db:5432/shop"},
		"an empty default":   {c.Vars["warehouse"], "main"},
		"an empty variable":  {c.Vars["empty"], ""},
		"SQL":                {c.Handle[0].SQL.Value, "SELECT '${NOT_EXPANDED}'\n"},
		"an expression":      {c.Handle[0].When.Value, "body.x == '${ALSO_NOT}'"},
		"a header":           {c.Effects[0].Headers[0].Value.Value, "Bearer abc"},
		"a header of no one": {c.Effects[0].Headers[1].Value.Value, "text"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", name, pair[0], pair[1])
		}
	}
	for _, secret := range []string{":brokerpassword@", "brokerpassword", ":hunter2@", "hunter2", "Bearer abc"} {
		if !slices.Contains(c.Secrets, secret) {
			t.Errorf("%q is not hidden: %q", secret, c.Secrets)
		}
	}
	if slices.Contains(c.Secrets, "text") || slices.Contains(c.Secrets, "stock-service") {
		t.Errorf("what is no secret is hidden: %q", c.Secrets)
	}
}

func TestAVariableThatIsMissingIsToldByNameAlone(t *testing.T) {
	_, err := config.Read(file, func(name string) (string, bool) {
		if name == "COURIER" {
			return "", true
		}
		return "", false
	})
	for _, says := range []string{
		"line 2, column 15: source.url: the variable BROKER is not set in the environment", "line 3, column 11: database: the variable DB_PASSWORD is not set",
		"line 13, column 45: effects[0].headers.Authorization: the variable COURIER is empty",
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("it does not say %q:\n%v", says, err)
		}
	}
}

func TestPlacesWithinValuesAreThoseOfTheFile(t *testing.T) {
	c, err := config.Read(`consumer: c
source: {url: "kafka://h:1", topics: t}
database: sqlite:x.db
key: message_id
handle:
  - sql: |
      ONE

      ü TWO
  - sql: ONE TWO
  - sql: 'ONE TWO'
  - sql: >
      ONE
      TWO
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []config.Pos{{Line: 9, Column: 9}, {Line: 10, Column: 14}, {Line: 11, Column: 15}, {Line: 12, Column: 10}} {
		sql := c.Handle[i].SQL
		if got := sql.Offset(strings.Index(sql.Value, "TWO")); got != want {
			t.Errorf("statement %d: TWO is at %v, want %v", i, got, want)
		}
	}
}
