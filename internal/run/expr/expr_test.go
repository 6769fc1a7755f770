package expr_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali"
	"github.com/sekali/sekali/broker"
	"github.com/sekali/sekali/internal/dburl"
	"github.com/sekali/sekali/internal/run/config"
	"github.com/sekali/sekali/internal/run/expr"
)

const body = `{"sku":"KOPI-250","n":3,"price":12.34,"big":9007199254740993,"u":18446744073709551615,
	"huge":123456789012345678901234567890,"money":12345678901234567.89,"neg":-98765432109876543210,"tiny":1.5e-30,
	"flag":true,"none":null,"at":"2026-01-02T03:04:05Z","list":[1,2.5,"x",12345678901234567890123],"deep":{"a":{"b":"c"}}}`

func message(body string) *sekali.Message {
	return &sekali.Message{Message: broker.Message{
		ID: "id-1", Topic: "orders.paid", Body: []byte(body), PublishedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600)),
		Headers: broker.Headers{{Name: "type", Value: []byte("paid")}, {Name: "bin", Value: []byte{0xff}}},
	}}
}

func compile(t *testing.T, source string, want expr.Want, effects ...string) *expr.Expr {
	t.Helper()
	c, err := expr.NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	x, problems := c.Compile(config.Text{Pos: config.Pos{Line: 7, Column: 3}, Field: "f", Value: source, Written: source}, want, effects...)
	if len(problems) > 0 {
		t.Fatalf("compile %q: %v", source, config.Problems(problems))
	}
	return x
}

func TestValuesBecomeParametersOfTheirTypeWithAllTheirDigits(t *testing.T) {
	at := time.Date(2026, 1, 2, 2, 4, 5, 6000, time.UTC)
	pg, my, lite := dburl.PostgreSQL, dburl.MySQL, dburl.SQLite
	for _, c := range []struct {
		source string
		kind   dburl.Kind
		want   any
	}{
		{`body.sku`, pg, "KOPI-250"},
		{`body.n`, pg, int64(3)},
		{`body.n + 1`, my, int64(4)},
		{`body.price`, pg, 12.34},
		{`body.big`, lite, int64(9007199254740993)},
		{`body.u`, pg, "18446744073709551615"},
		{`body.u`, my, expr.Literal("18446744073709551615")},
		{`body.huge`, pg, "123456789012345678901234567890"},
		{`body.huge`, my, expr.Literal("123456789012345678901234567890")},
		{`body.neg`, my, expr.Literal("(-98765432109876543210)")},
		{`body.money`, pg, "12345678901234567.89"},
		{`body.money`, my, expr.Literal("12345678901234567.89")},
		{`string(body.money)`, lite, "12345678901234567.89"},
		{`body.money > 5 ? body.money : 0`, pg, "12345678901234567.89"},
		{`body.huge == body.huge && body.huge > body.u && body.neg < 0`, lite, true},
		{`body.tiny`, lite, 1.5e-30},
		{`body.flag`, pg, true},
		{`body.none`, pg, nil},
		{`body.?missing`, pg, nil},
		{`body.?sku`, pg, "KOPI-250"},
		{`body.?missing.orValue("x")`, pg, "x"},
		{`has(body.missing) ? 1 : 2`, pg, int64(2)},
		{`raw.size() > 10`, pg, true},
		{`b"\xff\x00"`, pg, []byte{0xff, 0}},
		{`time`, pg, at},
		{`time`, lite, "2026-01-02 02:04:05.000006"},
		{`timestamp(body.at)`, my, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		{`headers.type + topic + id`, pg, "paidorders.paidid-1"},
		{`headers.bin`, pg, []byte{0xff}},
		{`body.list`, pg, `[1,2.5,"x",12345678901234567890123]`},
		{`{"a": body.money, "é<": body.deep}`, my, `{"a":12345678901234567.89,"é<":{"a":{"b":"c"}}}`},
		{`vars.warehouse`, pg, "main"},
		{`body.price > 12 && body.n == 3.0`, pg, true},
	} {
		t.Run(fmt.Sprintf("%s on %s", c.source, c.kind), func(t *testing.T) {
			got, err := compile(t, c.source, expr.Any).Param(expr.NewInput(message(body), map[string]string{"warehouse": "main"}), c.kind)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %#v (%v), want %#v", got, err, c.want)
			}
		})
	}
}

func TestWhatAMessageMakesImpossibleIsPermanentAndSaysWhere(t *testing.T) {
	for _, c := range []struct{ source, body, says string }{
		{`body.skuu`, body, `no field "skuu"`},
		{`body.deep.a.x.y`, body, `no field "x"`},
		{`headers.nothing`, body, `no field "nothing"`},
		{`body.sku`, `{"sku":`, "not JSON"},
		{`body.sku`, ``, "it is empty"},
		{`body.sku`, `{"sku":1} {`, "something follows"},
		{`body.sku`, "{\"sku\":\"\xff\"}", "not UTF-8"},
		{`body.money * 2`, body, "no such overload"},
		{`double(body.money)`, body, "digits"},
		{`body.big * body.big`, body, "overflow"},
		{`body.n / 0`, body, "zero"},
		{`duration("1s")`, body, "string(…)"},
		{`body.huge`, body, "SQLite has no number"},
		{`0.0 / 0.0`, body, "no number for NaN"},
		{`double(body.sku)`, `{"sku":"NaN"}`, "no number for NaN"},
		{`body.list.map(a, body.list.map(b, body.list.map(c, body.list.map(d, body.list.map(e, body.list.map(f, body.list.map(g, body.list.map(h, body.list.map(i, body.list))))))))).size()`, body, "too long"},
	} {
		_, err := compile(t, c.source, expr.Any).Param(expr.NewInput(message(c.body), nil), dburl.SQLite)
		var permanent interface{ Permanent() bool }
		if err == nil || !errors.As(err, &permanent) || !permanent.Permanent() || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "f (line 7 of the file)") {
			t.Errorf("%s: %v, want %q", c.source, err, c.says)
		}
	}
}

func TestWhatADatabaseHasNoNumberForIsNeverANull(t *testing.T) {
	for _, c := range []struct {
		source string
		kind   dburl.Kind
		is     bool
	}{
		{`0.0 / 0.0`, dburl.PostgreSQL, true},
		{`1.0 / 0.0`, dburl.PostgreSQL, true},
		{`-1.0 / 0.0`, dburl.SQLite, true},
		{`0.0 / 0.0`, dburl.SQLite, false},
		{`0.0 / 0.0`, dburl.MySQL, false},
		{`-1.0 / 0.0`, dburl.MySQL, false},
	} {
		v, err := compile(t, c.source, expr.Any).Param(expr.NewInput(message(body), nil), c.kind)
		if _, number := v.(float64); number != c.is || (err == nil) != c.is {
			t.Errorf("%s on %s: %v, %v", c.source, c.kind, v, err)
		}
	}
}

func TestNamesThatTheFileDoesNotHaveAreFound(t *testing.T) {
	c, err := expr.NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	c.Vars = []string{"warehouse"}
	for source, says := range map[string]string{
		`vars.warehouse + effects.label.body`: "", `has(vars.house) ? 1 : 2`: "", `vars.?house`: "", `[body].map(vars, vars.x)`: "",
		`"a" + vars.house`:    "line 7, column 9: f: vars has no house: add it to vars:",
		`effects.labels.body`: "line 7, column 3: f: effects has no labels: there are label",
	} {
		_, problems := c.Compile(config.Text{Pos: config.Pos{Line: 7, Column: 3}, Field: "f", Value: source, Written: source}, expr.Any, "label")
		if text := config.Problems(problems).Error(); (says == "") != (text == "") || !strings.Contains(text, says) {
			t.Errorf("%s: %q, want %q", source, text, says)
		}
	}
}

func TestATimeThatTheBrokerDoesNotSayIsNone(t *testing.T) {
	m := message(body)
	m.PublishedAt = time.Time{}
	if v, err := compile(t, `time`, expr.Any).Param(expr.NewInput(m, nil), dburl.PostgreSQL); err == nil {
		t.Errorf("got %v", v)
	}
}

func TestWhatIsWrongWithAnExpressionIsSaidAtItsPlace(t *testing.T) {
	c, err := expr.NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		source string
		want   expr.Want
		column int
		says   string
	}{
		{`body.sku +`, expr.Any, 13, "ends too early"},
		{`1 + paid`, expr.Any, 7, "undeclared reference to 'paid'"},
		{`"a" + 1`, expr.Any, 7, "no matching overload"},
		{`effects.label.body`, expr.Any, 3, "results are there for"},
		{`"yes"`, expr.Bool, 3, "true or false is wanted"},
		{`1.5`, expr.Whole, 3, "a whole number is wanted"},
	} {
		_, problems := c.Compile(config.Text{Pos: config.Pos{Line: 7, Column: 3}, Field: "f", Value: x.source, Written: x.source}, x.want)
		text := config.Problems(problems).Error()
		if len(problems) != 1 || problems[0].Column != x.column || !strings.Contains(text, x.says) || problems[0].Mend == "" {
			t.Errorf("%s: %v, want %q at %d", x.source, text, x.says, x.column)
		}
	}
}

func TestResultsOfEffectsAreThereWithAllTheirDigits(t *testing.T) {
	for answer, want := range map[string]any{
		`{"no": 12345678901234567890123}`: "12345678901234567890123", `{"no":"PX-1"}`: "PX-1",
	} {
		in := expr.NewInput(message(body), nil)
		r, err := expr.NewResult(201, []byte(answer))
		if err == nil {
			err = in.SetEffect("label", r)
		}
		got, e := compile(t, `effects.label.body.no`, expr.Any, "label").Param(in, dburl.PostgreSQL)
		if err != nil || e != nil || got != want {
			t.Errorf("%s: %v (%v, %v), want %v", answer, got, err, e, want)
		}
	}
	r, err := expr.NewResult(200, []byte("label 7"))
	if err != nil || string(r.Body) != `"label 7"` {
		t.Errorf("plain text: %s (%v)", r.Body, err)
	}
}
