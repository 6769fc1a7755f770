package sqltext_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run/sqltext"
)

const (
	pg   = dburl.PostgreSQL
	my   = dburl.MySQL
	lite = dburl.SQLite
)

func TestParametersAreFoundAndNothingElse(t *testing.T) {
	for _, c := range []struct {
		kind        dburl.Kind
		query, want string
		args        string // with blanks between
	}{
		{pg, `UPDATE stock SET q = q - :n WHERE sku = :sku`, `UPDATE stock SET q = q - $1 WHERE sku = $2`, "n sku"},
		{my, `UPDATE stock SET q = q - :n WHERE sku = :sku;`, `UPDATE stock SET q = q - ? WHERE sku = ?`, "n sku"},
		{pg, `VALUES (:a, :b, :a)`, `VALUES ($1, $2, $1)`, "a b"},
		{lite, `VALUES (:a, :b, :a)`, `VALUES (?, ?, ?)`, "a b a"},
		{pg, `SELECT :a::int, x::text, y :: date, ARRAY[1,2][1:2], ARRAY[:a::int]`, `SELECT $1::int, x::text, y :: date, ARRAY[1,2][1:2], ARRAY[$1::int]`, "a"},
		{pg, `SELECT ':a', 'it''s :a', E'\':a', e'\\', :b, U&':a', B'01', "na:me", "q"":a"`, `SELECT ':a', 'it''s :a', E'\':a', e'\\', $1, U&':a', B'01', "na:me", "q"":a"`, "b"},
		{pg, `SELECT 'a\', :b, '\:c'`, `SELECT 'a\', $1, '\:c'`, "b"},
		{my, `SELECT 'a\':b', ":c\"", ` + "`x:y`, `a``:b`" + `, :d`, `SELECT 'a\':b', ":c\"", ` + "`x:y`, `a``:b`" + `, ?`, "d"},
		{lite, `SELECT 'a\', :b, [x:y], "x"":y", ` + "`:z`", `SELECT 'a\', ?, [x:y], "x"":y", ` + "`:z`", "b"},
		{pg, "SELECT $$ :a $$, $t$ :a $$ :b $t$, $Ünï$:c$Ünï$, :d", "SELECT $$ :a $$, $t$ :a $$ :b $t$, $Ünï$:c$Ünï$, $1", "d"},
		{pg, "SELECT a$b$c, :d -- $b$ :e\n, :f", "SELECT a$b$c, $1 -- $b$ :e\n, $2", "d f"},
		{pg, "/* :a /* :b */ ' */ SELECT :c -- it's :d", "/* :a /* :b */ ' */ SELECT $1 -- it's :d", "c"},
		{my, "SELECT 1--:a, 2 -- :b\n, 3 # ':c\n, :d /* ' */", "SELECT 1--?, 2 -- :b\n, 3 # ':c\n, ? /* ' */", "a d"},
		{my, "SELECT /* /* :a */ :b", "SELECT /* /* :a */ ?", "b"},
		{lite, "SELECT :a--:b\n", "SELECT ?--:b", "a"},
		{my, "SELECT @x := :a, @@session.sql_mode", "SELECT @x := ?, @@session.sql_mode", "a"},
		{pg, `SELECT data ? 'k', data ?| ARRAY['a'], data @> :d::jsonb, x#>>'{:a}'`, `SELECT data ? 'k', data ?| ARRAY['a'], data @> $1::jsonb, x#>>'{:a}'`, "d"},
		{pg, `SELECT f(x => :a), 5:b`, `SELECT f(x => $1), 5$2`, "a b"},
		{pg, "SELECT 'ü:a', :b; -- the end", "SELECT 'ü:a', $1", "b"},
		{lite, "SELECT :a ; /* never ends", "SELECT ?", "a"},
		{pg, `WITH x AS (SELECT :a) INSERT INTO t SELECT * FROM x`, `WITH x AS (SELECT $1) INSERT INTO t SELECT * FROM x`, "a"},
		{pg, `SELECT 'x' ':a'` + "\n':b'", `SELECT 'x' ':a'` + "\n':b'", ""},
		{my, `SELECT '''', '\\', :a`, `SELECT '''', '\\', ?`, "a"},
	} {
		s, err := sqltext.Parse(c.query, c.kind)
		if err != nil {
			t.Errorf("%s: %s: %v", c.kind, c.query, err)
			continue
		}
		if s.Text() != c.want || strings.Join(s.Args(), " ") != c.args {
			t.Errorf("%s: %s:\n got %s with %v\nwant %s with %s", c.kind, c.query, s.Text(), s.Args(), c.want, c.args)
		}
	}
}

func TestWhatCannotRunInTheTransactionIsRefusedAtItsPlace(t *testing.T) {
	for _, c := range []struct {
		kind   dburl.Kind
		query  string
		offset int
		says   string
	}{
		{pg, "SELECT 1; SELECT 2", 10, "another statement"},
		{lite, "UPDATE t SET a = ';' ; DELETE FROM t", 23, "another statement"},
		{pg, "  ", 0, "no statement"},
		{pg, "-- nothing", 0, "no statement"},
		{pg, "/* x */ commit", 8, "COMMIT has no place"},
		{my, "ROLLBACK", 0, "ROLLBACK"},
		{my, "ALTER TABLE t ADD x INT", 0, "ALTER"},
		{lite, "PRAGMA synchronous = off", 0, "PRAGMA"},
		{pg, "SELECT 'abc", 7, "does not end"},
		{pg, "SELECT $x$ abc $y$", 7, "does not end"},
		{pg, "SELECT /* /* */", 7, "does not end"},
		{my, "SELECT 'abc\\'", 7, "does not end"},
		{pg, "SELECT $1", 7, `"$1" is a parameter without a name`},
		{my, "SELECT ?", 7, `"?"`},
		{lite, "SELECT ?12", 7, `"?12"`},
		{lite, "SELECT @a", 7, `"@a"`},
		{lite, "SELECT $a", 7, `"$a"`},
	} {
		_, err := sqltext.Parse(c.query, c.kind)
		var bad *sqltext.Error
		if !errors.As(err, &bad) || bad.Offset != c.offset || !strings.Contains(err.Error(), c.says) || bad.Mend == "" {
			t.Errorf("%s: %s: %v, want %q at %d", c.kind, c.query, err, c.says, c.offset)
		}
	}
}

func TestANumberCanStandInTheText(t *testing.T) {
	s, err := sqltext.Parse("UPDATE t SET a = a - :n, b = ':n' WHERE c = :c AND d < :n", my)
	if err != nil {
		t.Fatal(err)
	}
	text, args := s.Inline(map[string]string{"n": "(-5)"})
	if text != "UPDATE t SET a = a - (-5), b = ':n' WHERE c = ? AND d < (-5)" || !reflect.DeepEqual(args, []string{"c"}) {
		t.Errorf("%s with %v", text, args)
	}
	if got := s.Names(); !reflect.DeepEqual(got, []string{"n", "c"}) {
		t.Errorf("names %v", got)
	}
}
